/**
 * The flame graph: a canvas and the hands on it. Everything it computes is in core/ and draw/; this is wheel, drag,
 * click, keys, tooltip and the animation between two views.
 *
 * The canvas stays as large as its window; a tall empty box behind it gives the scroll bar its length.
 */
import { type ReactNode, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { boxLabel, spoken } from "../core/describe";
import { LABEL_COLOUR, type Theme } from "../core/palette";
import { childrenOf, nodeAt, type StackTree } from "../core/tree";
import { FONT, ROW_HEIGHT, type Style, type View, depthAt, paint, rowTop } from "../draw/flamegraph";
import { TextFitter } from "../draw/text";
import { type Point, useGestures } from "../state/use_gestures";
import { prepareCanvas, useSize } from "../state/use_size";
import { FrameTooltip } from "./frame_card";
import { type FrameAction, FrameMenu } from "./frame_menu";

interface Props {
  tree: StackTree;
  theme: Theme;
  upward: boolean;
  align: "head" | "tail";
  fillOf: (node: number) => string;
  /** Frames in full colour; null = all. */
  lit: ((frame: number) => boolean) | null;
  /** The node that fills the width; 0 = everything. */
  zoom: number;
  title: string;
  /** Counts up: back to the view of `zoom`, wherever wheel and fingers have moved it. */
  home?: number;
  /** The view is, or is no longer, another one than that of `zoom`. */
  onMoved?: (moved: boolean) => void;
  onZoom: (node: number) => void;
  onSelect: (node: number) => void;
  onAction: (action: FrameAction, node: number) => void;
}

const STYLES: Readonly<Record<Theme, Style>> = {
  light: {
    label: LABEL_COLOUR.light,
    dust: "#d9d7d2",
    root: "#dcdde1",
    background: "#ffffff",
    outline: "#111318",
    muted: "#eceded",
    mutedLabel: "#6a6c73",
  },
  dark: {
    label: LABEL_COLOUR.dark,
    dust: "#3a3b41",
    root: "#43454d",
    background: "#17181c",
    outline: "#ffffff",
    muted: "#26272c",
    mutedLabel: "#92949c",
  },
};

const ANIMATION_MS = 160;
const NARROWEST_VIEW = 1e-7;
const calm = matchMedia("(prefers-reduced-motion: reduce)");

const viewOf = (tree: StackTree, node: number): View => ({
  from: tree.left[node]!,
  to: tree.left[node]! + (tree.width[node]! || 1),
});

export function FlameGraph(props: Props): ReactNode {
  const { tree, theme, upward, align, fillOf, lit, zoom, title, home, onMoved, onZoom, onSelect, onAction } =
    props;
  const scroller = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const { width, height } = useSize(scroller);
  const view = useRef<View>(viewOf(tree, zoom));
  const animation = useRef(0);
  const [hover, setHover] = useState<{ node: number; x: number; y: number } | null>(null);
  const [selected, setSelected] = useState(-1);
  const [menu, setMenu] = useState<{ node: number; x: number; y: number } | null>(null);
  const fitter = useMemo(() => {
    const context = document.createElement("canvas").getContext("2d");
    if (context) context.font = FONT;
    return new TextFitter((text) => context?.measureText(text).width ?? 7);
  }, []);

  const draw = useCallback(() => {
    const context = canvas.current && prepareCanvas(canvas.current, width, height);
    if (!context || !scroller.current || width === 0) return;
    paint(context, {
      tree,
      view: view.current,
      scroll: scroller.current.scrollTop,
      width,
      height,
      upward,
      align,
      fillOf,
      lit,
      labelOf: (node) => boxLabel(tree, node),
      hovered: hover?.node ?? -1,
      selected,
      style: STYLES[theme],
      fitter,
    });
  }, [tree, width, height, upward, align, fillOf, lit, hover, selected, theme, fitter]);
  const drawNow = useRef(draw);
  drawNow.current = draw;
  useLayoutEffect(draw, [draw]);
  // For whoever measures how long the first picture takes: browsers' tools and bench/page.py show it.
  useEffect(() => {
    performance.mark("flame graph", { detail: tree.size });
  }, [tree]);

  /** Many events in one frame of the screen cost one painting. */
  const repaint = useCallback(() => {
    if (animation.current) return;
    animation.current = requestAnimationFrame(() => {
      animation.current = 0;
      drawNow.current();
    });
  }, []);

  const show = useCallback(
    (target: View, animated: boolean) => {
      cancelAnimationFrame(animation.current);
      animation.current = 0;
      const start = { ...view.current };
      const began = performance.now();
      if (!animated || calm.matches) {
        view.current = target;
        repaint();
        return;
      }
      const step = (now: number): void => {
        const t = Math.min(1, Math.max(0, (now - began) / ANIMATION_MS));
        const eased = 1 - (1 - t) ** 3;
        view.current = {
          from: start.from + (target.from - start.from) * eased,
          to: start.to + (target.to - start.to) * eased,
        };
        animation.current = t < 1 ? requestAnimationFrame(step) : 0;
        drawNow.current();
      };
      animation.current = requestAnimationFrame(step);
    },
    [repaint],
  );

  /** A view that wheel, keys or fingers chose. */
  const move = useCallback(
    (target: View) => {
      show(target, false);
      onMoved?.(true);
    },
    [show, onMoved],
  );

  // Another tree has other nodes: nothing of the old ones may stay selected or zoomed.
  const shownTree = useRef(tree);
  useLayoutEffect(() => {
    const same = shownTree.current === tree;
    shownTree.current = tree;
    if (!same) {
      setSelected(-1);
      setHover(null);
      setMenu(null);
    }
    show(viewOf(tree, zoom), same);
    onMoved?.(false);
  }, [tree, zoom, home, show, onMoved]);
  useEffect(() => () => cancelAnimationFrame(animation.current), []);

  const content = Math.max(tree.rows.length * ROW_HEIGHT, height);
  useLayoutEffect(() => {
    if (scroller.current) scroller.current.scrollTop = upward ? content : 0;
  }, [upward, content]);

  const nodeUnder = useCallback(
    (event: { clientX: number; clientY: number }): number => {
      const box = canvas.current!.getBoundingClientRect();
      const x =
        view.current.from + ((event.clientX - box.left) / box.width) * (view.current.to - view.current.from);
      const y = event.clientY - box.top + scroller.current!.scrollTop;
      return nodeAt(tree, depthAt(tree, y, upward, height), x);
    },
    [tree, upward, height],
  );

  const zoomBy = useCallback(
    (factor: number, around: number) => {
      const { from, to } = view.current;
      const span = Math.min(1, Math.max(NARROWEST_VIEW, (to - from) * factor));
      const start = Math.min(1 - span, Math.max(0, around - ((around - from) / (to - from)) * span));
      move({ from: start, to: start + span });
    },
    [move],
  );

  const pan = useCallback(
    (by: number) => {
      const { from, to } = view.current;
      const start = Math.min(1 - (to - from), Math.max(0, from + by));
      move({ from: start, to: start + (to - from) });
    },
    [move],
  );

  // React's wheel listener is passive: zooming must keep the browser from scrolling.
  useEffect(() => {
    const node = scroller.current;
    if (!node) return;
    const onWheel = (event: WheelEvent): void => {
      const box = node.getBoundingClientRect();
      const span = view.current.to - view.current.from;
      if (event.ctrlKey || event.metaKey || event.altKey) {
        event.preventDefault();
        zoomBy(
          Math.exp(event.deltaY * 0.0025),
          view.current.from + ((event.clientX - box.left) / box.width) * span,
        );
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        pan(((event.deltaX || event.deltaY) / box.width) * span);
      }
    };
    node.addEventListener("wheel", onWheel, { passive: false });
    return () => node.removeEventListener("wheel", onWheel);
  }, [zoomBy, pan]);

  /** Zooms; the frame that is zoomed to already comes back to where it fills the width. */
  const zoomTo = (node: number): void => {
    onZoom(node);
    if (node === zoom) {
      show(viewOf(tree, node), true);
      onMoved?.(false);
    }
  };

  const select = (node: number): void => {
    setSelected(node);
    onSelect(node);
    const box = scroller.current;
    if (node < 0 || !box) return;
    const top = rowTop(tree, tree.depth[node]!, upward, height);
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + ROW_HEIGHT > box.scrollTop + height) box.scrollTop = top + ROW_HEIGHT - height;
    const { from, to } = view.current;
    const middle = tree.left[node]! + tree.width[node]! / 2;
    if (middle < from || middle > to) pan(middle - (from + to) / 2);
  };

  const onKey = (event: React.KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const node = selected < 0 ? zoom : selected;
    const down = upward ? "ArrowUp" : "ArrowDown";
    const up = upward ? "ArrowDown" : "ArrowUp";
    const siblings = node > 0 ? childrenOf(tree, tree.parent[node]!) : [0];
    const span = view.current.to - view.current.from;
    const actions: Record<string, () => void> = {
      [down]: () => select(selected < 0 ? zoom : (childrenOf(tree, node)[0] ?? node)),
      [up]: () => select(Math.max(0, tree.parent[node]!)),
      ArrowRight: () => select(siblings[siblings.indexOf(node) + 1] ?? node),
      ArrowLeft: () => select(siblings[siblings.indexOf(node) - 1] ?? node),
      Enter: () => zoomTo(node),
      "+": () => zoomBy(0.7, view.current.from + span / 2),
      "=": () => zoomBy(0.7, view.current.from + span / 2),
      "-": () => zoomBy(1 / 0.7, view.current.from + span / 2),
      "0": () => zoomTo(0),
      Escape: () => {
        if (zoom === 0) select(-1);
        zoomTo(0);
      },
      f: () => onAction("focus", node),
      s: () => onAction("sandwich", node),
      m: () => onAction("pick", node),
      c: () => onAction("copy", node),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    setHover(null);
    action();
  };

  const onLook = (at: Point | null): void => {
    const node = at ? nodeUnder(at) : -1;
    setHover(!at || node < 0 ? null : { node, x: at.clientX, y: at.clientY });
  };

  const onTap = (at: Point): void => {
    const node = nodeUnder(at);
    setHover(null);
    if (node < 0) return;
    select(node);
    zoomTo(node);
  };

  const onMenu = (at: Point): void => {
    const node = nodeUnder(at);
    setHover(null);
    if (node < 0) return;
    select(node);
    setMenu({ node, x: at.clientX, y: at.clientY });
  };

  const onContextMenu = (event: React.MouseEvent): void => {
    const box = canvas.current!.getBoundingClientRect();
    // From the keyboard there is no pointer: the menu belongs to the selected frame.
    const byKeyboard = event.clientX === 0 && event.clientY === 0;
    const node = byKeyboard || event.detail === -1 ? Math.max(0, selected) : nodeUnder(event);
    if (node < 0) return;
    event.preventDefault();
    setHover(null);
    select(node);
    setMenu({
      node,
      x: byKeyboard ? box.left + 40 : event.clientX,
      y: byKeyboard ? box.top + 40 : event.clientY,
    });
  };

  const gestures = useGestures({
    view,
    scroller,
    width,
    narrowest: NARROWEST_VIEW,
    move,
    onLook,
    onTap,
    onMenu,
    onContextMenu,
  });

  return (
    <div className="flame-box">
      <div
        ref={scroller}
        className="flame-scroller"
        // A drawing that is operated like an application; the table beside it is the same as text.
        role="application"
        aria-roledescription="flame graph"
        aria-label={`${title}. Arrow keys move between frames, Enter zooms, f focuses on the subtree, s shows callers and callees.`}
        tabIndex={0}
        data-nodes={tree.size}
        data-selected={selected < 0 ? "" : boxLabel(tree, selected)}
        onKeyDown={onKey}
        onScroll={repaint}
      >
        <canvas ref={canvas} className="flame-canvas" style={{ width, height }} {...gestures} />
        <div className="flame-length" style={{ height: Math.max(0, content - height) }} />
      </div>
      <div className="sr-only" aria-live="polite">
        {selected >= 0 && selected < tree.size ? spoken(tree, selected) : ""}
      </div>
      {hover && !menu && hover.node < tree.size && <FrameTooltip tree={tree} {...hover} />}
      {menu && (
        <FrameMenu
          x={menu.x}
          y={menu.y}
          name={boxLabel(tree, menu.node)}
          onAction={(action) => onAction(action, menu.node)}
          onClose={() => {
            setMenu(null);
            scroller.current?.focus();
          }}
        />
      )}
    </div>
  );
}
