/**
 * Search over functions: a text (case ignored) or `/regular expression/`.
 *
 * Matching is per function, not per node: 50,000 nodes share some thousands of names.
 */
import type { Frames } from "./model";
import type { StackTree } from "./tree";

export interface Matcher {
  /** Null when the expression is not valid. */
  readonly test: ((text: string) => boolean) | null;
  readonly error: string;
}

const LONGEST_QUERY = 1024;

/** `query` "" gives null: nothing is searched. */
export function matcher(query: string): Matcher | null {
  const wanted = query.trim().slice(0, LONGEST_QUERY);
  if (wanted === "") return null;
  const expression = /^\/(.+)\/(i?)$/.exec(wanted);
  if (expression) {
    try {
      const compiled = new RegExp(expression[1]!, expression[2] === "i" ? "iu" : "u");
      return { test: (text) => compiled.test(text), error: "" };
    } catch (error) {
      return { test: null, error: error instanceof Error ? error.message : String(error) };
    }
  }
  const folded = wanted.toLowerCase();
  return { test: (text) => text.toLowerCase().includes(folded), error: "" };
}

/** For each frame 1 where its name, file or mapping matches; null when nothing is searched. */
export function matchFrames(frames: Frames, query: string): Uint8Array | null {
  const test = matcher(query)?.test;
  if (!test) return null;
  return Uint8Array.from(frames.name, (name, i) =>
    i > 0 && (test(name) || test(frames.file[i]!) || test(frames.mapping[i]!)) ? 1 : 0,
  );
}

/** Value of the stacks that have a match in them, each counted once. */
export function matchedValue(tree: StackTree, matches: Uint8Array): number {
  let sum = 0;
  for (let node = 1; node < tree.size;) {
    if (matches[tree.frame[node]!]) {
      sum += tree.value[node]!;
      node = tree.end[node]!;
    } else node++;
  }
  return sum;
}
