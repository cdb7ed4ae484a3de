import { describe, expect, it } from "vitest";
import { functionsOf, sandwichOf, subtree } from "../src/core/builder";
import { MalformedInput } from "../src/core/model";
import { buildTree, childrenOf, findByHash, nodeAt, pathOf } from "../src/core/tree";
import { nameOf, nodeNamed, random, treeOf } from "./stacks";

const STACKS = ["main;work;leaf 3", "main;work 1", "main;idle 4", "other 2"];

describe("layout", () => {
  it("orders children by weight and places them side by side", () => {
    const tree = treeOf(STACKS);
    expect(childrenOf(tree, 0).map((node) => nameOf(tree, node))).toEqual(["main", "other"]);
    const main = nodeNamed(tree, "main");
    expect(tree.width[main]).toBeCloseTo(0.8);
    const [work, idle] = [nodeNamed(tree, "main;work"), nodeNamed(tree, "main;idle")];
    expect(tree.left[idle]! + tree.width[idle]!).toBeCloseTo(tree.left[work]!, 12); // equal weights: by name
    expect(tree.depth[nodeNamed(tree, "main;work;leaf")]).toBe(3);
  });

  it("keeps children inside their parents and apart from each other, for any tree", () => {
    for (let seed = 1; seed <= 40; seed++) {
      const next = random(seed);
      const lines = Array.from({ length: 60 }, () => {
        const depth = 1 + Math.floor(next() * 12);
        const names = Array.from({ length: depth }, () => "abcde"[Math.floor(next() * 5)]!);
        return `${names.join(";")} ${Math.floor(next() * 1000)}`;
      });
      const tree = treeOf(lines);
      for (let node = 0; node < tree.size; node++) {
        const children = childrenOf(tree, node);
        let left = tree.left[node]!;
        let sum = tree.self[node]!;
        for (const child of children) {
          expect(tree.left[child]).toBeCloseTo(left, 9);
          expect(tree.parent[child]).toBe(node);
          expect(tree.depth[child]).toBe(tree.depth[node]! + 1);
          left += tree.width[child]!;
          sum += tree.value[child]!;
        }
        expect(left).toBeLessThanOrEqual(tree.left[node]! + tree.width[node]! + 1e-9);
        expect(sum).toBe(tree.value[node]);
        if (tree.width[node]! > 0)
          expect(nodeAt(tree, tree.depth[node]!, tree.left[node]! + tree.width[node]! / 2)).toBe(node);
      }
      expect(tree.rows.reduce((total, row) => total + row.length, 0)).toBe(tree.size);
    }
  });

  it("finds nothing beside the stacks", () => {
    const tree = treeOf(STACKS);
    expect(nodeAt(tree, 1, 1.5)).toBe(-1);
    expect(nodeAt(tree, 9, 0.5)).toBe(-1);
    expect(nodeAt(tree, 2, 0.95)).toBe(-1); // below `other`, which has no callees
  });

  it("finds a node again in other data by its path", () => {
    const node = nodeNamed(treeOf(STACKS), "main;work;leaf");
    const hash = treeOf(STACKS).pathHash[node]!;
    const later = treeOf(["x;y 50", "main;work;leaf 1"]);
    expect(findByHash(later, hash)).toBe(nodeNamed(later, "main;work;leaf"));
    expect(findByHash(later, 12345)).toBe(-1);
    expect(pathOf(later, nodeNamed(later, "main;work")).map((at) => nameOf(later, at))).toEqual([
      "main",
      "work",
    ]);
  });

  it("draws an empty selection", () => {
    const tree = treeOf([]);
    expect([tree.size, tree.width[0], tree.rows.length]).toEqual([1, 0, 1]);
  });

  it("builds 100,000 frames of depth without recursion", () => {
    const size = 100_000;
    const frames = {
      id: ["", "a"],
      name: ["", "a"],
      file: ["", ""],
      line: [0, 0],
      mapping: ["", ""],
      kind: ["", ""],
    };
    const nodes = {
      frame: Array.from({ length: size }, (_, i) => (i === 0 ? 0 : 1)),
      parent: Array.from({ length: size }, (_, i) => i - 1),
      value: Array<number>(size).fill(1),
      self: Array.from({ length: size }, (_, i) => (i === size - 1 ? 1 : 0)),
    };
    const tree = buildTree(frames, nodes, { total: 1, baseTotal: null, unit: "count" });
    expect([tree.rows.length, tree.end[0], functionsOf(tree).total[0]]).toEqual([size, size, 1]);
  });

  it.each([
    ["a parent after its child", { parent: [-1, 2, 0] }, "parent"],
    ["a frame that is not there", { frame: [0, 1, 7] }, "frame 7"],
    ["a negative value", { value: [2, -1, 1] }, "value -1"],
    ["columns of two lengths", { self: [0, 1] }, "lengths"],
  ])("refuses %s", (_, change, message) => {
    const frames = {
      id: ["", "a"],
      name: ["", "a"],
      file: ["", ""],
      line: [0, 0],
      mapping: ["", ""],
      kind: ["", ""],
    };
    const nodes = { frame: [0, 1, 1], parent: [-1, 0, 1], value: [2, 2, 1], self: [0, 1, 1], ...change };
    const build = () => buildTree(frames, nodes, { total: 2, baseTotal: null, unit: "count" });
    expect(build).toThrow(MalformedInput);
    expect(build).toThrow(message);
  });
});

describe("diff", () => {
  it("gives room to what vanished and to what is new", () => {
    const tree = treeOf(["main;new 10"], ["main;old 40"]);
    const [now, before] = [nodeNamed(tree, "main;new"), nodeNamed(tree, "main;old")];
    expect([tree.width[now], tree.width[before]]).toEqual([0.5, 0.5]);
    expect([tree.value[before], tree.baseValue![before], tree.baseValue![now]]).toEqual([0, 40, 0]);
  });

  it("shows one side in full width when the other is empty", () => {
    const tree = treeOf(["main 0"], ["main 4"]);
    expect(tree.width[nodeNamed(tree, "main")]).toBe(1);
  });
});

describe("functions", () => {
  it("counts a recursive function once a stack", () => {
    const rows = functionsOf(treeOf(["f;g;f;f 5", "g;f 2", "f 1"]));
    const of = new Map(Array.from(rows.frame, (frame, i) => [frame, [rows.self[i], rows.total[i]]]));
    expect([...of.values()]).toEqual([
      [8, 8],
      [0, 7],
    ]);
  });
});

describe("focus on subtree", () => {
  it("makes the node the root and keeps all that is below", () => {
    const tree = treeOf(STACKS);
    const cut = buildTree(tree.frames, subtree(tree, nodeNamed(tree, "main;work")), {
      total: 4,
      baseTotal: null,
      unit: "count",
    });
    expect([nameOf(cut, 0), cut.value[0], cut.self[0], cut.size]).toEqual(["work", 4, 1, 2]);
    expect(nameOf(cut, 1)).toBe("leaf");
  });

  it("keeps the baseline", () => {
    const tree = treeOf(["a;b 1"], ["a;b 3", "a 1"]);
    expect(subtree(tree, nodeNamed(tree, "a;b")).baseValue).toEqual(Float64Array.of(3));
  });
});

describe("sandwich", () => {
  it("merges callers and callees over all places", () => {
    const tree = treeOf(["a;f;x 1", "b;c;f;x 2", "b;f;y 4", "b 8"]);
    const f = tree.frames.name.indexOf("f");
    const { callers, callees } = sandwichOf(tree, f);
    const totals = { total: 15, baseTotal: null, unit: "count" };
    const [up, down] = [buildTree(tree.frames, callers, totals), buildTree(tree.frames, callees, totals)];
    expect([up.value[0], down.value[0]]).toEqual([7, 7]);
    expect(childrenOf(up, 0).map((n) => [nameOf(up, n), up.value[n], up.self[n]])).toEqual([
      ["b", 4, 4],
      ["c", 2, 0],
      ["a", 1, 1],
    ]);
    expect(childrenOf(down, 0).map((n) => [nameOf(down, n), down.value[n]])).toEqual([
      ["y", 4],
      ["x", 3],
    ]);
  });

  it("counts a recursive function once, at its outermost call", () => {
    const tree = treeOf(["a;f;g;f;h 3"]);
    const { callers, callees } = sandwichOf(tree, tree.frames.name.indexOf("f"));
    expect([callers.value[0], callers.frame.length]).toEqual([3, 2]);
    expect(Array.from(callees.frame, (frame) => tree.frames.name[frame])).toEqual(["f", "g", "f", "h"]);
  });
});
