/** What the colours mean. */
import type { ReactNode } from "react";
import type { LegendEntry } from "../core/legend";
import { DIFF_STEPS, type Theme, diffColour } from "../core/palette";

interface Props {
  entries: LegendEntry[];
  theme: Theme;
  compared: boolean;
}

export function Legend({ entries, theme, compared }: Props): ReactNode {
  if (compared) {
    return (
      <div
        className="scale"
        role="img"
        aria-label="Colours: blue is less than in the baseline, orange is more"
      >
        <span>less</span>
        {Array.from({ length: 2 * DIFF_STEPS + 1 }, (_, i) => i - DIFF_STEPS).map((step) => (
          <span key={step} className="step" style={{ background: diffColour(theme, step) }} />
        ))}
        <span>more</span>
      </div>
    );
  }
  return (
    <ul className="legend" aria-label="Colours">
      {entries.map(({ title, colour }) => (
        <li key={title} title={title}>
          <span className="swatch" style={{ background: colour }} />
          {title}
        </li>
      ))}
    </ul>
  );
}
