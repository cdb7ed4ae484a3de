/** Why there is nothing to see, and what to do about it. */
import type { ReactNode } from "react";
import type { StatusAnswer } from "../api/answers";
import { moment, span } from "../core/format";
import type { PageState } from "../core/page_state";
import { type Window, resolve } from "../core/selection";
import type { Update } from "../state/use_page_state";
import { Notice } from "./notice";

interface Props {
  state: PageState;
  update: Update;
  status: StatusAnswer | null;
}

/** A window of the same length around the newest sample. */
function windowAt(newest: number, window: Window, now: number): Window {
  const length = resolve(window.to, now) - resolve(window.from, now);
  return { from: String(Math.round(newest - length + 1000)), to: String(Math.round(newest + 1000)) };
}

export function Empty({ state, update, status }: Props): ReactNode {
  if (!status) return <Notice title="Asking the backend" busy />;
  const { newest, now, viewer } = status;
  if (newest === null) {
    return (
      <Notice title="Waiting for the first profile" busy>
        <p>
          Nothing has arrived yet
          {viewer.namespaces ? ` for the namespaces ${viewer.namespaces.join(", ")}` : ""}. This page looks
          again every two seconds.
        </p>
        <ul>
          <li>
            On this machine: <code>flameherd up</code> starts agent and backend together; the first stacks
            come within 15 seconds.
          </li>
          <li>
            From another machine: set its policy&apos;s <code>export.endpoint</code> to{" "}
            <code>http://{location.hostname}:4317</code>.
          </li>
          <li>
            From any OpenTelemetry sender: OTLP profiles over gRPC (4317) or HTTP (4318,{" "}
            <code>/v1development/profiles</code>).
          </li>
          <li>
            <code>flameherd doctor</code> tells what this kernel or container does not allow.
          </li>
        </ul>
      </Notice>
    );
  }
  const filtered = state.filters.length > 0 || state.path.length > 0;
  return (
    <Notice title={filtered ? "No samples with these filters" : "No samples in this window"}>
      <p>
        The newest sample that you may see is from {moment(newest)}, {span(Math.max(0, now - newest))} ago.
      </p>
      <p className="buttons">
        {filtered && (
          <button
            type="button"
            className="button primary"
            onClick={() => update({ filters: [], path: [] }, true)}
          >
            Remove the filters
          </button>
        )}
        {state.brush && (
          <button type="button" className="button" onClick={() => update({ brush: null }, true)}>
            Whole window
          </button>
        )}
        <button
          type="button"
          className={filtered ? "button" : "button primary"}
          onClick={() => update({ window: windowAt(newest, state.window, now), brush: null }, true)}
        >
          Show the newest samples
        </button>
        <button
          type="button"
          className="button"
          onClick={() => update({ window: { from: "now-1h", to: "now" }, brush: null }, true)}
        >
          Last hour
        </button>
      </p>
    </Notice>
  );
}
