/**
 * The worker that reads a dropped file: hundreds of megabytes take seconds, in which the page goes on. One file, then
 * it ends; ending it early is how reading is cancelled.
 */
import { MalformedInput } from "../core/model";
import { openRecording } from "../core/open_file";
import type { FromWorker, Progress, ToWorker } from "../core/reading";
import type { Recording } from "../core/recording";

/** The part of a worker's global scope that is used; TypeScript knows windows or workers, not both. */
interface Scope {
  addEventListener: (type: "message", listener: (event: MessageEvent<ToWorker>) => void) => void;
  postMessage: (message: FromWorker, transfer?: ArrayBuffer[]) => void;
}

const scope = self as unknown as Scope;
const TELL_EVERY = 0.01;

/** Tells each hundredth once. */
function teller(): (progress: Progress) => void {
  let last: Progress = { step: "Reading", share: -1 };
  return (progress) => {
    if (progress.step === last.step && progress.share < last.share + TELL_EVERY) return;
    last = progress;
    scope.postMessage({ kind: "progress", progress });
  };
}

/** Numbers as arrays that are handed over, not copied. */
function packed(recording: Recording): { recording: Recording; transfer: ArrayBuffer[] } {
  const transfer: ArrayBuffer[] = [];
  const keep = <T extends Int32Array<ArrayBuffer> | Float64Array<ArrayBuffer>>(array: T): T => {
    transfer.push(array.buffer);
    return array;
  };
  const { id, name, file, line, mapping, kind } = recording.frames;
  const series = recording.series.map((one) => ({
    ...one,
    nodes: {
      frame: keep(Int32Array.from(one.nodes.frame)),
      parent: keep(Int32Array.from(one.nodes.parent)),
      value: keep(Float64Array.from(one.nodes.value)),
      self: keep(Float64Array.from(one.nodes.self)),
    },
  }));
  return { recording: { ...recording, frames: { id, name, file, line, mapping, kind }, series }, transfer };
}

async function read(file: File): Promise<void> {
  try {
    const { recording, transfer } = packed(await openRecording(file.name, file, teller()));
    scope.postMessage({ kind: "done", recording }, transfer);
  } catch (error) {
    if (!(error instanceof MalformedInput)) throw error;
    scope.postMessage({ kind: "malformed", reason: error.message });
  }
}

scope.addEventListener("message", ({ data }) => {
  // What is thrown here must reach the page as the worker's error event, which rejections do not.
  read(data.file).catch((error: unknown) => {
    setTimeout(() => {
      throw error;
    });
  });
});
