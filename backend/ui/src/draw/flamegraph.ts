/**
 * Paints the visible part of a tree on a canvas.
 *
 * Per frame of animation it touches only rows on screen, and within a row only nodes between the view's edges
 * (binary search, then a walk). Boxes are gathered by colour: one path and one fill for each colour. Nodes
 * narrower than half a pixel become one grey run, so that 50,000 of them cost as much as what can be seen.
 */
import { lastNotAfter, type StackTree } from "../core/tree";
import type { TextFitter } from "./text";

export const ROW_HEIGHT = 20;
export const FONT = '12px "Inter", system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';
const GAP = 1;
const NARROWEST = 0.5;
const LABEL_FROM = 22;
const PADDING = 5;

/** The part of the x axis that is shown, as fractions of the root. */
export interface View {
  from: number;
  to: number;
}

export interface Style {
  label: string;
  /** Of runs too narrow to draw apart. */
  dust: string;
  root: string;
  background: string;
  outline: string;
  /** Of boxes that the search does not match. */
  muted: string;
  mutedLabel: string;
}

export interface Scene {
  tree: StackTree;
  view: View;
  /** Pixels that the rows are scrolled by. */
  scroll: number;
  width: number;
  height: number;
  /** Root at the bottom. */
  upward: boolean;
  align: "head" | "tail";
  fillOf: (node: number) => string;
  /** Frames in full colour; null = all. */
  lit: ((frame: number) => boolean) | null;
  labelOf: (node: number) => string;
  hovered: number;
  selected: number;
  style: Style;
  fitter: TextFitter;
}

/** Top of a row in the unscrolled picture. */
export function rowTop(tree: StackTree, depth: number, upward: boolean, height: number): number {
  if (!upward) return depth * ROW_HEIGHT;
  const all = tree.rows.length * ROW_HEIGHT;
  return Math.max(all, height) - (depth + 1) * ROW_HEIGHT;
}

/** The depth at a height in the unscrolled picture; may lie outside the tree. */
export function depthAt(tree: StackTree, y: number, upward: boolean, height: number): number {
  if (!upward) return Math.floor(y / ROW_HEIGHT);
  return Math.floor((Math.max(tree.rows.length * ROW_HEIGHT, height) - y) / ROW_HEIGHT);
}

export function paint(context: CanvasRenderingContext2D, scene: Scene): void {
  const { tree, view, width, height, scroll, upward, style } = scene;
  context.fillStyle = style.background;
  context.fillRect(0, 0, width, height);
  if (tree.width[0] === 0 || view.to <= view.from) return;

  const scale = width / (view.to - view.from);
  const boxes = new Map<string, number[]>();
  const labels: { text: string; x: number; y: number; muted: boolean }[] = [];
  const box = (fill: string, x: number, y: number, w: number): void => {
    let list = boxes.get(fill);
    if (!list) boxes.set(fill, (list = []));
    list.push(x, y, w);
  };

  const [a, b] = [depthAt(tree, scroll, upward, height), depthAt(tree, scroll + height, upward, height)];
  const first = Math.max(0, Math.min(a, b));
  const last = Math.min(tree.rows.length - 1, Math.max(a, b));
  for (let depth = first; depth <= last; depth++) {
    const row = tree.rows[depth]!;
    const y = rowTop(tree, depth, upward, height) - scroll;
    let dustFrom = NaN;
    let dustTo = 0;
    for (let i = Math.max(0, lastNotAfter(tree, row, view.from)); i < row.length; i++) {
      const node = row[i]!;
      const left = tree.left[node]!;
      if (left >= view.to) break;
      const x = (left - view.from) * scale;
      const w = tree.width[node]! * scale;
      if (x + w <= 0) continue;
      if (w < NARROWEST) {
        if (!(x - dustTo < 1)) {
          if (dustTo > dustFrom) box(style.dust, dustFrom, y, Math.max(NARROWEST, dustTo - dustFrom));
          dustFrom = x;
        }
        dustTo = x + w;
        continue;
      }
      const x0 = Math.max(0, x);
      const x1 = Math.min(width, x + w);
      const muted = scene.lit !== null && !scene.lit(tree.frame[node]!);
      const fill = muted ? style.muted : node === 0 ? style.root : scene.fillOf(node);
      box(fill, x0, y, Math.max(NARROWEST, x1 - x0 - (w > 3 ? GAP : 0)));
      const room = x1 - x0 - 2 * PADDING;
      if (room > LABEL_FROM) {
        const text = scene.fitter.fit(scene.labelOf(node), room, scene.align);
        if (text) labels.push({ text, x: x0 + PADDING, y, muted });
      }
    }
    if (dustTo > dustFrom) box(style.dust, dustFrom, y, Math.max(NARROWEST, dustTo - dustFrom));
  }

  for (const [fill, list] of boxes) {
    context.fillStyle = fill;
    context.beginPath();
    for (let i = 0; i < list.length; i += 3)
      context.rect(list[i]!, list[i + 1]!, list[i + 2]!, ROW_HEIGHT - GAP);
    context.fill();
  }
  context.font = FONT;
  context.textBaseline = "middle";
  for (const muted of [false, true]) {
    context.fillStyle = muted ? style.mutedLabel : style.label;
    for (const { text, x, y, muted: dim } of labels) {
      if (dim === muted) context.fillText(text, x, y + (ROW_HEIGHT - GAP) / 2 + 0.5);
    }
  }
  outline(context, scene, scene.hovered, scale, 1);
  outline(context, scene, scene.selected, scale, 2);
}

function outline(
  context: CanvasRenderingContext2D,
  scene: Scene,
  node: number,
  scale: number,
  line: number,
): void {
  const { tree, view, width, height } = scene;
  if (node < 0 || node >= tree.size) return;
  const x0 = Math.max(0, (tree.left[node]! - view.from) * scale);
  const x1 = Math.min(width, (tree.left[node]! + tree.width[node]! - view.from) * scale);
  if (x1 <= 0 || x0 >= width) return;
  const y = rowTop(tree, tree.depth[node]!, scene.upward, height) - scene.scroll;
  context.strokeStyle = scene.style.outline;
  context.lineWidth = line;
  context.strokeRect(x0 + line / 2, y + line / 2, Math.max(1, x1 - x0 - line), ROW_HEIGHT - GAP - line);
}
