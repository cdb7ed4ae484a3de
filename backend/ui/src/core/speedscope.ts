/**
 * Reads speedscope's JSON (https://www.speedscope.app/file-format-schema.json): profiles of type `sampled`
 * (stacks with weights) and `evented` (frames that open and close).
 */
import { MalformedInput } from "./model";
import type { OnProgress } from "./reading";
import { LIMITS, type Recording, RecordingBuilder, capped, kindOf } from "./recording";

type Json = Record<string, unknown>;

function object(value: unknown, what: string): Json {
  if (typeof value !== "object" || value === null || Array.isArray(value))
    throw new MalformedInput(`${what} is no object`);
  return value as Json;
}

function array(value: unknown, what: string): unknown[] {
  if (!Array.isArray(value)) throw new MalformedInput(`${what} is no list`);
  return value as unknown[];
}

function number(value: unknown, what: string): number {
  if (typeof value !== "number" || !Number.isFinite(value)) throw new MalformedInput(`${what} is no number`);
  return value;
}

const text = (value: unknown): string => (typeof value === "string" ? value : "");

/** Units as ours, and the factor to them. */
const UNITS: ReadonlyMap<string, [string, number]> = new Map(
  Object.entries<[string, number]>({
    nanoseconds: ["nanoseconds", 1],
    microseconds: ["nanoseconds", 1e3],
    milliseconds: ["nanoseconds", 1e6],
    seconds: ["nanoseconds", 1e9],
    bytes: ["bytes", 1],
    none: ["count", 1],
  }),
);

/** Throws MalformedInput. `file` is shown to the user. */
export function decodeSpeedscope(source: string, file: string, onProgress?: OnProgress): Recording {
  let parsed: unknown;
  try {
    parsed = JSON.parse(source);
  } catch (error) {
    throw new MalformedInput(`this is no JSON: ${error instanceof Error ? error.message : String(error)}`);
  }
  return capped(() => decode(object(parsed, "the file"), file, onProgress));
}

function decode(root: Json, file: string, onProgress?: OnProgress): Recording {
  const builder = new RecordingBuilder();
  const listed = array(
    object(root.shared ?? null, "`shared` (is it a speedscope file?)").frames,
    "`shared.frames`",
  );
  const frames = listed.map((item, i) => {
    const frame = object(item, `frame ${i}`);
    const source = text(frame.file);
    const line = typeof frame.line === "number" && frame.line > 0 ? Math.floor(frame.line) : 0;
    return builder.frames.add(text(frame.name) || `frame ${i}`, source, line, "", kindOf(source, ""));
  });
  const frameAt = (value: unknown, where: string): number => {
    const found = frames[number(value, where)];
    if (found === undefined)
      throw new MalformedInput(`${where} refers to frame ${String(value)}, which is not there`);
    return found;
  };
  const profiles = array(root.profiles, "`profiles`");
  if (profiles.length > LIMITS.series) builder.note(`profile after the first ${LIMITS.series}s, left out`);
  const titles = profiles.slice(0, LIMITS.series).map((item, i) => {
    onProgress?.({ step: "Decoding", share: i / profiles.length });
    const profile = object(item, `profile ${i}`);
    const [unit, factor] = UNITS.get(text(profile.unit)) ?? ["count", 1];
    const add = (stack: readonly number[], weight: number): void => builder.add(i, stack, weight * factor);
    if (profile.type === "sampled") readSampled(profile, `profile ${i}`, frameAt, add);
    else if (profile.type === "evented") readEvented(profile, `profile ${i}`, frameAt, add);
    else
      throw new MalformedInput(
        `profile ${i} has the type ${JSON.stringify(profile.type)}: sampled or evented is known`,
      );
    return { title: text(profile.name) || `Profile ${i + 1}`, unit };
  });
  if (titles.length === 0) throw new MalformedInput("there is no profile in the file");
  return builder.finish(file, "speedscope", titles);
}

type FrameAt = (value: unknown, where: string) => number;
type Add = (stack: readonly number[], weight: number) => void;

function readSampled(profile: Json, where: string, frameAt: FrameAt, add: Add): void {
  const samples = array(profile.samples, `${where}: samples`);
  const weights = array(profile.weights, `${where}: weights`);
  if (samples.length !== weights.length) {
    throw new MalformedInput(`${where} has ${samples.length} samples and ${weights.length} weights`);
  }
  samples.forEach((sample, i) => {
    const stack = array(sample, `${where}: sample ${i}`).map((value) =>
      frameAt(value, `${where}: sample ${i}`),
    );
    add(stack, number(weights[i], `${where}: weight ${i}`));
  });
}

function readEvented(profile: Json, where: string, frameAt: FrameAt, add: Add): void {
  const open: number[] = [];
  let last = number(profile.startValue ?? 0, `${where}: startValue`);
  array(profile.events, `${where}: events`).forEach((item, i) => {
    const event = object(item, `${where}: event ${i}`);
    const at = number(event.at, `${where}: event ${i}`);
    if (at < last) throw new MalformedInput(`${where}: event ${i} is earlier than the one before it`);
    if (open.length > 0) add(open, at - last);
    last = at;
    const frame = frameAt(event.frame, `${where}: event ${i}`);
    if (event.type === "O") {
      open.push(frame);
      // Time is charged per event: without a bound, deep nesting would cost the square of the file's size.
      if (open.length > LIMITS.depth)
        throw new MalformedInput(`${where}: more than ${LIMITS.depth} frames are open at once`);
    } else if (event.type !== "C" || open.pop() !== frame) {
      throw new MalformedInput(`${where}: event ${i} closes a frame that is not the innermost one`);
    }
  });
}
