/** The window: the usual lengths at a click, or any two times. */
import { type ReactNode, useState } from "react";
import { type Window, isRelative, resolve } from "../core/selection";
import { moment, span } from "../core/format";
import { Popover } from "./popover";

const USUAL: readonly (readonly [from: string, title: string])[] = [
  ["now-1m", "1 min"],
  ["now-5m", "5 min"],
  ["now-15m", "15 min"],
  ["now-1h", "1 h"],
];

/** `2026-11-21T14:05:09` in local time, as `<input type="datetime-local">` wants it. */
function local(ms: number): string {
  const date = new Date(ms - new Date(ms).getTimezoneOffset() * 60_000);
  return date.toISOString().slice(0, 19);
}

interface Props {
  label: string;
  window: Window;
  onChange: (window: Window) => void;
}

export function windowTitle(window: Window): string {
  const known = USUAL.find(([from]) => from === window.from && window.to === "now");
  if (known) return `last ${known[1]}`;
  if (isRelative(window.from) && window.to === "now") return `last ${window.from.slice(4)}`;
  const now = Date.now();
  const [from, to] = [resolve(window.from, now), resolve(window.to, now)];
  return `${moment(from)} + ${span(to - from)}`;
}

export function WindowPicker({ label, window, onChange }: Props): ReactNode {
  const usual = USUAL.find(([from]) => from === window.from && window.to === "now");
  return (
    <div className="segments window" role="group" aria-label={label}>
      {USUAL.map(([from, title]) => (
        <button
          key={from}
          type="button"
          aria-pressed={usual?.[0] === from}
          onClick={() => onChange({ from, to: "now" })}
        >
          {title}
        </button>
      ))}
      <Popover
        className={usual ? "custom" : "custom active"}
        align="right"
        label={
          <>
            <span className="sr-only">Custom window:</span> {usual ? "Custom" : windowTitle(window)}
          </>
        }
      >
        {(close) => (
          <Custom
            window={window}
            onChange={(next) => {
              onChange(next);
              close();
            }}
          />
        )}
      </Popover>
    </div>
  );
}

function Custom({ window, onChange }: { window: Window; onChange: (window: Window) => void }): ReactNode {
  const now = Date.now();
  const [from, setFrom] = useState(() => local(resolve(window.from, now)));
  const [to, setTo] = useState(() => local(resolve(window.to, now)));
  const [start, end] = [new Date(from).getTime(), new Date(to).getTime()];
  const valid = start < end;
  return (
    <form
      className="custom-window"
      onSubmit={(event) => {
        event.preventDefault();
        if (valid) onChange({ from: String(start), to: String(end) });
      }}
    >
      <label>
        From
        <input
          type="datetime-local"
          step={1}
          value={from}
          onChange={(event) => setFrom(event.target.value)}
        />
      </label>
      <label>
        To
        <input type="datetime-local" step={1} value={to} onChange={(event) => setTo(event.target.value)} />
      </label>
      <p className="hint">{valid ? span(end - start) : "The end must come after the beginning."}</p>
      <button type="submit" className="button primary" disabled={!valid}>
        Show
      </button>
      <div className="presets">
        {(["3h", "6h", "12h", "1d", "7d"] as const).map((length) => (
          <button
            key={length}
            type="button"
            className="button"
            onClick={() => onChange({ from: `now-${length}`, to: "now" })}
          >
            {length.replace(/(\d+)/, "$1 ")}
          </button>
        ))}
      </div>
    </form>
  );
}
