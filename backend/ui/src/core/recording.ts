/**
 * A profile read from a file that somebody dropped on the page. Nothing of it leaves the browser.
 *
 * The file may be anything: sizes, depths and counts are capped, and every failure is a MalformedInput that says
 * what was wrong.
 */
import { FrameTable, TreeBuilder } from "./builder";
import { type Frames, MalformedInput, type NodeColumns, type Unit } from "./model";

export interface RecordingSeries {
  title: string;
  unit: Unit;
  nodes: NodeColumns;
  total: number;
}

export interface Recording {
  file: string;
  format: "pprof" | "speedscope";
  frames: Frames;
  series: RecordingSeries[];
  /** What the reader should know: stacks that were cut, values that were left out. */
  notes: string[];
}

export const LIMITS = {
  /** Of the file after decompression. */
  bytes: 512 * 2 ** 20,
  frames: 2 ** 20,
  nodes: 2 ** 21,
  depth: 2048,
  series: 64,
} as const;

/** Frames and one tree a series, while a file is read. */
export class RecordingBuilder {
  readonly frames = new FrameTable(LIMITS.frames);
  private readonly notes = new Map<string, number>();
  private readonly builders: TreeBuilder[] = [];

  note(text: string): void {
    this.notes.set(text, (this.notes.get(text) ?? 0) + 1);
  }

  /** Adds a stack, leaf last, to series `index`; too deep ones lose their leaves. */
  add(index: number, stack: readonly number[], value: number): void {
    if (!Number.isFinite(value) || value < 0) {
      this.note("value that is negative or no number, left out");
      return;
    }
    if (value === 0) return;
    if (stack.length > LIMITS.depth) this.note(`stack deeper than ${LIMITS.depth} frames, cut`);
    this.builders[index] ??= new TreeBuilder(LIMITS.frames, LIMITS.nodes);
    this.builders[index].add(stack.length > LIMITS.depth ? stack.slice(0, LIMITS.depth) : stack, value);
  }

  finish(file: string, format: Recording["format"], titles: { title: string; unit: Unit }[]): Recording {
    const series = titles.map(({ title, unit }, i) => {
      const builder = this.builders[i] ?? new TreeBuilder(LIMITS.frames, LIMITS.nodes);
      return { title, unit, nodes: builder.columns(), total: builder.value[0]! };
    });
    const notes = [...this.notes].map(([text, times]) => `${times} × ${text}`);
    return { file, format, frames: this.frames, series, notes };
  }
}

/** The runtime by the source file's ending, which pprof and speedscope do not say; code of a file is native. */
export function kindOf(file: string, mapping: string): string {
  if (/^\[(kernel|guest\.kernel|vmlinux)|\.ko(\.|$)/.test(mapping)) return "kernel";
  const ending = /\.([A-Za-z+]+)$/.exec(file)?.[1]?.toLowerCase() ?? "";
  return ENDINGS.get(ending) ?? (mapping === "" ? "" : "native");
}

const ENDINGS: ReadonlyMap<string, string> = new Map(
  Object.entries({
    go: "go",
    cpython: "py pyx",
    jvm: "java kt scala clj",
    v8js: "js mjs cjs ts",
    ruby: "rb",
    php: "php",
    perl: "pl pm",
    beam: "erl ex",
    dotnet: "cs",
    luajit: "lua",
    rust: "rs",
    native: "c cc cpp cxx h hpp s",
  }).flatMap(([kind, endings]) => endings.split(" ").map((ending) => [ending, kind] as const)),
);

/** Turns the caps' RangeErrors into the error that the page shows. */
export function capped<T>(read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (error instanceof RangeError)
      throw new MalformedInput(`the file is larger than this page shows: ${error.message}`);
    throw error;
  }
}
