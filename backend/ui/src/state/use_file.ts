/** Opening a file: in a worker, one at a time, with progress; a second one ends the first. */
import { useCallback, useEffect, useRef, useState } from "react";
import type { FromWorker, Progress, ToWorker } from "../core/reading";
import type { Recording } from "../core/recording";

export interface Opening {
  name: string;
  progress: Progress;
}

export interface Files {
  opening: Opening | null;
  open: (file: File) => void;
  cancel: () => void;
}

/** `onDone` and `onFailed` may change between renders; the last ones count. */
export function useFile(
  onDone: (recording: Recording) => void,
  onFailed: (name: string, reason: string) => void,
): Files {
  const [opening, setOpening] = useState<Opening | null>(null);
  const worker = useRef<Worker | null>(null);
  const told = useRef({ onDone, onFailed });
  told.current = { onDone, onFailed };

  const cancel = useCallback(() => {
    worker.current?.terminate();
    worker.current = null;
    setOpening(null);
  }, []);
  useEffect(() => cancel, [cancel]);

  const open = useCallback(
    (file: File) => {
      cancel();
      const { name } = file;
      const reader = new Worker(new URL("../worker/read_file.ts", import.meta.url), { type: "module" });
      worker.current = reader;
      setOpening({ name, progress: { step: "Reading", share: 0 } });
      reader.addEventListener("message", ({ data }: MessageEvent<FromWorker>) => {
        if (data.kind === "progress") {
          setOpening({ name, progress: data.progress });
          return;
        }
        cancel();
        if (data.kind === "done") told.current.onDone(data.recording);
        else told.current.onFailed(name, data.reason);
      });
      reader.addEventListener("error", (event) => {
        event.preventDefault();
        cancel();
        told.current.onFailed(name, event.message || "the browser could not start reading it");
      });
      const request: ToWorker = { file };
      reader.postMessage(request);
    },
    [cancel],
  );
  return { opening, open, cancel };
}
