/** The page's state in the URL: changes go to the history, Back brings them back. */
import { useCallback, useEffect, useState } from "react";
import { type PageState, readState, writeState } from "../core/page_state";

export type Change = Partial<PageState>;
/** `step`: a change that Back should undo; without it the current entry is replaced (typing, zooming). */
export type Update = (change: Change, step?: boolean) => void;

export function usePageState(): [PageState, Update] {
  const [state, setState] = useState(() => readState(location.search));
  useEffect(() => {
    const onBack = (): void => setState(readState(location.search));
    addEventListener("popstate", onBack);
    return () => removeEventListener("popstate", onBack);
  }, []);
  const update = useCallback<Update>((change, step = false) => {
    // The URL, not a closure, is the state of record: two updates in one event both count.
    const link = location.pathname + writeState({ ...readState(location.search), ...change });
    if (link !== location.pathname + location.search) {
      if (step) history.pushState(null, "", link);
      else history.replaceState(null, "", link);
    }
    setState(readState(location.search));
  }, []);
  return [state, update];
}
