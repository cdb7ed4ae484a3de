/** Keys, and how to read the picture. */
import { type ReactNode, useEffect, useRef } from "react";

const KEYS: readonly (readonly [keys: string, does: string])[] = [
  ["/", "search"],
  ["t, b, g", "table, both, flame graph"],
  ["r", "refresh"],
  ["?", "this help"],
  ["↑ ↓ ← →", "move between frames (in the flame graph)"],
  ["Enter, click", "zoom to the frame"],
  ["Esc, 0", "zoom out"],
  ["+ −, Ctrl + wheel", "zoom the x axis"],
  ["drag, Shift + wheel", "move"],
  ["f", "focus on the subtree"],
  ["s", "callers and callees"],
  ["m", "mark the function everywhere"],
  ["c", "copy its name"],
  ["right click", "all of these for one frame"],
];

export function Help({ onClose }: { onClose: () => void }): ReactNode {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} className="help" aria-labelledby="help-title" onClose={onClose}>
      <h2 id="help-title">Reading a flame graph</h2>
      <p>
        Each box is a function; below it (icicle) or above it (flame) are the functions that it called. Its
        width is its share of what was measured, not time passing from left to right. <em>Self</em> is what a
        function did itself, <em>total</em> includes all that it called; a function that calls itself counts
        once.
      </p>
      <dl>
        {KEYS.map(([keys, does]) => (
          <div key={keys}>
            <dt>
              <kbd>{keys}</kbd>
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
      <p>
        Drop a pprof or speedscope file anywhere on the page to look at it; it is read in this browser and
        sent nowhere.
      </p>
      <form method="dialog">
        <button type="submit" className="button primary">
          Close
        </button>
      </form>
    </dialog>
  );
}
