/**
 * Reads pprof (profile.proto of google/pprof): the format of Go's runtime/pprof, of perf converters and of
 * `flameherd record`. Field numbers below are those of profile.proto.
 */
import { MalformedInput } from "./model";
import { Reader } from "./protobuf";
import type { OnProgress } from "./reading";
import { LIMITS, type Recording, RecordingBuilder, capped, kindOf } from "./recording";

/** Samples between two words on how far it is. */
const TELL_EVERY = 4096;

interface Parts {
  types: [type: number, unit: number][];
  samples: Reader[];
  locations: Reader[];
  functions: Reader[];
  mappings: Reader[];
  strings: string[];
}

function split(data: Uint8Array): Parts {
  const parts: Parts = { types: [], samples: [], locations: [], functions: [], mappings: [], strings: [] };
  const decoder = new TextDecoder();
  const reader = new Reader(data);
  while (!reader.done) {
    const [field, wire] = reader.tag();
    if (wire !== 2) reader.skip(wire);
    else if (field === 1) parts.types.push(readPair(reader.nested()));
    else if (field === 2) parts.samples.push(reader.nested());
    else if (field === 3) parts.mappings.push(reader.nested());
    else if (field === 4) parts.locations.push(reader.nested());
    else if (field === 5) parts.functions.push(reader.nested());
    else if (field === 6) parts.strings.push(decoder.decode(reader.bytes()));
    else reader.skip(wire);
  }
  return parts;
}

/** ValueType: fields 1 (type) and 2 (unit), indices of strings. */
function readPair(reader: Reader): [number, number] {
  const numbers = readNumbers(reader, 2);
  return [numbers[1]!, numbers[2]!];
}

/** The plain numbers of a message by field number, up to `most`. */
function readNumbers(reader: Reader, most: number): number[] {
  const numbers = Array<number>(most + 1).fill(0);
  while (!reader.done) {
    const [field, wire] = reader.tag();
    if (wire === 0 && field <= most) numbers[field] = reader.varint();
    else reader.skip(wire);
  }
  return numbers;
}

/** `Location`: 1 id, 2 mapping_id, 3 address, 4 repeated Line {1 function_id, 2 line}. Root first of its inlined calls. */
function readLocation(reader: Reader): {
  id: number;
  mapping: number;
  address: number;
  lines: [number, number][];
} {
  const location = { id: 0, mapping: 0, address: 0, lines: [] as [number, number][] };
  while (!reader.done) {
    const [field, wire] = reader.tag();
    if (field === 4 && wire === 2) location.lines.push(readPair(reader.nested()));
    else if (wire !== 0) reader.skip(wire);
    else if (field === 1) location.id = reader.varint();
    else if (field === 2) location.mapping = reader.varint();
    else if (field === 3) location.address = reader.varint();
    else reader.skip(wire);
  }
  return location;
}

/** Throws MalformedInput. `file` is shown to the user. */
export function decodePprof(data: Uint8Array, file: string, onProgress?: OnProgress): Recording {
  return capped(() => decode(data, file, onProgress));
}

function decode(data: Uint8Array, file: string, onProgress?: OnProgress): Recording {
  const parts = split(data);
  if (parts.types.length === 0 || parts.strings.length === 0) {
    throw new MalformedInput("this is no pprof file: it has no sample types");
  }
  const builder = new RecordingBuilder();
  const text = (index: number): string => parts.strings[index] ?? "";

  const mappings = new Map<number, string>();
  for (const message of parts.mappings) {
    const numbers = readNumbers(message, 6); // 1 id, 5 filename
    mappings.set(numbers[1]!, text(numbers[5]!));
  }
  const functions = new Map<number, { name: string; file: string; line: number }>();
  for (const message of parts.functions) {
    const numbers = readNumbers(message, 5); // 1 id, 2 name, 3 system_name, 4 filename, 5 start_line
    const name = text(numbers[2]!) || text(numbers[3]!);
    functions.set(numbers[1]!, { name, file: text(numbers[4]!), line: numbers[5]! });
  }
  const locations = new Map<number, number[]>();
  for (const message of parts.locations) {
    const location = readLocation(message);
    const mapping = mappings.get(location.mapping) ?? "";
    const frames = location.lines.map(([id, line]) => {
      const found = functions.get(id);
      const name = found?.name || unnamed(mapping, location.address);
      const source = found?.file ?? "";
      return builder.frames.add(name, source, found?.line || line, mapping, kindOf(source, mapping));
    });
    if (frames.length === 0) {
      frames.push(
        builder.frames.add(unnamed(mapping, location.address), "", 0, mapping, kindOf("", mapping)),
      );
    }
    locations.set(location.id, frames.reverse());
  }

  const types = parts.types.slice(0, LIMITS.series);
  for (const [done, message] of parts.samples.entries()) {
    if (done % TELL_EVERY === 0) onProgress?.({ step: "Decoding", share: done / parts.samples.length });
    const ids: number[] = [];
    const values: number[] = [];
    while (!message.done) {
      const [field, wire] = message.tag();
      if (field === 1) message.numbers(wire, ids, LIMITS.depth * 2);
      else if (field === 2) message.numbers(wire, values, LIMITS.series);
      else message.skip(wire);
    }
    const stack: number[] = [];
    for (let i = ids.length - 1; i >= 0; i--) {
      const frames = locations.get(ids[i]!);
      if (frames) for (const frame of frames) stack.push(frame);
      else builder.note("reference to a location that is not in the file, left out");
    }
    types.forEach((_, i) => builder.add(i, stack, values[i] ?? 0));
  }
  const titles = types.map(([type, unit]) => ({
    title: text(type) || "samples",
    unit: text(unit) || "count",
  }));
  return builder.finish(file, "pprof", titles);
}

function unnamed(mapping: string, address: number): string {
  const place = mapping.slice(mapping.lastIndexOf("/") + 1);
  return `${place ? `${place}+` : ""}0x${address.toString(16)}`;
}
