import { describe, expect, it } from "vitest";
import { MalformedInput } from "../src/core/model";
import { openRecording } from "../src/core/open_file";
import { decodePprof } from "../src/core/pprof";
import { LIMITS, type Recording, kindOf } from "../src/core/recording";
import { decodeSpeedscope } from "../src/core/speedscope";
import { buildTree } from "../src/core/tree";
import { type Plan, gzip, int, message, packed, pprof, text } from "./pprof_writer";
import { random } from "./stacks";

const PLAN: Plan = {
  types: [
    ["samples", "count"],
    ["cpu", "nanoseconds"],
  ],
  mappings: [{ id: 1, file: "/usr/bin/app" }],
  functions: [
    { id: 1, name: "main", file: "app.c", line: 10 },
    { id: 2, name: "inlined", file: "app.c", line: 30 },
    { id: 3, name: "outer", file: "app.c", line: 20 },
  ],
  locations: [
    { id: 1, mapping: 1, address: 0x10, lines: [[1, 12]] },
    {
      id: 2,
      mapping: 1,
      address: 0x20,
      lines: [
        [2, 31],
        [3, 22],
      ],
    },
    { id: 3, mapping: 1, address: 0xabc, lines: [] },
  ],
  samples: [
    { stack: [2, 1], values: [3, 30] },
    { stack: [3, 1], values: [1, 10] },
    { stack: [2, 1], values: [1, 10] },
  ],
};

/** Stacks of a series as text, with their self value. */
function stacks(recording: Recording, index: number): string[] {
  const { nodes } = recording.series[index]!;
  const path = (node: number): string[] =>
    node === 0 ? [] : [...path(nodes.parent[node]!), recording.frames.name[nodes.frame[node]!]!];
  return Array.from(nodes.frame, (_, node) => `${path(node).join(";")} ${nodes.self[node]}`)
    .filter((line) => !line.endsWith(" 0"))
    .toSorted();
}

describe("pprof", () => {
  it("gives every sample type its tree, inlined calls below their callers", () => {
    const recording = decodePprof(pprof(PLAN), "x");
    expect(recording.series.map(({ title, unit, total }) => [title, unit, total])).toEqual([
      ["samples", "count", 5],
      ["cpu", "nanoseconds", 50],
    ]);
    expect(stacks(recording, 1)).toEqual(["main;app+0xabc 10", "main;outer;inlined 40"]);
    const main = recording.frames.name.indexOf("main");
    expect(recording.frames.file[main]).toBe("app.c");
    expect([
      recording.frames.line[main],
      recording.frames.mapping[main],
      recording.frames.kind[main],
    ]).toEqual([10, "/usr/bin/app", "native"]);
    expect(recording.notes).toEqual([]);
  });

  it("is the same gzipped, and with unpacked numbers", async () => {
    const plain = await openRecording("a", new Blob([pprof(PLAN)]));
    expect(await openRecording("a", new Blob([await gzip(pprof(PLAN))]))).toEqual(plain);
    const unpacked = Uint8Array.from([
      ...message(1, int(1, 1), int(2, 2)),
      ...message(2, int(1, 7), int(2, 4)),
      ...message(4, int(1, 7), message(4, int(1, 1))),
      ...message(5, int(1, 1), int(2, 3)),
      ...["", "samples", "count", "f"].flatMap((value) => text(6, value)),
    ]);
    expect(stacks(decodePprof(unpacked, "x"), 0)).toEqual(["f 4"]);
  });

  it("says what it left out", () => {
    const broken = { ...PLAN, samples: [{ stack: [9, 1], values: [2, -5] }] };
    const recording = decodePprof(pprof(broken), "x");
    expect(stacks(recording, 0)).toEqual(["main 2"]);
    expect(recording.notes.join()).toContain("location that is not in the file");
    expect(recording.notes.join()).toContain("negative");
  });

  it("cuts stacks that are too deep", () => {
    const deep = { ...PLAN, samples: [{ stack: Array<number>(LIMITS.depth + 500).fill(1), values: [1, 1] }] };
    const recording = decodePprof(pprof(deep), "x");
    expect(recording.notes.join()).toContain("cut");
    expect(recording.series[0]!.nodes.frame.length).toBe(LIMITS.depth + 1);
  });

  it.each([
    ["nothing", new Uint8Array()],
    ["text", new TextEncoder().encode("hello, this is no profile")],
    ["a length beyond the end", Uint8Array.of(0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f)],
    ["a number without end", Uint8Array.from(Array<number>(20).fill(0xff))],
    ["no sample type", Uint8Array.from(text(6, ""))],
    ["groups", Uint8Array.of(0x0b, 0x0c)],
  ])("refuses %s with a reason", (_, data) => {
    expect(() => decodePprof(data, "x")).toThrow(MalformedInput);
  });

  it("gives a tree or a reason for any damage", () => {
    const good = pprof(PLAN);
    let shown = 0;
    for (let seed = 1; seed <= 3000; seed++) {
      const next = random(seed);
      const data = good.slice(0, next() < 0.3 ? Math.floor(next() * good.length) : good.length);
      for (let i = 0; i < 1 + next() * 6; i++)
        data[Math.floor(next() * data.length)] = Math.floor(next() * 256);
      try {
        const recording = decodePprof(data, "x");
        for (const { nodes, total, unit } of recording.series) {
          buildTree(recording.frames, nodes, { total, baseTotal: null, unit });
        }
        shown++;
      } catch (error) {
        expect(error, `seed ${seed}`).toBeInstanceOf(MalformedInput);
      }
    }
    expect(shown).toBeGreaterThan(100);
  });

  it("gives a reason for random bytes", () => {
    for (let seed = 1; seed <= 2000; seed++) {
      const next = random(seed);
      const data = Uint8Array.from({ length: Math.floor(next() * 200) }, () => Math.floor(next() * 256));
      expect(() => decodePprof(data, "x"), `seed ${seed}`).toThrow(MalformedInput);
    }
  });
});

describe("compressed files", () => {
  it("stop at a size, however well they are packed", async () => {
    const bomb = await gzip(new Uint8Array(4 * 2 ** 20));
    expect(bomb.byteLength).toBeLessThan(10_000);
    await expect(openRecording("bomb.gz", new Blob([bomb]), undefined, 2 ** 20)).rejects.toThrow(
      "more than 1 MiB",
    );
  });

  it("that are cut or damaged say so", async () => {
    const whole = new Uint8Array(await gzip(pprof(PLAN)));
    for (const cut of [3, 12, whole.length - 1]) {
      // oxlint-disable-next-line no-await-in-loop
      await expect(openRecording("x", new Blob([whole.slice(0, cut)]))).rejects.toThrow(MalformedInput);
    }
    await expect(openRecording("x", new Blob([]))).rejects.toThrow("empty");
  });
});

const SPEEDSCOPE = {
  $schema: "https://www.speedscope.app/file-format-schema.json",
  shared: { frames: [{ name: "main", file: "a.py", line: 3 }, { name: "work" }, { name: "leaf" }] },
  profiles: [
    {
      type: "sampled",
      name: "thread 1",
      unit: "milliseconds",
      startValue: 0,
      endValue: 6,
      samples: [
        [0, 1],
        [0, 1, 2],
      ],
      weights: [2, 4],
    },
    {
      type: "evented",
      name: "thread 2",
      unit: "none",
      startValue: 10,
      endValue: 20,
      events: [
        { type: "O", frame: 0, at: 10 },
        { type: "O", frame: 2, at: 13 },
        { type: "C", frame: 2, at: 18 },
        { type: "C", frame: 0, at: 20 },
      ],
    },
  ],
};

describe("speedscope", () => {
  it("reads sampled and evented profiles", async () => {
    const content = new TextEncoder().encode(`\n ${JSON.stringify(SPEEDSCOPE)}`);
    const recording = await openRecording("x.json", new Blob([content]));
    expect(recording.series.map(({ title, unit, total }) => [title, unit, total])).toEqual([
      ["thread 1", "nanoseconds", 6e6],
      ["thread 2", "count", 10],
    ]);
    expect(stacks(recording, 0)).toEqual(["main;work 2000000", "main;work;leaf 4000000"]);
    expect(stacks(recording, 1)).toEqual(["main 5", "main;leaf 5"]);
    expect(recording.frames.kind[recording.frames.name.indexOf("main")]).toBe("cpython");
  });

  const [sampled, evented] = SPEEDSCOPE.profiles as unknown as [object, object];
  it.each([
    ["no JSON", "{", "JSON"],
    ["another format", JSON.stringify({ traceEvents: [] }), "speedscope"],
    ["a list", "[]", "no object"],
    ["no profile", JSON.stringify({ ...SPEEDSCOPE, profiles: [] }), "no profile"],
    ["an unknown type", JSON.stringify({ ...SPEEDSCOPE, profiles: [{ type: "x" }] }), "x"],
    [
      "a frame that is not there",
      JSON.stringify({ ...SPEEDSCOPE, profiles: [{ ...sampled, samples: [[0], [7]] }] }),
      "frame 7",
    ],
    [
      "too few weights",
      JSON.stringify({ ...SPEEDSCOPE, profiles: [{ ...sampled, weights: [1] }] }),
      "1 weights",
    ],
    [
      "time that runs backwards",
      JSON.stringify({ ...SPEEDSCOPE, profiles: [{ ...evented, events: [{ type: "O", frame: 0, at: 3 }] }] }),
      "earlier",
    ],
    [
      "frames that close in the wrong order",
      JSON.stringify({
        ...SPEEDSCOPE,
        profiles: [{ ...evented, events: [{ type: "C", frame: 0, at: 11 }] }],
      }),
      "innermost",
    ],
  ])("refuses %s with a reason", (_, source, reason) => {
    expect(() => decodeSpeedscope(source, "x")).toThrow(MalformedInput);
    expect(() => decodeSpeedscope(source, "x")).toThrow(reason);
  });

  it("gives a tree or a reason for any change of its values", () => {
    const odd: unknown[] = [null, -1, 1e308, "x", [], {}, true, 0.5, [[]], NaN];
    for (let seed = 1; seed <= 2000; seed++) {
      const next = random(seed);
      const changed: unknown = JSON.parse(JSON.stringify(SPEEDSCOPE), (_, value: unknown) =>
        next() < 0.04 ? odd[Math.floor(next() * odd.length)] : value,
      );
      try {
        const recording = decodeSpeedscope(JSON.stringify(changed) ?? "", "x");
        for (const { nodes, total, unit } of recording.series) {
          buildTree(recording.frames, nodes, { total, baseTotal: null, unit });
        }
      } catch (error) {
        expect(error, `seed ${seed}`).toBeInstanceOf(MalformedInput);
      }
    }
  });
});

it("guesses the runtime by the source file", () => {
  expect([
    kindOf("a.go", ""),
    kindOf("x.RB", ""),
    kindOf("", "[kernel.kallsyms]"),
    kindOf("", "/x/nf.ko"),
    kindOf("", ""),
  ]).toEqual(["go", "ruby", "kernel", "kernel", ""]);
  expect([kindOf("constructor", "/bin/x"), kindOf("x.constructor", "")]).toEqual(["native", ""]);
});

it("keeps the numbers of packed fields apart from later fields", () => {
  const data = Uint8Array.from([
    ...message(1, int(1, 0)),
    ...message(2, packed(1, [1, 300]), packed(2, [70_000])),
    ...text(6, ""),
  ]);
  expect(decodePprof(data, "x").series[0]!.total).toBe(70_000);
});
