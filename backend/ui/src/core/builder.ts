/**
 * Merging stacks into a tree, and cutting trees out of trees: what the server does for its own data, for
 * files that never leave the browser.
 */
import type { Frames, FunctionRows, NodeColumns } from "./model";
import type { StackTree } from "./tree";

/** Collects stacks (root first) into node columns. */
export class TreeBuilder {
  readonly frame: number[] = [0];
  readonly parent: number[] = [-1];
  readonly value: number[] = [0];
  readonly self: number[] = [0];
  private readonly children = new Map<number, number>();

  /** `frameCount`: frames are numbers below it. `maxNodes`: adding more throws RangeError. */
  constructor(
    private readonly frameCount: number,
    private readonly maxNodes: number,
    rootFrame = 0,
  ) {
    this.frame[0] = rootFrame;
  }

  /** The child of `node` with this frame, made if it is not there. */
  child(node: number, frame: number): number {
    const key = node * this.frameCount + frame;
    let found = this.children.get(key);
    if (found === undefined) {
      found = this.frame.length;
      if (found >= this.maxNodes)
        throw new RangeError(`more than ${this.maxNodes} distinct places in stacks`);
      this.frame.push(frame);
      this.parent.push(node);
      this.value.push(0);
      this.self.push(0);
      this.children.set(key, found);
    }
    return found;
  }

  /** Adds `value` to every node on the way and to `self` of the last. */
  add(stack: Iterable<number>, value: number): void {
    let node = 0;
    this.value[0]! += value;
    for (const frame of stack) {
      node = this.child(node, frame);
      this.value[node]! += value;
    }
    this.self[node]! += value;
  }

  columns(): NodeColumns {
    return { frame: this.frame, parent: this.parent, value: this.value, self: this.self };
  }
}

/** The subtree of a node, with that node as the root. */
export function subtree(tree: StackTree, node: number): NodeColumns {
  const end = tree.end[node]!;
  return {
    frame: tree.frame.slice(node, end),
    parent: tree.parent.slice(node, end).map((parent, i) => (i === 0 ? -1 : parent - node)),
    value: tree.value.slice(node, end),
    self: tree.self.slice(node, end),
    baseValue: tree.baseValue?.slice(node, end),
    baseSelf: tree.baseSelf?.slice(node, end),
  };
}

/** Self and total of each function; `total` counts a stack once however often a function recurs in it. */
export function functionsOf(tree: StackTree): FunctionRows {
  const count = tree.frames.name.length;
  const self = new Float64Array(count);
  const total = new Float64Array(count);
  const active = new Int32Array(count);
  const open: number[] = [];
  for (let node = 1; node < tree.size; node++) {
    while (open.length > 0 && tree.end[open.at(-1)!]! <= node) active[tree.frame[open.pop()!]!]!--;
    const frame = tree.frame[node]!;
    self[frame]! += tree.self[node]!;
    if (active[frame]!++ === 0) total[frame]! += tree.value[node]!;
    open.push(node);
  }
  const rows: number[] = [];
  for (let frame = 1; frame < count; frame++) if (total[frame]! > 0) rows.push(frame);
  const pick = (column: Float64Array): Float64Array => Float64Array.from(rows, (frame) => column[frame]!);
  return { frame: Int32Array.from(rows), self: pick(self), total: pick(total) };
}

/** Nodes of a function that have no node of the same function above them. */
function outermost(tree: StackTree, frame: number): number[] {
  const found: number[] = [];
  for (let node = 1; node < tree.size;) {
    if (tree.frame[node] === frame) {
      found.push(node);
      node = tree.end[node]!;
    } else node++;
  }
  return found;
}

/** Callers (inverted) and callees of a function, merged over its outermost occurrences. */
export function sandwichOf(tree: StackTree, frame: number): { callers: NodeColumns; callees: NodeColumns } {
  const count = tree.frames.name.length;
  const callers = new TreeBuilder(count, Infinity, frame);
  const callees = new TreeBuilder(count, Infinity, frame);
  for (const top of outermost(tree, frame)) {
    const above: number[] = [];
    for (let at = tree.parent[top]!; at > 0; at = tree.parent[at]!) above.push(tree.frame[at]!);
    callers.add(above, tree.value[top]!);

    const place = new Map([[top, 0]]);
    callees.value[0]! += tree.value[top]!;
    callees.self[0]! += tree.self[top]!;
    for (let node = top + 1; node < tree.end[top]!; node++) {
      const to = callees.child(place.get(tree.parent[node]!)!, tree.frame[node]!);
      place.set(node, to);
      callees.value[to]! += tree.value[node]!;
      callees.self[to]! += tree.self[node]!;
    }
  }
  return { callers: callers.columns(), callees: callees.columns() };
}

/** Frames under construction: the same function always gets the same number. */
export class FrameTable implements Frames {
  readonly id = [""];
  readonly name = [""];
  readonly file = [""];
  readonly line = [0];
  readonly mapping = [""];
  readonly kind = [""];
  private readonly known = new Map<string, number>();

  constructor(private readonly maxFrames: number) {}

  /** Throws RangeError when there are more than `maxFrames` of them. */
  add(name: string, file: string, line: number, mapping: string, kind: string): number {
    const key = [name, file, mapping, kind].join("\u0000");
    let index = this.known.get(key);
    if (index === undefined) {
      index = this.name.length;
      if (index >= this.maxFrames) throw new RangeError(`more than ${this.maxFrames} distinct functions`);
      this.id.push(`local-${index}`);
      this.name.push(name);
      this.file.push(file);
      this.line.push(line);
      this.mapping.push(mapping);
      this.kind.push(kind);
      this.known.set(key, index);
    } else if (line > 0 && (this.line[index] === 0 || line < this.line[index]!)) {
      this.line[index] = line;
    }
    return index;
  }
}
