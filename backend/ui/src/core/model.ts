/**
 * Plain data that every view speaks: frames and trees of stacks, as columns.
 *
 * The server's answers, dropped files and trees that are made here all end in these two shapes, so that
 * layout, search, table and sandwich have one input. Nothing here computes.
 */

/** Functions as far as merging goes; all columns have one length. Frame 0 is the root's. */
export interface Frames {
  /** Stable across windows and servers (64-bit hash, hex); for dropped files unique within the file. */
  id: string[];
  /** Never empty, except for frame 0. */
  name: string[];
  /** Source file, "" if not known. */
  file: string[];
  /** Line where the function starts, 0 if not known. */
  line: number[];
  /** Path of the executable or library, "" if not known. */
  mapping: string[];
  /** OpenTelemetry's `profile.frame.type` (`native`, `kernel`, `go`, …), "" if not known. */
  kind: string[];
}

/** Nodes in any order in which parents come before their children; node 0 is the root, its parent is -1. */
export interface NodeColumns {
  frame: ArrayLike<number>;
  parent: ArrayLike<number>;
  /** Of all stacks through this node. */
  value: ArrayLike<number>;
  /** Of the stacks that end in this node. */
  self: ArrayLike<number>;
  /** The same in the baseline of a comparison. */
  baseValue?: ArrayLike<number> | undefined;
  baseSelf?: ArrayLike<number> | undefined;
}

export type Unit = "nanoseconds" | "bytes" | "count" | (string & {});

/** What a set of stacks sums up to, and in what. */
export interface Totals {
  total: number;
  /** Total of the baseline; null when nothing is compared. */
  baseTotal: number | null;
  unit: Unit;
}

/** Rows of the table: one for each function. */
export interface FunctionRows {
  frame: ArrayLike<number>;
  self: ArrayLike<number>;
  total: ArrayLike<number>;
  baseSelf?: ArrayLike<number> | undefined;
  baseTotal?: ArrayLike<number> | undefined;
}

/** A failure that the page shows as it is: what was wrong, and what to do. */
export class MalformedInput extends Error {
  override name = "MalformedInput";
}
