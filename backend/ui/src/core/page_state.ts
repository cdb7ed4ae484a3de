/**
 * The page's state and its form as a query string: whoever opens the link sees the same.
 *
 * Only what differs from the default is written, so that links stay short. A link is input from elsewhere:
 * what cannot be understood becomes the default, lengths are bounded.
 */
import { type Filter, type Selection, type Window, filterText, isWindow, parseFilter } from "./selection";

export const VIEWS = ["flamegraph", "functions", "executables", "traces"] as const;
export const PANES = ["both", "table", "flame"] as const;
export const ORIENTATIONS = ["icicle", "flame"] as const;
export const ALIGNS = ["head", "tail"] as const;
export const COLOURS = ["runtime", "package"] as const;
export const SORTS = ["self", "total", "name", "diff"] as const;

export type View = (typeof VIEWS)[number];
export type Pane = (typeof PANES)[number];
export type Sort = (typeof SORTS)[number];

export interface PageState extends Selection {
  view: View;
  pane: Pane;
  orientation: (typeof ORIENTATIONS)[number];
  /** Which end of a long name is shown. */
  align: (typeof ALIGNS)[number];
  colour: (typeof COLOURS)[number];
  sort: Sort;
  descending: boolean;
  search: string;
  /** Path hash of the node that is zoomed to; 0 = all. */
  zoom: number;
  /** Id of the frame whose callers and callees are shown; "" = none. */
  sandwich: string;
  /** Id of the function that is marked in table and flame graph; "" = none. */
  picked: string;
  /** Label that the timeline is split by; "" = none. */
  by: string;
  /** Ask again by itself every few seconds. */
  live: boolean;
}

export const DEFAULTS: PageState = {
  type: "",
  window: { from: "now-15m", to: "now" },
  brush: null,
  filters: [],
  path: [],
  base: null,
  view: "flamegraph",
  pane: "both",
  orientation: "icicle",
  align: "head",
  colour: "runtime",
  sort: "self",
  descending: true,
  search: "",
  zoom: 0,
  sandwich: "",
  picked: "",
  by: "",
  live: false,
};

const MOST_FILTERS = 64;
const LONGEST = 1024;
const DEEPEST_PATH = 512;

function oneOf<T extends string>(text: string | null, choices: readonly T[], otherwise: T): T {
  return choices.find((choice) => choice === text) ?? otherwise;
}

function readWindow(query: URLSearchParams, prefix: string): Window | null {
  const window = { from: query.get(`${prefix}from`) ?? "", to: query.get(`${prefix}to`) ?? "" };
  return isWindow(window) ? window : null;
}

function readFilters(query: URLSearchParams, name: string): Filter[] {
  return query
    .getAll(name)
    .slice(0, MOST_FILTERS)
    .map((text) => parseFilter(text.slice(0, LONGEST)))
    .filter((filter) => filter !== null);
}

function readBrush(query: URLSearchParams): PageState["brush"] {
  const match = /^(\d{1,15})-(\d{1,15})$/.exec(query.get("brush") ?? "");
  const [from, to] = [Number(match?.[1]), Number(match?.[2])];
  return from < to ? { from, to } : null;
}

export function readState(search: string): PageState {
  const query = new URLSearchParams(search);
  const text = (name: string): string => (query.get(name) ?? "").slice(0, LONGEST);
  const baseWindow = readWindow(query, "base_");
  const sort = text("sort");
  const path = (query.get("path") ?? "").slice(0, 17 * DEEPEST_PATH);
  return {
    type: text("type"),
    window: readWindow(query, "") ?? DEFAULTS.window,
    brush: readBrush(query),
    filters: readFilters(query, "match"),
    path: /^[\w-]+(\.[\w-]+)*$/.test(path) ? path.split(".").slice(0, DEEPEST_PATH) : [],
    base: baseWindow ? { window: baseWindow, filters: readFilters(query, "base_match") } : null,
    view: oneOf(query.get("view"), VIEWS, DEFAULTS.view),
    pane: oneOf(query.get("pane"), PANES, DEFAULTS.pane),
    orientation: oneOf(query.get("orientation"), ORIENTATIONS, DEFAULTS.orientation),
    align: oneOf(query.get("align"), ALIGNS, DEFAULTS.align),
    colour: oneOf(query.get("colour"), COLOURS, DEFAULTS.colour),
    sort: oneOf(sort.replace(/^-/, ""), SORTS, DEFAULTS.sort),
    descending: sort === "" ? DEFAULTS.descending : sort.startsWith("-"),
    search: text("search"),
    zoom: /^[0-9a-f]{1,8}$/.test(text("zoom")) ? parseInt(text("zoom"), 16) : 0,
    sandwich: /^[\w-]*$/.test(text("sandwich")) ? text("sandwich") : "",
    picked: /^[\w-]*$/.test(text("function")) ? text("function") : "",
    by: text("by"),
    live: query.get("live") === "1",
  };
}

/** The query string with its `?`, or "" for the default state. */
export function writeState(state: PageState): string {
  const query = new URLSearchParams();
  const set = (name: string, value: string, otherwise: string): void => {
    if (value !== otherwise) query.set(name, value);
  };
  set("view", state.view, DEFAULTS.view);
  set("type", state.type, "");
  if (state.window.from !== DEFAULTS.window.from || state.window.to !== DEFAULTS.window.to) {
    query.set("from", state.window.from);
    query.set("to", state.window.to);
  }
  if (state.brush) query.set("brush", `${Math.round(state.brush.from)}-${Math.round(state.brush.to)}`);
  for (const filter of state.filters) query.append("match", filterText(filter));
  set("path", state.path.join("."), "");
  if (state.base) {
    query.set("base_from", state.base.window.from);
    query.set("base_to", state.base.window.to);
    for (const filter of state.base.filters) query.append("base_match", filterText(filter));
  }
  set("pane", state.pane, DEFAULTS.pane);
  set("orientation", state.orientation, DEFAULTS.orientation);
  set("align", state.align, DEFAULTS.align);
  set("colour", state.colour, DEFAULTS.colour);
  set("sort", (state.descending ? "-" : "") + state.sort, "-self");
  set("search", state.search, "");
  set("zoom", state.zoom.toString(16), "0");
  set("sandwich", state.sandwich, "");
  set("function", state.picked, "");
  set("by", state.by, "");
  if (state.live) query.set("live", "1");
  const text = query.toString();
  return text ? `?${text}` : "";
}
