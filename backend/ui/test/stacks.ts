/** Stacks written as text, for tests: `["main;work;leaf 3", …]` → a tree. */
import { FrameTable, TreeBuilder } from "../src/core/builder";
import { buildTree, type StackTree } from "../src/core/tree";

export function treeOf(lines: string[], base: string[] = []): StackTree {
  const frames = new FrameTable(10_000);
  const now = new TreeBuilder(10_000, 100_000);
  const stack = (line: string): [number[], number] => {
    const space = line.lastIndexOf(" ");
    const names = line.slice(0, space);
    return [
      names === "" ? [] : names.split(";").map((name) => frames.add(name, "", 0, "/bin/app", "native")),
      Number(line.slice(space + 1)),
    ];
  };
  for (const line of lines) now.add(...stack(line));
  if (base.length === 0)
    return buildTree(frames, now.columns(), { total: now.value[0]!, baseTotal: null, unit: "count" });
  // The same places for both sides: the second builder walks the first one's nodes.
  const before = { value: now.value.map(() => 0), self: now.self.map(() => 0) };
  for (const line of base) {
    const [path, value] = stack(line);
    let node = 0;
    before.value[0]! += value;
    for (const frame of path) {
      node = now.child(node, frame);
      before.value[node] = (before.value[node] ?? 0) + value;
    }
    before.self[node] = (before.self[node] ?? 0) + value;
  }
  const filled = (column: number[]): number[] =>
    Array.from({ length: now.frame.length }, (_, i) => column[i] ?? 0);
  return buildTree(
    frames,
    { ...now.columns(), baseValue: filled(before.value), baseSelf: filled(before.self) },
    { total: now.value[0]!, baseTotal: before.value[0]!, unit: "count" },
  );
}

export function nameOf(tree: StackTree, node: number): string {
  return tree.frames.name[tree.frame[node]!]!;
}

export function nodeNamed(tree: StackTree, path: string): number {
  for (let node = 0; node < tree.size; node++) {
    const names: string[] = [];
    for (let at = node; at > 0; at = tree.parent[at]!) names.unshift(nameOf(tree, at));
    if (names.join(";") === path) return node;
  }
  throw new Error(`no node ${path}`);
}

/** Deterministic random numbers (mulberry32), so that a failure can be repeated. */
export function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}
