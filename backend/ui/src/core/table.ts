/** Rows of the function table: filtering, sorting, and what the columns say. */
import type { FunctionRows, Frames, Totals } from "./model";
import type { Sort } from "./page_state";

/** Change of a row's share of self time against the baseline; 0 without one. */
export function rowChange(rows: FunctionRows, totals: Totals, row: number): number {
  if (!rows.baseSelf) return 0;
  const now = totals.total > 0 ? rows.self[row]! / totals.total : 0;
  return now - (totals.baseTotal ? rows.baseSelf[row]! / totals.baseTotal : 0);
}

/** Indices of the rows to show, in order. `matches`: per frame, null = all. Equal rows go by name. */
export function orderRows(
  frames: Frames,
  rows: FunctionRows,
  totals: Totals,
  matches: Uint8Array | null,
  sort: Sort,
  descending: boolean,
): Int32Array {
  const kept: number[] = [];
  for (let row = 0; row < rows.frame.length; row++) {
    if (!matches || matches[rows.frame[row]!]) kept.push(row);
  }
  const name = (row: number): string => frames.name[rows.frame[row]!]!;
  const byName = (a: number, b: number): number => (name(a) < name(b) ? -1 : name(a) > name(b) ? 1 : a - b);
  const sign = descending ? -1 : 1;
  const key: Record<Exclude<Sort, "name">, (row: number) => number> = {
    self: (row) => rows.self[row]!,
    total: (row) => rows.total[row]!,
    // The size of the change, then its direction: what moved most is on top, whichever way.
    diff: (row) => Math.abs(rowChange(rows, totals, row)),
  };
  if (sort === "name") kept.sort((a, b) => sign * byName(a, b));
  else {
    const of = key[sort];
    kept.sort((a, b) => sign * (of(a) - of(b)) || byName(a, b));
  }
  return Int32Array.from(kept);
}

/** The first direction of a column when its header is clicked: names from A, amounts from the largest. */
export const firstDirection = (sort: Sort): boolean => sort !== "name";

/** Frames that are in the rows, greatest of each column: the bars' scale. */
export function largest(rows: FunctionRows): { self: number; total: number } {
  let self = 0;
  let total = 0;
  for (let i = 0; i < rows.frame.length; i++) {
    self = Math.max(self, rows.self[i]!);
    total = Math.max(total, rows.total[i]!);
  }
  return { self, total };
}
