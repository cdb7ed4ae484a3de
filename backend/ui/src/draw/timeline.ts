/** Paints stacked bars of a timeline, its axis, and the brushed spans. */
import { clock } from "../core/format";

export interface TimelineScene {
  width: number;
  height: number;
  from: number;
  to: number;
  start: number;
  step: number;
  /** Bottom series first; each with one value a bucket. */
  series: { values: readonly number[]; colour: string }[];
  /** What the top of the scale stands for, in the series' unit. */
  top: number;
  topLabel: string;
  brush: { from: number; to: number } | null;
  base: { from: number; to: number } | null;
  style: { text: string; grid: string; shade: string; brush: string; base: string };
}

export const AXIS_HEIGHT = 18;
const HEAD_ROOM = 6;

export const timeToX = (scene: Pick<TimelineScene, "from" | "to" | "width">, time: number): number =>
  ((time - scene.from) / (scene.to - scene.from)) * scene.width;

/** Steps of the time axis that people read easily, ms. */
const STEPS = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400,
].map((s) => s * 1000);

/** Times to be labelled, some 90 pixels apart, on round local times. */
export function ticks(from: number, to: number, width: number): number[] {
  const wanted = ((to - from) * 90) / Math.max(1, width);
  const step = STEPS.find((candidate) => candidate >= wanted) ?? Math.ceil(wanted / 86_400_000) * 86_400_000;
  const zone = new Date(from).getTimezoneOffset() * 60_000;
  const found: number[] = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at < to; at += step) found.push(at);
  return found;
}

/** The smallest round number that is not below the value: some room above the bars, never half of the height. */
export function niceTop(value: number): number {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10]
    .map((digit) => digit * power)
    .find((candidate) => candidate >= value * (1 - 1e-9))!;
}

export function paintTimeline(context: CanvasRenderingContext2D, scene: TimelineScene): void {
  const { width, height, style } = scene;
  const floor = height - AXIS_HEIGHT;
  context.clearRect(0, 0, width, height);
  if (!(scene.to > scene.from)) return;
  context.font = '11px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';
  context.textBaseline = "middle";

  const scale = (floor - HEAD_ROOM) / scene.top;
  context.fillStyle = style.grid;
  for (const part of [0.5, 1]) context.fillRect(0, Math.round(floor - part * scene.top * scale), width, 1);
  const buckets = scene.series[0]?.values.length ?? 0;
  const sums = new Float64Array(buckets);
  for (const { values, colour } of scene.series) {
    context.fillStyle = colour;
    for (let i = 0; i < buckets; i++) {
      const value = values[i] ?? 0;
      if (value <= 0) continue;
      const x0 = timeToX(scene, scene.start + i * scene.step);
      const x1 = timeToX(scene, scene.start + (i + 1) * scene.step);
      const bottom = floor - sums[i]! * scale;
      sums[i]! += value;
      context.fillRect(
        x0,
        floor - sums[i]! * scale,
        Math.max(1, x1 - x0 - (x1 - x0 > 3 ? 1 : 0)),
        bottom - (floor - sums[i]! * scale),
      );
    }
  }
  context.fillStyle = style.grid;
  context.fillRect(0, floor, width, 1);

  context.fillStyle = style.text;
  context.textAlign = "center";
  for (const at of ticks(scene.from, scene.to, width)) {
    const x = timeToX(scene, at);
    if (x < 28 || x > width - 28) continue;
    context.fillText(clock(at).replace(/:00$/, ""), x, floor + AXIS_HEIGHT / 2 + 1);
  }
  context.textAlign = "left";
  context.fillText(scene.topLabel, 4, HEAD_ROOM + 6);

  span(context, scene, scene.base, style.base, false);
  span(context, scene, scene.brush, style.brush, true);
}

function span(
  context: CanvasRenderingContext2D,
  scene: TimelineScene,
  range: { from: number; to: number } | null,
  colour: string,
  shadeOutside: boolean,
): void {
  if (!range) return;
  const floor = scene.height - AXIS_HEIGHT;
  const x0 = Math.max(0, timeToX(scene, range.from));
  const x1 = Math.min(scene.width, timeToX(scene, range.to));
  if (x1 <= 0 || x0 >= scene.width) return;
  if (shadeOutside) {
    context.fillStyle = scene.style.shade;
    context.fillRect(0, 0, x0, floor);
    context.fillRect(x1, 0, scene.width - x1, floor);
  }
  context.globalAlpha = 0.14;
  context.fillStyle = colour;
  context.fillRect(x0, 0, x1 - x0, floor);
  context.globalAlpha = 1;
  context.fillRect(x0, 0, 2, floor);
  context.fillRect(x1 - 2, 0, 2, floor);
}
