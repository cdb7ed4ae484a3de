/** The server's answers as they are on the wire (docs/design/0002-backend-api.md), and their checked forms. */
import { buildTree, type StackTree } from "../core/tree";
import { type Frames, type FunctionRows, MalformedInput, type NodeColumns, type Totals } from "../core/model";

export interface Range {
  from: number;
  to: number;
}

/** The head that most answers share. */
export interface Head {
  window: Range;
  base_window: Range | null;
  type: string;
  unit: string;
  total: number;
  base_total: number | null;
  samples: number;
}

export interface WireFrames {
  id: string[];
  name: number[];
  file: number[];
  line: number[];
  mapping: number[];
  kind: number[];
}

export interface WireNodes {
  frame: number[];
  parent: number[];
  value: number[];
  self: number[];
  base_value?: number[];
  base_self?: number[];
}

export interface Pruned {
  nodes: number;
  value: number;
}

interface WithFrames extends Head {
  strings: string[];
  frames: WireFrames;
}

export interface FlamegraphAnswer extends WithFrames {
  nodes: WireNodes;
  pruned: Pruned;
}

export interface SandwichAnswer extends WithFrames {
  frame: number;
  callers: WireNodes;
  callees: WireNodes;
  pruned: Pruned;
}

export interface FunctionsAnswer extends WithFrames {
  rows: { frame: number[]; self: number[]; total: number[]; base_self?: number[]; base_total?: number[] };
  count: number;
  more: boolean;
}

export interface ExecutablesAnswer extends Head {
  strings: string[];
  rows: {
    name: number[];
    path: number[];
    build_id: number[];
    kind: number[];
    self: number[];
    total: number[];
    functions: number[];
    unnamed: number[];
  };
  count: number;
  more: boolean;
}

export interface TracesAnswer extends WithFrames {
  traces: {
    id: string[];
    value: number[];
    samples: number[];
    first: number[];
    last: number[];
    labels: Record<string, string>[];
    stack: number[][];
  };
  count: number;
  more: boolean;
}

export interface StatusAnswer {
  version: string;
  now: number;
  newest: number | null;
  oldest: number | null;
  samples: number;
  retention_ms: number | null;
  viewer: { name: string; namespaces: string[] | null };
}

export interface ProfileType {
  id: string;
  title: string;
  unit: string;
  total: number;
}

export interface ProfileTypesAnswer {
  window: Range;
  types: ProfileType[];
}

export interface LabelsAnswer {
  labels: { name: string; values: number }[];
}

export interface LabelValuesAnswer {
  label: string;
  values: { value: string; total: number }[];
  more: boolean;
}

export interface TimelineAnswer {
  window: Range;
  type: string;
  unit: string;
  total: number;
  start: number;
  step: number;
  series: { label: string; total: number; values: number[] }[];
  rest: number[] | null;
}

/** Texts in place of indices. Throws MalformedInput for columns that do not fit together. */
export function readFrames(answer: { strings: string[]; frames: WireFrames }): Frames {
  const { strings, frames } = answer;
  const size = frames.name.length;
  const text = (column: number[], what: string): string[] => {
    if (column.length !== size) throw new MalformedInput(`the column frames.${what} has the wrong length`);
    return column.map((index) => {
      const found = strings[index];
      if (found === undefined)
        throw new MalformedInput(`frames.${what} refers to text ${index}, which is not there`);
      return found;
    });
  };
  if (frames.id.length !== size || frames.line.length !== size) {
    throw new MalformedInput("the columns of frames have different lengths");
  }
  return {
    id: frames.id,
    name: text(frames.name, "name"),
    file: text(frames.file, "file"),
    line: frames.line,
    mapping: text(frames.mapping, "mapping"),
    kind: text(frames.kind, "kind"),
  };
}

function columns(nodes: WireNodes): NodeColumns {
  return {
    frame: nodes.frame,
    parent: nodes.parent,
    value: nodes.value,
    self: nodes.self,
    baseValue: nodes.base_value,
    baseSelf: nodes.base_self,
  };
}

export function totalsOf(head: Head): Totals {
  return { total: head.total, baseTotal: head.base_total, unit: head.unit };
}

export function readFlamegraph(answer: FlamegraphAnswer): StackTree {
  return buildTree(readFrames(answer), columns(answer.nodes), totalsOf(answer));
}

export interface Sandwich {
  frame: number;
  callers: StackTree;
  callees: StackTree;
}

export function readSandwich(answer: SandwichAnswer): Sandwich {
  const frames = readFrames(answer);
  const half = (nodes: WireNodes): StackTree => buildTree(frames, columns(nodes), totalsOf(answer));
  return { frame: answer.frame, callers: half(answer.callers), callees: half(answer.callees) };
}

export interface FunctionTable {
  frames: Frames;
  rows: FunctionRows;
  totals: Totals;
  /** Functions in all, of which `rows` holds the first. */
  count: number;
}

export function readFunctions(answer: FunctionsAnswer): FunctionTable {
  const { frame, self, total, base_self, base_total } = answer.rows;
  return {
    frames: readFrames(answer),
    rows: { frame, self, total, baseSelf: base_self, baseTotal: base_total },
    totals: totalsOf(answer),
    count: answer.count,
  };
}
