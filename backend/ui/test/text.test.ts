import { describe, expect, it } from "vitest";
import { amount, basename, bytes, count, points, position, seconds, share, span } from "../src/core/format";
import { packageOf } from "../src/core/package";
import {
  DIFF_STEPS,
  LABEL_COLOUR,
  RUNTIMES,
  contrast,
  diffColour,
  diffStep,
  oklch,
  packageColour,
  runtimeColour,
} from "../src/core/palette";
import { matchFrames, matchedValue, matcher } from "../src/core/search";
import { treeOf } from "./stacks";

describe("amounts", () => {
  it.each([
    [100_000_000, "0.10 seconds"],
    [9_999_999, "< 0.01 seconds"],
    [1, "< 0.01 seconds"],
    [0, "0 seconds"],
    [10_000_000, "0.01 seconds"],
    [1_234_567_890_000, "1,234.57 seconds"],
    [-2e9, "-2.00 seconds"],
  ])("%d ns → %s", (ns, text) => expect(seconds(ns)).toBe(text));

  it.each([
    [0, "0 B"],
    [1023, "1023 B"],
    [1536, "1.50 KiB"],
    [20 * 2 ** 20, "20.0 MiB"],
  ])("%d bytes → %s", (value, text) => expect(bytes(value)).toBe(text));

  it("writes shares, counts, spans and positions", () => {
    expect([share(1, 3), share(1, 1), share(1, 9999), share(0, 5), share(1, 0)]).toEqual([
      "33.3 %",
      "100 %",
      "< 0.1 %",
      "0 %",
      "–",
    ]);
    expect([count(1234567), amount(5, "count"), amount(5, "objects")]).toEqual([
      "1,234,567",
      "5",
      "5 objects",
    ]);
    expect([points(0.0123), points(-0.5), points(0), points(0.0004)]).toEqual([
      "+1.2 pp",
      "-50.0 pp",
      "±0",
      "+0.04 pp",
    ]);
    expect([span(900_000), span(5_400_000), span(90_000), span(250)]).toEqual([
      "15 min",
      "1 h 30 min",
      "1 min 30 s",
      "250 ms",
    ]);
    expect([position("a.c", 3), position("a.c", 0), position("", 3), basename("/usr/lib/x.so")]).toEqual([
      "a.c:3",
      "a.c",
      "",
      "x.so",
    ]);
  });
});

describe("packages", () => {
  it.each([
    ["github.com/a/b/pkg.(*T).Method", "go", "", "", "github.com/a/b/pkg"],
    ["net/http.(*conn).serve", "go", "", "", "net/http"],
    ["main.main.func1", "go", "", "", "main"],
    ["slices.SortFunc[go.shape.*uint8]", "go", "", "", "slices"],
    ["java.util.HashMap.get(Object)", "jvm", "", "", "java.util"],
    ["tokio::runtime::block_on", "rust", "", "/bin/x", "tokio"],
    ["<core::fmt::Formatter as Write>::write_str", "rust", "", "/bin/x", "core"],
    ["f", "cpython", "/usr/lib/python3/dist-packages/yaml/loader.py", "", "yaml"],
    ["f", "cpython", "/usr/lib/python3.11/json/decoder.py", "", "json"],
    ["f", "cpython", "/srv/shop/cart.py", "", "shop"],
    ["f", "v8js", "/srv/node_modules/@scope/lib/x.js", "", "@scope/lib"],
    ["f", "v8js", "node:fs", "", "node"],
    ["f", "ruby", "/gems/rack-2.2.1/lib/x.rb", "", "rack"],
    ["std::sort", "native", "", "/usr/lib/libstdc++.so.6", "libstdc++.so.6"],
    ["do_syscall_64", "kernel", "", "", "kernel"],
    ["nf_hook", "kernel", "", "nf_conntrack", "nf_conntrack"],
    ["lists:map/2", "beam", "", "", "lists"],
    ["f", "", "", "", ""],
  ])("%s (%s) → %s", (name, kind, file, mapping, wanted) =>
    expect(packageOf(name, kind, file, mapping)).toBe(wanted),
  );
});

describe("colours", () => {
  it("computes OKLCH like the reference", () => {
    expect(oklch(1, 0, 0)).toBe("#ffffff");
    expect(oklch(0, 0, 0)).toBe("#000000");
    expect(oklch(0.6279554, 0.2576833, 29.23388)).toBe("#ff0000");
  });

  it("leaves labels readable on every fill (WCAG AA, 4.5:1)", () => {
    for (const theme of ["light", "dark"] as const) {
      const fills = [
        ...Object.keys(RUNTIMES).flatMap((kind) =>
          "abcdefghijklmnop".split("").map((name) => runtimeColour(theme, kind, name)),
        ),
        ...Array.from({ length: 300 }, (_, i) => packageColour(theme, `package-${i}`)),
        ...Array.from({ length: 2 * DIFF_STEPS + 1 }, (_, i) => diffColour(theme, i - DIFF_STEPS)),
      ];
      for (const fill of fills)
        expect(contrast(fill, LABEL_COLOUR[theme]), `${theme} ${fill}`).toBeGreaterThanOrEqual(4.5);
    }
  });

  it("tells more from less, strength from weakness, and ignores what is tiny", () => {
    expect(diffStep(0.2, 0.1)).toBe(3);
    expect(diffStep(0, 0.1)).toBe(-DIFF_STEPS);
    expect(diffStep(0.1, 0)).toBe(DIFF_STEPS);
    expect(diffStep(0.1, 0.1)).toBe(0);
    expect(diffStep(1e-6, 0)).toBe(0);
    expect(
      new Set(Array.from({ length: 2 * DIFF_STEPS + 1 }, (_, i) => diffColour("light", i - DIFF_STEPS))).size,
    ).toBe(13);
  });
});

describe("search", () => {
  it("matches text without case, or a regular expression", () => {
    const tree = treeOf(["Main;parse_json;read 3", "Main;render 5", "idle 2"]);
    const names = (query: string) => {
      const found = matchFrames(tree.frames, query);
      return found && tree.frames.name.filter((_, i) => found[i]);
    };
    expect(names("PARSE")).toEqual(["parse_json"]);
    expect(names("/^re/")).toEqual(["read", "render"]);
    expect(names("/^MAIN$/i")).toEqual(["Main"]);
    expect(names("  ")).toBeNull();
    expect(names("bin/app")).toHaveLength(5); // the mapping matches too
    expect(matcher("/(/")?.error).toContain("Invalid");
    expect(matchFrames(tree.frames, "/(/")).toBeNull();
  });

  it("counts a stack once however many of its frames match", () => {
    const tree = treeOf(["a;ab;abc 3", "b;a 2", "c 5"]);
    expect(matchedValue(tree, matchFrames(tree.frames, "/^a/")!)).toBe(5);
  });
});
