/** Which colours are on the picture and what they stand for, by weight. */
import { packageOf } from "./package";
import { runtimeTitle, type Theme, packageColour, runtimeColour, runtimeSwatch } from "./palette";
import type { Frames } from "./model";
import type { StackTree } from "./tree";

export interface LegendEntry {
  title: string;
  colour: string;
  /** Self value of its frames. */
  value: number;
}

const MOST_ENTRIES = 10;

export function packagesOf(frames: Frames): string[] {
  return frames.name.map((name, i) => packageOf(name, frames.kind[i]!, frames.file[i]!, frames.mapping[i]!));
}

/** Fill for each frame. */
export function fillsOf(frames: Frames, mode: "runtime" | "package", theme: Theme): string[] {
  if (mode === "package") return packagesOf(frames).map((name) => packageColour(theme, name));
  return frames.name.map((name, i) => runtimeColour(theme, frames.kind[i]!, name));
}

/** Runtimes or packages with their self value, the largest first; the rest is left out. */
export function legendOf(tree: StackTree, mode: "runtime" | "package", theme: Theme): LegendEntry[] {
  const groups = mode === "package" ? packagesOf(tree.frames) : tree.frames.kind;
  const values = new Map<string, number>();
  for (let node = 1; node < tree.size; node++) {
    const group = groups[tree.frame[node]!]!;
    values.set(group, (values.get(group) ?? 0) + tree.self[node]!);
  }
  return [...values]
    .sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1))
    .slice(0, MOST_ENTRIES)
    .map(([group, value]) => ({
      title: mode === "package" ? group || "Unknown" : runtimeTitle(group),
      colour: mode === "package" ? packageColour(theme, group) : runtimeSwatch(theme, group),
      value,
    }));
}
