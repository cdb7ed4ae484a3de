/** When it was: samples over the window, to be brushed with the mouse or moved with the arrow keys. */
import { type ReactNode, useLayoutEffect, useMemo, useRef, useState } from "react";
import type { LabelsAnswer, TimelineAnswer } from "../api/answers";
import { amount, clock, span } from "../core/format";
import { type Theme, seriesColour } from "../core/palette";
import type { PageState } from "../core/page_state";
import { resolve, selectionParameters } from "../core/selection";
import { type TimelineScene, niceTop, paintTimeline, timeToX } from "../draw/timeline";
import { type Update } from "../state/use_page_state";
import { type Answer, useAnswer } from "../state/use_answer";
import { prepareCanvas, useSize } from "../state/use_size";
import { labelTitle } from "./label_menu";

interface Props {
  state: PageState;
  update: Update;
  theme: Theme;
  tick: number;
  labels: Answer<LabelsAnswer>;
}

const HEIGHT = 84;

/** CPU time in a bucket reads best as busy CPUs; other amounts stay what they are. */
function perBucket(value: number, unit: string, stepMs: number): string {
  if (unit !== "nanoseconds") return amount(value, unit);
  const cores = value / 1e6 / stepMs;
  return `${Number(cores.toFixed(cores >= 10 ? 0 : cores >= 1 ? 1 : 2))} CPUs`;
}

export function Timeline({ state, update, theme, tick, labels }: Props): ReactNode {
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const { width } = useSize(box);
  const [dragged, setDragged] = useState<{ from: number; to: number } | null>(null);
  const [hover, setHover] = useState<{ x: number; text: string } | null>(null);
  const anchor = useRef<number | null>(null);

  const query = selectionParameters(state, true);
  if (state.by) query.set("by", state.by);
  const answer = useAnswer<TimelineAnswer, TimelineAnswer>(
    state.type ? "timeline" : null,
    query,
    (wire) => wire,
    tick,
  );
  const data = answer.data;

  const scene = useMemo((): TimelineScene | null => {
    if (!data || width === 0) return null;
    const series = data.series.map(({ values }, rank) => ({ values, colour: seriesColour(theme, rank) }));
    if (data.rest) series.push({ values: data.rest, colour: theme === "light" ? "#c9cad0" : "#4a4c55" });
    const sums = (series[0]?.values ?? []).map((_, i) =>
      series.reduce((sum, one) => sum + (one.values[i] ?? 0), 0),
    );
    const most = sums.reduce((a, b) => Math.max(a, b), 0);
    const top =
      data.unit === "nanoseconds" ? niceTop(most / 1e6 / data.step) * 1e6 * data.step : niceTop(most);
    const now = data.window.to;
    const base = state.base && {
      from: resolve(state.base.window.from, now),
      to: resolve(state.base.window.to, now),
    };
    return {
      width,
      height: HEIGHT,
      ...data.window,
      start: data.start,
      step: data.step,
      series,
      top,
      topLabel: perBucket(top, data.unit, data.step),
      brush: dragged ?? state.brush,
      base,
      style:
        theme === "light"
          ? {
              text: "#55575f",
              grid: "#e3e4e8",
              shade: "rgba(255,255,255,.62)",
              brush: "#b34700",
              base: "#1a63c4",
            }
          : {
              text: "#a9abb4",
              grid: "#303138",
              shade: "rgba(20,21,24,.62)",
              brush: "#ffab66",
              base: "#74b0ff",
            },
    };
  }, [data, width, theme, state.brush, state.base, dragged]);

  useLayoutEffect(() => {
    const context = canvas.current && scene && prepareCanvas(canvas.current, width, HEIGHT);
    if (context && scene) paintTimeline(context, scene);
  }, [scene, width]);

  const timeAt = (clientX: number): number => {
    const rectangle = canvas.current!.getBoundingClientRect();
    const part = Math.min(1, Math.max(0, (clientX - rectangle.left) / rectangle.width));
    return scene ? scene.from + part * (scene.to - scene.from) : 0;
  };
  const onMove = (event: React.PointerEvent): void => {
    if (!scene || !data) return;
    const at = timeAt(event.clientX);
    if (anchor.current !== null && event.buttons === 1) {
      setDragged({ from: Math.min(anchor.current, at), to: Math.max(anchor.current, at) });
      return;
    }
    const bucket = Math.floor((at - data.start) / data.step);
    const lines = data.series
      .map(({ label, values }) => ({ label, value: values[bucket] ?? 0 }))
      .filter(({ value }) => value > 0)
      .map(
        ({ label, value }) =>
          `${state.by ? `${label || "(none)"}: ` : ""}${perBucket(value, data.unit, data.step)}`,
      );
    setHover({
      x: timeToX(scene, at),
      text: [clock(data.start + bucket * data.step), ...lines.slice(0, 6)].join("\n"),
    });
  };
  const onUp = (): void => {
    if (dragged && scene && timeToX(scene, dragged.to) - timeToX(scene, dragged.from) >= 4) {
      update({ brush: { from: Math.round(dragged.from), to: Math.round(dragged.to) }, zoom: 0 }, true);
    } else if (anchor.current !== null && state.brush) update({ brush: null }, true);
    anchor.current = null;
    setDragged(null);
  };
  const onKey = (event: React.KeyboardEvent): void => {
    if (!scene || !data) return;
    const whole = { from: scene.from, to: scene.to };
    const brush = state.brush ?? {
      from: whole.from + (whole.to - whole.from) / 3,
      to: whole.to - (whole.to - whole.from) / 3,
    };
    const step = event.key === "ArrowRight" ? data.step : event.key === "ArrowLeft" ? -data.step : 0;
    if (step) {
      const next = event.shiftKey
        ? { from: brush.from, to: brush.to + step }
        : { from: brush.from + step, to: brush.to + step };
      if (next.from >= whole.from && next.to <= whole.to && next.from < next.to) update({ brush: next });
    } else if (event.key === "Escape" && state.brush) update({ brush: null }, true);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const zoomIn = (): void => {
    const { brush } = state;
    if (brush)
      update(
        { window: { from: String(Math.round(brush.from)), to: String(Math.round(brush.to)) }, brush: null },
        true,
      );
  };

  const groups = labels.data?.labels.filter(({ values }) => values > 1).map(({ name }) => name) ?? [];
  return (
    <section className="timeline" aria-label="Timeline">
      <div className="timeline-head">
        <label className="inline">
          Split by
          <select value={state.by} onChange={(event) => update({ by: event.target.value }, true)}>
            <option value="">nothing</option>
            {[...new Set([...groups, ...(state.by ? [state.by] : [])])].map((name) => (
              <option key={name} value={name}>
                {labelTitle(name)}
              </option>
            ))}
          </select>
        </label>
        {state.by && data && (
          <ul className="legend">
            {data.series.map(({ label }, rank) => (
              <li key={label}>
                <span className="swatch" style={{ background: seriesColour(theme, rank) }} />
                {label || "(none)"}
              </li>
            ))}
            {data.rest && (
              <li>
                <span className="swatch rest" />
                others
              </li>
            )}
          </ul>
        )}
        <span className="spacer" />
        {state.brush ? (
          <>
            <span className="brush-text">
              {clock(state.brush.from)} – {clock(state.brush.to)} ({span(state.brush.to - state.brush.from)})
            </span>
            <button type="button" className="button small" onClick={zoomIn}>
              Zoom in
            </button>
            <button type="button" className="button small" onClick={() => update({ brush: null }, true)}>
              Whole window
            </button>
          </>
        ) : (
          <span className="hint">
            {answer.error ? answer.error.message : "Drag over the timeline to look at a part of it"}
          </span>
        )}
      </div>
      <div
        ref={box}
        className="timeline-box"
        role="application"
        aria-roledescription="timeline"
        aria-label="Arrow keys move the selected part of the window, with Shift its end; Escape takes it away."
        tabIndex={0}
        data-ready={scene ? "yes" : "no"}
        onKeyDown={onKey}
      >
        <canvas
          ref={canvas}
          style={{ width, height: HEIGHT }}
          onPointerDown={(event) => {
            if (event.button !== 0 || !scene) return;
            event.currentTarget.setPointerCapture(event.pointerId);
            anchor.current = timeAt(event.clientX);
            setHover(null);
          }}
          onPointerMove={onMove}
          onPointerUp={onUp}
          onPointerLeave={() => setHover(null)}
          onDoubleClick={zoomIn}
        />
        {hover && (
          <div
            className="timeline-tip"
            style={hover.x > width / 2 ? { right: width - hover.x + 8 } : { left: hover.x + 8 }}
          >
            {hover.text}
          </div>
        )}
      </div>
    </section>
  );
}
