/** What passes between the page and the worker that reads a file for it. Plain data: both ends copy it. */
import type { Recording } from "./recording";

/** How far it is: `share` of this step, 0 to 1. */
export interface Progress {
  step: "Reading" | "Decoding";
  share: number;
}

export type OnProgress = (progress: Progress) => void;

export type FromWorker =
  | { kind: "progress"; progress: Progress }
  | { kind: "done"; recording: Recording }
  /** The file is not what the page shows; `reason` is for its reader. */
  | { kind: "malformed"; reason: string };

export interface ToWorker {
  file: File;
}
