/**
 * Mouse, pen and fingers on the flame graph, as what they mean: look, tap, move, pinch, menu.
 *
 * A finger that stays where it is looks (tooltip) and gets the menu when it leaves: there is no hovering and no right
 * button on a touch screen. Up and down is the browser's own scrolling there (`touch-action: pan-y`).
 */
import { type MouseEvent, type PointerEvent, type RefObject, useEffect, useRef } from "react";
import { type Finger, pinched } from "../core/pinch";
import type { View } from "../draw/flamegraph";

const DRAG_FROM = 4;
const FINGER_DRAG_FROM = 10;
const LONG_MS = 450;
/** So long after a finger left, a browser may still tell of its own long press. */
const AFTER_TOUCH_MS = 1000;

export interface Point {
  clientX: number;
  clientY: number;
}

interface Hands {
  view: RefObject<View>;
  scroller: RefObject<HTMLDivElement | null>;
  width: number;
  narrowest: number;
  move: (view: View) => void;
  onLook: (at: Point | null) => void;
  onTap: (at: Point) => void;
  onMenu: (at: Point) => void;
  /** Right button or menu key. */
  onContextMenu: (event: MouseEvent<HTMLCanvasElement>) => void;
}

interface Held extends Point {
  from: View;
  scroll: number;
  moved: boolean;
  long: boolean;
  /** When it began, in milliseconds of the events' own clock. */
  since: number;
}

type Handler = (event: PointerEvent<HTMLCanvasElement>) => void;

export interface Handlers {
  onPointerDown: Handler;
  onPointerMove: Handler;
  onPointerUp: Handler;
  onPointerCancel: Handler;
  onPointerLeave: Handler;
  /** Browsers have a long press of their own, which is not ours. */
  onContextMenu: (event: MouseEvent<HTMLCanvasElement>) => void;
}

export function useGestures(hands: Hands): Handlers {
  const latest = useRef(hands);
  latest.current = hands;
  const held = useRef<Held | null>(null);
  const fingers = useRef(new Map<number, Finger>());
  const pinch = useRef<{ from: View; start: [Finger, Finger] } | null>(null);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const touched = useRef(-Infinity);
  useEffect(() => () => clearTimeout(timer.current), []);

  const inBox = (event: PointerEvent<HTMLCanvasElement>): Finger => {
    const box = event.currentTarget.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const twoOf = (): [Finger, Finger] | null => {
    const [one, other] = [...fingers.current.values()];
    return one && other ? [one, other] : null;
  };
  const forget = ({ pointerId, timeStamp }: PointerEvent): void => {
    clearTimeout(timer.current);
    if (fingers.current.delete(pointerId)) touched.current = timeStamp;
    // What is left of two fingers is no drag: the graph would jump to it.
    if (fingers.current.size === 0) pinch.current = null;
    held.current = null;
  };

  const onPointerDown: Handler = (event) => {
    if (event.button !== 0) return;
    const { view, scroller, onLook } = latest.current;
    clearTimeout(timer.current);
    const at: Point = { clientX: event.clientX, clientY: event.clientY };
    if (event.pointerType === "touch") {
      event.currentTarget.setPointerCapture(event.pointerId);
      fingers.current.set(event.pointerId, inBox(event));
      const two = twoOf();
      if (two || pinch.current) {
        held.current = null;
        onLook(null);
        if (two) pinch.current = { from: { ...view.current }, start: two };
        return;
      }
      timer.current = setTimeout(() => {
        if (held.current) held.current.long = true;
        latest.current.onLook(at);
      }, LONG_MS);
    }
    const scroll = scroller.current?.scrollTop ?? 0;
    held.current = {
      ...at,
      from: { ...view.current },
      scroll,
      moved: false,
      long: false,
      since: event.timeStamp,
    };
  };

  const onPointerMove: Handler = (event) => {
    const { view, scroller, width, narrowest, move, onLook } = latest.current;
    const touch = event.pointerType === "touch";
    if (touch && fingers.current.has(event.pointerId)) fingers.current.set(event.pointerId, inBox(event));
    const two = twoOf();
    if (pinch.current) {
      if (two) move(pinched(pinch.current.from, pinch.current.start, two, width, narrowest));
      return;
    }
    const drag = held.current;
    if (!drag || (event.buttons & 1) === 0) {
      if (!touch) onLook(event);
      return;
    }
    const [dx, dy] = [event.clientX - drag.clientX, event.clientY - drag.clientY];
    if (!drag.moved && (drag.long || Math.hypot(dx, dy) < (touch ? FINGER_DRAG_FROM : DRAG_FROM))) return;
    if (!drag.moved && !touch) event.currentTarget.setPointerCapture(event.pointerId);
    clearTimeout(timer.current);
    drag.moved = true;
    onLook(null);
    const span = view.current.to - view.current.from;
    const start = Math.min(1 - span, Math.max(0, drag.from.from - (dx / width) * span));
    move({ from: start, to: start + span });
    if (!touch && scroller.current) scroller.current.scrollTop = drag.scroll - dy;
  };

  const onPointerUp: Handler = (event) => {
    const drag = held.current;
    const pinching = pinch.current !== null;
    forget(event);
    if (!drag || drag.moved || pinching || event.button !== 0) return;
    // A busy page runs the timer before it is told of a finger that had left long ago.
    if (drag.long && event.timeStamp - drag.since >= LONG_MS) latest.current.onMenu(drag);
    else latest.current.onTap(event);
  };

  const onPointerCancel: Handler = (event) => {
    forget(event);
    latest.current.onLook(null);
  };

  const onPointerLeave: Handler = (event) => {
    if (event.pointerType !== "touch") latest.current.onLook(null);
  };
  const onContextMenu = (event: MouseEvent<HTMLCanvasElement>): void => {
    if (fingers.current.size > 0 || event.timeStamp < touched.current + AFTER_TOUCH_MS)
      event.preventDefault();
    else latest.current.onContextMenu(event);
  };
  return { onContextMenu, onPointerDown, onPointerMove, onPointerUp, onPointerCancel, onPointerLeave };
}
