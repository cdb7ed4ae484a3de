/** A file is being read: how far, and a way out. */
import type { ReactNode } from "react";
import type { Opening } from "../state/use_file";

export function OpeningBar({ opening, onCancel }: { opening: Opening; onCancel: () => void }): ReactNode {
  const { step, share } = opening.progress;
  return (
    <div className="opening" role="status">
      <span className="opening-name">{opening.name}</span>
      <progress max={1} value={share} aria-label={`${step} ${opening.name}`} />
      <span className="opening-step">
        {step}: {Math.round(100 * share)} %
      </span>
      <button type="button" className="button" onClick={onCancel}>
        Cancel
      </button>
    </div>
  );
}
