/** Callers of a function above it, callees below it: two flame graphs that share their x axis. */
import { type ReactNode, useMemo, useState } from "react";
import type { Sandwich } from "../api/answers";
import { amount, share } from "../core/format";
import type { Theme } from "../core/palette";
import type { StackTree } from "../core/tree";
import { FlameGraph } from "./flame_graph";
import type { FrameAction } from "./frame_menu";

interface Props {
  sandwich: Sandwich;
  theme: Theme;
  align: "head" | "tail";
  lookOf: (half: StackTree) => (node: number) => string;
  lit: ((frame: number) => boolean) | null;
  onAction: (tree: StackTree, action: FrameAction, node: number) => void;
}

export function SandwichView({ sandwich, theme, align, lookOf, lit, onAction }: Props): ReactNode {
  const { callers, callees } = sandwich;
  const { total, unit } = callees.totals;
  return (
    <div className="sandwich">
      <Half
        name="Callers"
        upward
        tree={callers}
        theme={theme}
        align={align}
        lookOf={lookOf}
        lit={lit}
        onAction={onAction}
      />
      <p className="sandwich-middle">
        <strong>{callees.frames.name[sandwich.frame]}</strong> {amount(callees.value[0]!, unit)} (
        {share(callees.value[0]!, total)})
      </p>
      <Half
        name="Callees"
        upward={false}
        tree={callees}
        theme={theme}
        align={align}
        lookOf={lookOf}
        lit={lit}
        onAction={onAction}
      />
    </div>
  );
}

interface HalfProps extends Omit<Props, "sandwich"> {
  name: string;
  upward: boolean;
  tree: StackTree;
}

function Half({ name, upward, tree, theme, align, lookOf, lit, onAction }: HalfProps): ReactNode {
  const [zoom, setZoom] = useState({ tree, node: 0 });
  const fillOf = useMemo(() => lookOf(tree), [lookOf, tree]);
  return (
    <div className="half">
      <h3>{name}</h3>
      <FlameGraph
        tree={tree}
        theme={theme}
        upward={upward}
        align={align}
        fillOf={fillOf}
        lit={lit}
        zoom={zoom.tree === tree ? zoom.node : 0}
        title={name}
        onZoom={(node) => setZoom({ tree, node })}
        onSelect={ignore}
        onAction={(action, node) => onAction(tree, action, node)}
      />
    </div>
  );
}

const ignore = (): void => undefined;
