/** From a dropped file to a Recording: decompression with a cap, then the right decoder. */
import { MalformedInput } from "./model";
import { decodePprof } from "./pprof";
import { LIMITS, type Recording } from "./recording";
import { decodeSpeedscope } from "./speedscope";

const isGzip = (data: Uint8Array): boolean => data[0] === 0x1f && data[1] === 0x8b;

/** At most LIMITS.bytes; a bomb stops there instead of filling memory. */
async function readAll(stream: ReadableStream<Uint8Array>, most: number): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  const reader = stream.getReader();
  for (;;) {
    // Chunks arrive one after the other: there is nothing to do at once.
    // oxlint-disable-next-line no-await-in-loop
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > most) {
      // oxlint-disable-next-line no-await-in-loop
      await reader.cancel();
      throw new MalformedInput(`the file holds more than ${most / 2 ** 20} MiB`);
    }
    chunks.push(value);
  }
  const all = new Uint8Array(size);
  let at = 0;
  for (const chunk of chunks) {
    all.set(chunk, at);
    at += chunk.length;
  }
  return all;
}

async function gunzip(data: Uint8Array<ArrayBuffer>, most: number): Promise<Uint8Array> {
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("gzip"));
  try {
    return await readAll(stream as ReadableStream<Uint8Array>, most);
  } catch (error) {
    if (error instanceof MalformedInput) throw error;
    throw new MalformedInput(
      `the file is damaged: ${error instanceof Error ? error.message : String(error)}`,
    );
  }
}

/** Reads pprof (plain or gzip) or speedscope JSON (plain or gzip). Throws MalformedInput. */
export async function openRecording(
  name: string,
  content: ArrayBuffer,
  most: number = LIMITS.bytes,
): Promise<Recording> {
  let data: Uint8Array = new Uint8Array(content);
  if (data.length === 0) throw new MalformedInput("the file is empty");
  if (isGzip(data)) data = await gunzip(new Uint8Array(content), most);
  if (data.length > most) throw new MalformedInput(`the file holds more than ${most / 2 ** 20} MiB`);
  return looksLikeJson(data)
    ? decodeSpeedscope(new TextDecoder().decode(data), name)
    : decodePprof(data, name);
}

/** A pprof may hold `{` too, but never only spaces before it. */
function looksLikeJson(data: Uint8Array): boolean {
  const start = data.subarray(0, 3).every((byte, i) => byte === [0xef, 0xbb, 0xbf][i]) ? 3 : 0;
  for (let i = start; i < data.length; i++) {
    const byte = data[i]!;
    if (byte === 0x7b) return true;
    if (byte !== 0x20 && byte !== 0x09 && byte !== 0x0a && byte !== 0x0d) return false;
  }
  return false;
}
