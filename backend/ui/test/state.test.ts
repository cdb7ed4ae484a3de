import { describe, expect, it } from "vitest";
import { DEFAULTS, type PageState, readState, writeState } from "../src/core/page_state";
import {
  parseFilter,
  plainParameters,
  resolve,
  selectionParameters,
  valuesOf,
  windowBefore,
  withValues,
} from "../src/core/selection";
import { random } from "./stacks";

const FULL: PageState = {
  type: "off_cpu",
  window: { from: "now-1h", to: "now-5m" },
  brush: { from: 1763700000000, to: 1763700060000 },
  filters: [
    { label: "namespace", operator: "=", value: "a=b&c" },
    { label: "pod", operator: "!=", value: "" },
  ],
  path: ["00ff", "local-12"],
  base: {
    window: { from: "1763600000000", to: "1763600900000" },
    filters: [{ label: "pod", operator: "=", value: "ü" }],
  },
  view: "traces",
  pane: "table",
  orientation: "flame",
  align: "tail",
  colour: "package",
  sort: "name",
  descending: false,
  search: "/a+b/",
  zoom: 0xdeadbeef,
  sandwich: "5e2c",
  picked: "77aa",
  by: "pod",
  live: true,
};

describe("permalinks", () => {
  it("hold the whole state", () => {
    expect(readState(writeState(FULL))).toEqual(FULL);
    expect(
      readState(writeState({ ...FULL, base: { window: FULL.window, filters: [] } })).base?.filters,
    ).toEqual([]);
  });

  it("are short for what is usual", () => {
    expect(writeState(DEFAULTS)).toBe("");
    expect(readState("")).toEqual(DEFAULTS);
    expect(writeState({ ...DEFAULTS, type: "cpu", pane: "flame" })).toBe("?type=cpu&pane=flame");
  });

  it("turn nonsense into defaults and never throw", () => {
    const nonsense =
      "?view=x&from=tomorrow&to=now&match=&match==&brush=9-3&zoom=zz&path=a..b&sandwich=<b>&sort=-x&base_from=now";
    const state = readState(nonsense);
    expect(state).toEqual({ ...DEFAULTS, path: [], sandwich: "" });
    const next = random(7);
    const names = [
      "view",
      "from",
      "to",
      "match",
      "brush",
      "zoom",
      "path",
      "sort",
      "base_from",
      "base_to",
      "search",
    ];
    for (let i = 0; i < 2000; i++) {
      const query = Array.from({ length: 5 }, () => {
        const value = Array.from({ length: Math.floor(next() * 9) }, () =>
          String.fromCharCode(next() * 300),
        ).join("");
        return `${names[Math.floor(next() * names.length)]}=${encodeURIComponent(value.toWellFormed())}`;
      }).join("&");
      const read = readState(`?${query}`);
      expect(readState(writeState(read))).toEqual(read);
    }
  });
});

describe("windows", () => {
  it("are relative to now, or absolute", () => {
    expect([
      resolve("now", 1e6),
      resolve("now-15m", 1e6),
      resolve("now-30s", 1e6),
      resolve("1763700000000", 0),
    ]).toEqual([1e6, 1e6 - 900_000, 970_000, 1763700000000]);
    expect([resolve("yesterday", 0), resolve("now-1y", 0), resolve("-5", 0)]).toEqual([NaN, NaN, NaN]);
    expect(windowBefore({ from: "now-1m", to: "now" }, 1_000_000)).toEqual({ from: "880000", to: "940000" });
  });
});

describe("selection", () => {
  it("becomes the parameters of the interface", () => {
    expect(selectionParameters(FULL).toString()).toBe(
      "type=off_cpu&from=1763700000000&to=1763700060000&match=namespace%3Da%3Db%26c&match=pod%21%3D&path=00ff.local-12" +
        "&base_from=1763600000000&base_to=1763600900000&base_match=pod%3D%C3%BC",
    );
    expect(selectionParameters(FULL, true).get("from")).toBe("now-1h");
    expect(plainParameters(FULL).has("base_from")).toBe(false);
    const free = selectionParameters({ ...FULL, base: { window: FULL.window, filters: [] } });
    expect(free.getAll("base_match")).toEqual([""]);
  });

  it("reads and replaces filters", () => {
    expect(parseFilter("a!=b=c")).toEqual({ label: "a", operator: "!=", value: "b=c" });
    expect(parseFilter("k8s.pod/x")).toBeNull();
    const filters = withValues(FULL.filters, "namespace", ["x", "y"]);
    expect(valuesOf(filters, "namespace")).toEqual(["x", "y"]);
    expect(filters).toHaveLength(3);
    expect(withValues(filters, "namespace", [])).toEqual([FULL.filters[1]]);
  });
});
