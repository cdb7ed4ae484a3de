/** From a dropped file to a Recording: decompression with a cap, then the right decoder. */
import { MalformedInput } from "./model";
import { decodePprof } from "./pprof";
import type { OnProgress } from "./reading";
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

/** The stream as it is, with what share of `size` bytes has passed told. */
function watched(content: Blob, onProgress: OnProgress): ReadableStream<Uint8Array<ArrayBuffer>> {
  let passed = 0;
  const counter = new TransformStream<Uint8Array<ArrayBuffer>, Uint8Array<ArrayBuffer>>({
    transform: (chunk, controller) => {
      passed += chunk.length;
      onProgress({ step: "Reading", share: passed / content.size });
      controller.enqueue(chunk);
    },
  });
  return content.stream().pipeThrough(counter);
}

/** The file's bytes, decompressed if it is gzip. Throws MalformedInput. */
async function bytesOf(content: Blob, most: number, onProgress: OnProgress): Promise<Uint8Array> {
  try {
    const packed = isGzip(new Uint8Array(await content.slice(0, 2).arrayBuffer()));
    const stream = watched(content, onProgress);
    return await readAll(packed ? stream.pipeThrough(new DecompressionStream("gzip")) : stream, most);
  } catch (error) {
    if (error instanceof MalformedInput) throw error;
    throw new MalformedInput(
      `the file is damaged or cannot be read: ${error instanceof Error ? error.message : String(error)}`,
    );
  }
}

/** Reads pprof (plain or gzip) or speedscope JSON (plain or gzip). Throws MalformedInput. */
export async function openRecording(
  name: string,
  content: Blob,
  onProgress: OnProgress = () => undefined,
  most: number = LIMITS.bytes,
): Promise<Recording> {
  if (content.size === 0) throw new MalformedInput("the file is empty");
  const data = await bytesOf(content, most, onProgress);
  onProgress({ step: "Decoding", share: 0 });
  return looksLikeJson(data)
    ? decodeSpeedscope(new TextDecoder().decode(data), name, onProgress)
    : decodePprof(data, name, onProgress);
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
