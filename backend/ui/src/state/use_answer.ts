/** One request as state: data, error, loading. The last data stay while newer ones are on their way. */
import { useEffect, useRef, useState } from "react";
import { ApiError, getJson } from "../api/client";

export interface Answer<T> {
  data: T | null;
  error: ApiError | null;
  loading: boolean;
  /** Asks again now. */
  retry: () => void;
}

const AGAIN_MS = 5000;

/**
 * `path` null: nothing is asked. `read` turns the answer into what is shown; what it throws is shown as an error.
 * `tick`: asks again when it changes. An unreachable or busy backend is asked again by itself.
 */
export function useAnswer<Wire, T>(
  path: string | null,
  query: URLSearchParams,
  read: (wire: Wire) => T,
  tick: number,
): Answer<T> {
  const [result, setResult] = useState<{ key: string; data: T | null; error: ApiError | null }>({
    key: "",
    data: null,
    error: null,
  });
  const [attempt, setAttempt] = useState(0);
  const reader = useRef(read);
  reader.current = read;
  const text = query.toString();
  const key = path === null ? "" : `${path}?${text}`;
  const request = `${key}#${tick}.${attempt}`;
  const [done, setDone] = useState("");

  useEffect(() => {
    if (path === null) return;
    const abort = new AbortController();
    let again: ReturnType<typeof setTimeout> | undefined;
    const run = async (): Promise<void> => {
      try {
        const wire = await getJson<Wire>(path, new URLSearchParams(text), abort.signal);
        setResult({ key, data: reader.current(wire), error: null });
      } catch (error) {
        if (abort.signal.aborted) return;
        const trouble =
          error instanceof ApiError
            ? error
            : new ApiError(
                "broken",
                "The server's answer cannot be shown",
                error instanceof Error ? error.message : String(error),
              );
        setResult((before) => ({ key, data: before.key === key ? before.data : null, error: trouble }));
        if (trouble.trouble === "unreachable" || trouble.trouble === "busy") {
          again = setTimeout(() => setAttempt((n) => n + 1), (trouble.retryAfter ?? 0) * 1000 || AGAIN_MS);
        }
      }
      setDone(request);
    };
    void run();
    return () => {
      abort.abort();
      clearTimeout(again);
    };
  }, [path, text, key, request]);

  return {
    data: path === null ? null : result.data,
    error: path === null || result.key !== key ? null : result.error,
    loading: path !== null && done !== request,
    retry: () => setAttempt((n) => n + 1),
  };
}
