/** Two fingers on the flame graph: what lies under them stays under them. */
import type { View } from "../draw/flamegraph";

export interface Finger {
  /** In the box, from its left and top edge, in CSS pixels. */
  x: number;
  y: number;
}

export type Fingers = readonly [Finger, Finger];

/** Fingers that are nearer than this are taken to be so far apart: they would zoom without end. */
const NEAREST = 24;

const middle = ([a, b]: Fingers): number => (a.x + b.x) / 2;
const distance = ([a, b]: Fingers): number => Math.max(NEAREST, Math.hypot(a.x - b.x, a.y - b.y));

/**
 * The view after two fingers moved from `start` to `now` over a box of `width`, in which `from` was shown then. Spreading
 * them zooms in, moving both moves along. A view stays within 0 to 1 and is never narrower than `narrowest`.
 */
export function pinched(from: View, start: Fingers, now: Fingers, width: number, narrowest: number): View {
  const was = from.to - from.from;
  const span = Math.min(1, Math.max(narrowest, (was * distance(start)) / distance(now)));
  const held = from.from + (middle(start) / width) * was;
  const left = Math.min(1 - span, Math.max(0, held - (middle(now) / width) * span));
  return { from: left, to: left + span };
}
