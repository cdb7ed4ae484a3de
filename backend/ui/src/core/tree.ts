/**
 * The tree that the flame graph draws: nodes in depth-first order with their place on the x axis.
 *
 * Depth-first order makes a subtree a range (`end`), and the nodes of one depth come out sorted by x: both
 * drawing and hit tests are binary searches in `rows`, whatever the size of the tree. Built once per answer;
 * zooming and panning only read it.
 */
import { type Frames, MalformedInput, type NodeColumns, type Totals } from "./model";

export interface StackTree {
  readonly frames: Frames;
  readonly totals: Totals;
  readonly size: number;
  readonly frame: Int32Array;
  readonly parent: Int32Array;
  readonly depth: Int32Array;
  /** One past the last node of the subtree. */
  readonly end: Int32Array;
  readonly value: Float64Array;
  readonly self: Float64Array;
  readonly baseValue: Float64Array | null;
  readonly baseSelf: Float64Array | null;
  /** Left edge and width as fractions of the root. In a comparison: the mean of both shares. */
  readonly left: Float64Array;
  readonly width: Float64Array;
  /** For each depth its nodes from left to right. */
  readonly rows: Int32Array[];
  /** Hash of the names from the root down: survives a reload, unlike a node's number. */
  readonly pathHash: Uint32Array;
}

function fnv(hash: number, text: string): number {
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 16777619);
  return Math.imul(hash ^ 0xff, 16777619) >>> 0;
}

/** Throws MalformedInput if the columns are not a tree over `frames`. */
function check(frames: Frames, nodes: NodeColumns): void {
  const size = nodes.frame.length;
  const lengths = [nodes.parent, nodes.value, nodes.self, nodes.baseValue, nodes.baseSelf];
  if (size === 0 || lengths.some((column) => column && column.length !== size)) {
    throw new MalformedInput("the columns of the tree have different lengths, or no root");
  }
  for (let i = 0; i < size; i++) {
    const parent = nodes.parent[i]!;
    if (i === 0 ? parent !== -1 : !(parent >= 0 && parent < i && Number.isInteger(parent))) {
      throw new MalformedInput(`node ${i} of the tree has the impossible parent ${parent}`);
    }
    const frame = nodes.frame[i]!;
    if (!Number.isInteger(frame) || frame < 0 || frame >= frames.name.length) {
      throw new MalformedInput(`node ${i} of the tree refers to frame ${frame}, which is not there`);
    }
    for (const column of [nodes.value, nodes.self, nodes.baseValue, nodes.baseSelf]) {
      if (column && !(column[i]! >= 0 && column[i]! < Infinity)) {
        throw new MalformedInput(`node ${i} of the tree has the impossible value ${column[i]}`);
      }
    }
  }
}

/** What decides a node's width, as a fraction of everything. */
function weights(nodes: NodeColumns, totals: Totals): Float64Array {
  const root = nodes.value[0]!;
  const scale = root > 0 ? 1 / root : 0;
  const base = nodes.baseValue;
  const weight = Float64Array.from({ length: nodes.value.length }, (_, i) => nodes.value[i]! * scale);
  if (!base || totals.baseTotal === null) return weight;
  const baseScale = base[0]! > 0 ? 1 / base[0]! : 0;
  const sides = (scale > 0 ? 1 : 0) + (baseScale > 0 ? 1 : 0);
  for (let i = 0; i < weight.length; i++) {
    weight[i] = sides ? (weight[i]! + base[i]! * baseScale) / sides : 0;
  }
  return weight;
}

/** Children by weight, the heaviest first; equal ones by name, so that a reload does not shuffle them. */
function childLists(
  frames: Frames,
  nodes: NodeColumns,
  weight: Float64Array,
): { first: Int32Array; list: Int32Array } {
  const size = weight.length;
  const first = new Int32Array(size + 1);
  for (let i = 1; i < size; i++) first[nodes.parent[i]! + 1]!++;
  for (let i = 0; i < size; i++) first[i + 1]! += first[i]!;
  const list = new Int32Array(size - 1);
  const next = first.slice();
  for (let i = 1; i < size; i++) list[next[nodes.parent[i]!]!++] = i;
  const name = (node: number): string => frames.name[nodes.frame[node]!]!;
  const before = (a: number, b: number): number =>
    weight[b]! - weight[a]! || (name(a) < name(b) ? -1 : name(a) > name(b) ? 1 : a - b);
  for (let i = 0; i < size; i++) {
    if (first[i + 1]! - first[i]! > 1) list.subarray(first[i]!, first[i + 1]!).sort(before);
  }
  return { first, list };
}

/** Orders, places and indexes the nodes. O(n log n); throws MalformedInput. */
export function buildTree(frames: Frames, nodes: NodeColumns, totals: Totals): StackTree {
  check(frames, nodes);
  const size = nodes.frame.length;
  const weight = weights(nodes, totals);
  const { first, list } = childLists(frames, nodes, weight);
  const frameHash = frames.name.map((name, i) =>
    fnv(fnv(fnv(2166136261, name), frames.kind[i]!), frames.mapping[i]!),
  );

  const tree = {
    frame: new Int32Array(size),
    parent: new Int32Array(size),
    depth: new Int32Array(size),
    end: new Int32Array(size),
    value: new Float64Array(size),
    self: new Float64Array(size),
    baseValue: nodes.baseValue ? new Float64Array(size) : null,
    baseSelf: nodes.baseSelf ? new Float64Array(size) : null,
    left: new Float64Array(size),
    width: new Float64Array(size),
    pathHash: new Uint32Array(size),
  };
  const perDepth: number[][] = [];
  const order = new Int32Array(size);
  // A stack of our own: trees are as deep as the stacks that were sent, and those are not ours to trust.
  const todo = [0];
  const parents = [-1];
  const lefts = [0];
  let position = 0;
  while (todo.length > 0) {
    const node = todo.pop()!;
    const parent = parents.pop()!;
    let left = lefts.pop()!;
    const at = position++;
    order[at] = node;
    tree.frame[at] = nodes.frame[node]!;
    tree.parent[at] = parent;
    tree.depth[at] = parent < 0 ? 0 : tree.depth[parent]! + 1;
    tree.value[at] = nodes.value[node]!;
    tree.self[at] = nodes.self[node]!;
    if (tree.baseValue) tree.baseValue[at] = nodes.baseValue![node]!;
    if (tree.baseSelf) tree.baseSelf[at] = nodes.baseSelf![node]!;
    tree.left[at] = left;
    tree.width[at] = weight[node]!;
    tree.pathHash[at] =
      parent < 0 ? 1 : Math.imul(tree.pathHash[parent]! ^ frameHash[tree.frame[at]!]!, 2654435761) >>> 0;
    (perDepth[tree.depth[at]!] ??= []).push(at);
    const from = first[node]!;
    const to = first[node + 1]!;
    const starts: number[] = [];
    for (let i = from; i < to; i++) {
      starts.push(left);
      left += weight[list[i]!]!;
    }
    for (let i = to - 1; i >= from; i--) {
      todo.push(list[i]!);
      parents.push(at);
      lefts.push(starts[i - from]!);
    }
  }
  for (let i = size - 1; i >= 0; i--) {
    if (tree.end[i] === 0) tree.end[i] = i + 1;
    const parent = tree.parent[i]!;
    if (parent >= 0 && tree.end[parent]! < tree.end[i]!) tree.end[parent] = tree.end[i]!;
  }
  return { frames, totals, size, ...tree, rows: perDepth.map((row) => Int32Array.from(row)) };
}

/** The node at a depth and a fraction of the root's width, or -1. */
export function nodeAt(tree: StackTree, depth: number, x: number): number {
  const row = tree.rows[depth];
  if (!row) return -1;
  const found = row[lastNotAfter(tree, row, x)];
  return found !== undefined && x < tree.left[found]! + tree.width[found]! ? found : -1;
}

/** Index in `row` of the last node whose left edge is at or before x; -1 if there is none. */
export function lastNotAfter(tree: StackTree, row: Int32Array, x: number): number {
  let low = 0;
  let high = row.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (tree.left[row[middle]!]! <= x) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** From the root (excluded) down to the node. */
export function pathOf(tree: StackTree, node: number): number[] {
  const path: number[] = [];
  for (let at = node; at > 0; at = tree.parent[at]!) path.push(at);
  return path.reverse();
}

export function childrenOf(tree: StackTree, node: number): number[] {
  const children: number[] = [];
  for (let at = node + 1; at < tree.end[node]!; at = tree.end[at]!) children.push(at);
  return children;
}

/** The node with this path hash, or -1: the stack may be gone from the window. */
export function findByHash(tree: StackTree, hash: number): number {
  return tree.pathHash.indexOf(hash);
}
