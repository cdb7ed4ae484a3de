/**
 * The picture of a selection: tree, function table and sandwich, from the backend or from a dropped file.
 * Views do not know which of the two it was.
 */
import { useMemo, useRef } from "react";
import {
  type FlamegraphAnswer,
  type FunctionTable,
  type FunctionsAnswer,
  type Head,
  type Sandwich,
  type SandwichAnswer,
  readFlamegraph,
  readFunctions,
  readSandwich,
} from "../api/answers";
import type { ApiError } from "../api/client";
import { functionsOf, sandwichOf, subtree } from "../core/builder";
import type { PageState } from "../core/page_state";
import type { Recording } from "../core/recording";
import { selectionParameters } from "../core/selection";
import { type StackTree, buildTree, childrenOf } from "../core/tree";
import { type Answer, useAnswer } from "./use_answer";

export interface Picture {
  tree: StackTree | null;
  /** Names of the frames above the root of `tree`, when it is focused on a subtree. */
  trail: { id: string; name: string }[];
  /** The subtree of the link is not in this selection. */
  lost: boolean;
  table: FunctionTable | null;
  sandwich: Sandwich | null;
  head: Head | null;
  /** Nodes that the backend left out because they are small. */
  pruned: number;
  error: ApiError | null;
  loading: boolean;
  retry: () => void;
}

const MOST_ROWS = 3000;

/** The node that frame ids lead to from the root, or -1. */
export function nodeByIds(tree: StackTree, ids: readonly string[]): number {
  let node = 0;
  for (const id of ids) {
    const next = childrenOf(tree, node).find((child) => tree.frames.id[tree.frame[child]!] === id);
    if (next === undefined) return -1;
    node = next;
  }
  return node;
}

interface Focused {
  tree: StackTree;
  trail: Picture["trail"];
  lost: boolean;
}

/** The tree cut down to the subtree at `path`. */
export function focusOn(tree: StackTree, path: readonly string[]): Focused {
  const node = nodeByIds(tree, path);
  if (path.length === 0 || node < 0) return { tree, trail: [], lost: node < 0 };
  const trail: Picture["trail"] = [];
  for (let at = node; at > 0; at = tree.parent[at]!) {
    trail.unshift({ id: tree.frames.id[tree.frame[at]!]!, name: tree.frames.name[tree.frame[at]!]! });
  }
  return { tree: buildTree(tree.frames, subtree(tree, node), tree.totals), trail, lost: false };
}

/** `want`: what the current view shows, so that nothing else is asked for. */
export function useServerPicture(
  state: PageState,
  active: boolean,
  want: "graph" | "table" | "both",
  tick: number,
): Picture {
  const ready = active && state.type !== "";
  const query = selectionParameters(state);
  const flame = useAnswer<FlamegraphAnswer, { tree: StackTree; head: Head; pruned: number }>(
    ready && want !== "table" && !state.sandwich ? "flamegraph" : null,
    query,
    (wire) => ({ tree: readFlamegraph(wire), head: wire, pruned: wire.pruned.nodes }),
    tick,
  );
  const rows = new URLSearchParams(query);
  rows.set("limit", String(MOST_ROWS));
  rows.set("sort", state.sort);
  if (state.sort === "diff" && !state.base) rows.set("sort", "self");
  // The page searches the rows it has; where the backend kept some back, it must search too. An expression is the page's own.
  const search = state.search.trim();
  const some = useRef(false);
  if (some.current && search && !search.startsWith("/")) rows.set("search", search);
  const table = useAnswer<FunctionsAnswer, { table: FunctionTable; head: Head }>(
    ready && want !== "graph" ? "functions" : null,
    rows,
    (wire) => {
      if (!rows.has("search")) some.current = wire.more;
      return { table: readFunctions(wire), head: wire };
    },
    tick,
  );
  const around = new URLSearchParams(query);
  around.set("frame", state.sandwich);
  const sandwich = useAnswer<SandwichAnswer, { sandwich: Sandwich; head: Head }>(
    ready && state.sandwich && want !== "table" ? "sandwich" : null,
    around,
    (wire) => ({ sandwich: readSandwich(wire), head: wire }),
    tick,
  );
  const path = state.path;
  const whole = flame.data?.tree ?? null;
  const focused = useMemo(() => (whole ? focusOn(whole, path) : null), [whole, path]);
  const answers: Answer<unknown>[] = [flame, table, sandwich];
  return {
    tree: focused?.tree ?? null,
    trail: focused?.trail ?? [],
    lost: focused?.lost ?? false,
    table: table.data?.table ?? null,
    sandwich: sandwich.data?.sandwich ?? null,
    head: flame.data?.head ?? sandwich.data?.head ?? table.data?.head ?? null,
    pruned: flame.data?.pruned ?? 0,
    error: answers.find((answer) => answer.error)?.error ?? null,
    loading: answers.some((answer) => answer.loading),
    retry: () => answers.forEach((answer) => answer.error && answer.retry()),
  };
}

/** The same from a file that was dropped on the page. */
export function useFilePicture(recording: Recording | null, series: number, state: PageState): Picture {
  const { path, sandwich: frameId } = state;
  const whole = useMemo(() => {
    const chosen = recording?.series[series];
    if (!recording || !chosen) return null;
    return buildTree(recording.frames, chosen.nodes, {
      total: chosen.total,
      baseTotal: null,
      unit: chosen.unit,
    });
  }, [recording, series]);
  return useMemo(() => {
    const focused = whole ? focusOn(whole, path) : null;
    const tree = focused?.tree ?? null;
    const rows = tree ? functionsOf(tree) : null;
    const frame = tree && frameId ? tree.frames.id.indexOf(frameId) : -1;
    let sandwich: Sandwich | null = null;
    if (tree && frame > 0) {
      const { callers, callees } = sandwichOf(tree, frame);
      sandwich = {
        frame,
        callers: buildTree(tree.frames, callers, tree.totals),
        callees: buildTree(tree.frames, callees, tree.totals),
      };
    }
    const head: Head | null = tree && {
      window: { from: 0, to: 0 },
      base_window: null,
      type: "",
      unit: tree.totals.unit,
      total: tree.totals.total,
      base_total: null,
      samples: 0,
    };
    return {
      tree,
      trail: focused?.trail ?? [],
      lost: focused?.lost ?? false,
      table:
        tree && rows ? { frames: tree.frames, rows, totals: tree.totals, count: rows.frame.length } : null,
      sandwich,
      head,
      pruned: 0,
      error: null,
      loading: false,
      retry: () => undefined,
    };
  }, [whole, path, frameId]);
}
