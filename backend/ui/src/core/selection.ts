/**
 * What is looked at: profile type, window, filters, subtree, baseline. The one notion that every request of the
 * page is made of (docs/design/0002-backend-api.md, "Selection").
 */

/** A bound of a window: `now`, `now-15m`, or milliseconds since the Unix epoch. */
export type Bound = string;

export interface Filter {
  label: string;
  operator: "=" | "!=";
  value: string;
}

export interface Window {
  from: Bound;
  to: Bound;
}

export interface Selection {
  type: string;
  window: Window;
  /** Brushed part of the window, ms; null = all of it. */
  brush: { from: number; to: number } | null;
  filters: Filter[];
  /** Frame ids from the root down; [] = everything. */
  path: string[];
  /** What it is compared with; null = nothing. */
  base: { window: Window; filters: Filter[] } | null;
}

const UNIT_MS: Readonly<Record<string, number>> = { s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };
const RELATIVE = /^now(?:-(\d{1,6})([smhd]))?$/;

export const isRelative = (bound: Bound): boolean => RELATIVE.test(bound);

/** Milliseconds of a bound at a given time; NaN if it is neither form. */
export function resolve(bound: Bound, now: number): number {
  const match = RELATIVE.exec(bound);
  if (match) return now - (match[1] ? Number(match[1]) * UNIT_MS[match[2]!]! : 0);
  return /^\d{1,16}$/.test(bound) ? Number(bound) : NaN;
}

export function isWindow(window: Window): boolean {
  const now = Date.now();
  return resolve(window.from, now) < resolve(window.to, now);
}

/** The window of the same length that ends where this one begins. */
export function windowBefore(window: Window, now: number): Window {
  const from = resolve(window.from, now);
  const to = resolve(window.to, now);
  return { from: String(Math.round(2 * from - to)), to: String(Math.round(from)) };
}

const FILTER = /^([A-Za-z][\w.-]*?)(!=|=)(.*)$/s;

export function parseFilter(text: string): Filter | null {
  const match = FILTER.exec(text);
  return match ? { label: match[1]!, operator: match[2] as "=" | "!=", value: match[3]! } : null;
}

export const filterText = (filter: Filter): string => filter.label + filter.operator + filter.value;

/** The filters with those of one label replaced: `values` as alternatives, none = label not filtered. */
export function withValues(filters: readonly Filter[], label: string, values: readonly string[]): Filter[] {
  const others = filters.filter((filter) => filter.label !== label || filter.operator !== "=");
  return [...others, ...values.map((value): Filter => ({ label, operator: "=", value }))];
}

export function valuesOf(filters: readonly Filter[], label: string): string[] {
  return filters
    .filter((filter) => filter.label === label && filter.operator === "=")
    .map((filter) => filter.value);
}

/** The query parameters of a selection. `whole`: without brush, subtree and baseline, as the timeline needs it. */
export function selectionParameters(selection: Selection, whole = false): URLSearchParams {
  const query = new URLSearchParams();
  if (selection.type) query.set("type", selection.type);
  const brush = whole ? null : selection.brush;
  query.set("from", brush ? String(Math.round(brush.from)) : selection.window.from);
  query.set("to", brush ? String(Math.round(brush.to)) : selection.window.to);
  for (const filter of selection.filters) query.append("match", filterText(filter));
  if (whole) return query;
  if (selection.path.length > 0) query.set("path", selection.path.join("."));
  if (selection.base) {
    query.set("base_from", selection.base.window.from);
    query.set("base_to", selection.base.window.to);
    for (const filter of selection.base.filters) query.append("base_match", filterText(filter));
    if (selection.base.filters.length === 0) query.set("base_match", "");
  }
  return query;
}

/** The same without the baseline: for answers that know no comparison. */
export function plainParameters(selection: Selection): URLSearchParams {
  return selectionParameters({ ...selection, base: null });
}
