/** The facts about one frame, as a tooltip beside the pointer. */
import type { ReactNode } from "react";
import { facts } from "../core/describe";
import type { StackTree } from "../core/tree";

interface Props {
  tree: StackTree;
  node: number;
  x: number;
  y: number;
}

const WIDTH = 420;

export function FrameTooltip({ tree, node, x, y }: Props): ReactNode {
  const { name, rows } = facts(tree, node);
  // Left of the pointer when it would leave the window, above it in the lower half.
  const left = Math.max(4, Math.min(x + 14, innerWidth - WIDTH - 8));
  const above = y > innerHeight * 0.6;
  const place = above ? { left, bottom: innerHeight - y + 14 } : { left, top: y + 16 };
  return (
    <div className="tooltip" role="tooltip" style={place}>
      <div className="tooltip-name">{name}</div>
      <dl>
        {rows.map(([label, value]) => (
          <div key={label}>
            <dt>{label}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </div>
  );
}
