/** What is said about a frame in tooltips, in the details line and to screen readers: the same facts everywhere. */
import { amount, basename, points, position, share } from "./format";
import { runtimeTitle } from "./palette";
import type { StackTree } from "./tree";

export interface Facts {
  name: string;
  rows: [label: string, value: string][];
}

/** Name of the root: everything, or the function that was focused on. */
export function nodeName(tree: StackTree, node: number): string {
  const name = tree.frames.name[tree.frame[node]!]!;
  return name === "" ? "all" : name;
}

export function facts(tree: StackTree, node: number): Facts {
  const { unit, total, baseTotal } = tree.totals;
  const { frames } = tree;
  const frame = tree.frame[node]!;
  const value = tree.value[node]!;
  const self = tree.self[node]!;
  const rows: Facts["rows"] = [
    ["Total", `${amount(value, unit)} (${share(value, total)})`],
    ["Self", `${amount(self, unit)} (${share(self, total)})`],
  ];
  if (tree.baseValue && baseTotal !== null) {
    const before = tree.baseValue[node]!;
    rows.push(["Baseline", `${amount(before, unit)} (${share(before, baseTotal)})`]);
    rows.push(["Change", points(change(tree, node))]);
  }
  const root = tree.value[0]!;
  if (root !== total && node > 0) rows.push(["Of what is shown", share(value, root)]);
  if (frame > 0) {
    const source = position(frames.file[frame]!, frames.line[frame]!);
    if (source) rows.push(["Source", source]);
    if (frames.mapping[frame]) rows.push(["Mapping", frames.mapping[frame]!]);
    if (frames.kind[frame]) rows.push(["Runtime", runtimeTitle(frames.kind[frame]!)]);
  }
  return { name: nodeName(tree, node), rows };
}

/** Change of the node's share against the baseline, −1…1; 0 without one. */
export function change(tree: StackTree, node: number): number {
  const { total, baseTotal } = tree.totals;
  if (!tree.baseValue) return 0;
  return (total > 0 ? tree.value[node]! / total : 0) - (baseTotal ? tree.baseValue[node]! / baseTotal : 0);
}

/** The text in a box of the flame graph. */
export function boxLabel(tree: StackTree, node: number): string {
  const name = nodeName(tree, node);
  if (tree.baseValue) return `${name} (${points(change(tree, node))})`;
  if (node === 0) return `${name} (${amount(tree.value[0]!, tree.totals.unit)})`;
  return name;
}

/** One sentence for a screen reader. */
export function spoken(tree: StackTree, node: number): string {
  const { name, rows } = facts(tree, node);
  const told = rows.slice(0, tree.baseValue ? 4 : 2).map(([label, value]) => `${label} ${value}`);
  return `${name}. ${told.join(", ")}. Depth ${tree.depth[node]}.`;
}

const SENTENCES: ReadonlyMap<string, string> = new Map(
  Object.entries({
    cpu: "Frame width represents CPU time per function",
    off_cpu: "Frame width represents time spent off the CPU, waiting, per function",
    lock_wait: "Frame width represents time spent waiting on locks per function",
  }),
);

/** The hint below the flame graph. */
export function widthHint(type: string, title: string, unit: string, compared: boolean): string {
  if (compared) return "Frame width is the mean of both shares; colour is the change: orange more, blue less";
  const known = SENTENCES.get(type);
  if (known) return known;
  const what = title || type || "samples";
  if (unit === "bytes") return `Frame width represents bytes (${what}) per function`;
  if (unit === "nanoseconds") return `Frame width represents time (${what}) per function`;
  return `Frame width represents ${what} per function`;
}

/** Names of mappings in tables. */
export const shortMapping = (mapping: string): string => (mapping ? basename(mapping) : "–");
