/** Single stacks: which ones were sampled how often, with every frame. */
import { type ReactNode, useDeferredValue, useMemo, useState } from "react";
import { readFrames, type TracesAnswer } from "../api/answers";
import { amount, basename, count, moment, position, share } from "../core/format";
import { fillsOf } from "../core/legend";
import type { Theme } from "../core/palette";
import type { PageState } from "../core/page_state";
import { plainParameters } from "../core/selection";
import { useAnswer } from "../state/use_answer";
import type { Update } from "../state/use_page_state";
import { Failure, Notice } from "./notice";
import { Segments } from "./popover";
import { SearchBox } from "./toolbar";

interface Props {
  state: PageState;
  update: Update;
  theme: Theme;
  tick: number;
}

export function TracesView({ state, update, theme, tick }: Props): ReactNode {
  const [sort, setSort] = useState<"value" | "recent">("value");
  const [open, setOpen] = useState("");
  const search = useDeferredValue(state.search.trim());
  const query = plainParameters(state);
  query.set("sort", sort);
  query.set("limit", "200");
  if (search) query.set("search", search);
  const answer = useAnswer<TracesAnswer, { wire: TracesAnswer; frames: ReturnType<typeof readFrames> }>(
    state.type ? "traces" : null,
    query,
    (wire) => ({ wire, frames: readFrames(wire) }),
    tick,
  );
  const frames = answer.data?.frames;
  const fills = useMemo(
    () => (frames ? fillsOf(frames, state.colour, theme) : []),
    [frames, state.colour, theme],
  );
  if (answer.error && !answer.data) return <Failure error={answer.error} onRetry={answer.retry} />;
  if (!answer.data || !frames) return <Notice title="Loading traces" busy />;
  const { traces, total, unit, count: all } = answer.data.wire;
  const shown = traces.id.includes(open) ? traces.id.indexOf(open) : 0;
  const stack = traces.stack[shown] ?? [];
  return (
    <section className="list-view" aria-busy={answer.loading}>
      <div className="toolbar">
        <SearchBox state={state} update={update} found={`${count(all)} distinct stacks`} />
        <Segments
          label="Order"
          value={sort}
          choices={[
            ["value", "Most first"],
            ["recent", "Latest first"],
          ]}
          onChange={setSort}
        />
      </div>
      <div className="traces">
        <ul className="trace-list" aria-label="Stacks">
          {traces.id.map((id, i) => {
            const leaf = traces.stack[i]![0];
            return (
              <li key={id}>
                <button type="button" aria-pressed={i === shown} onClick={() => setOpen(id)}>
                  <span className="trace-leaf">
                    <span className="swatch" style={{ background: leaf === undefined ? "" : fills[leaf] }} />
                    {leaf === undefined ? "(empty stack)" : frames.name[leaf]}
                  </span>
                  <span className="trace-facts">
                    {amount(traces.value[i]!, unit)} · {share(traces.value[i]!, total)} ·{" "}
                    {traces.stack[i]!.length} frames
                  </span>
                </button>
              </li>
            );
          })}
        </ul>
        <article className="trace" aria-label="Frames of the stack">
          {traces.id.length === 0 ? (
            <p className="none">No stack matches.</p>
          ) : (
            <>
              <header>
                <span>{count(traces.samples[shown]!)} samples</span>
                <span>
                  {moment(traces.first[shown]!)} – {moment(traces.last[shown]!)}
                </span>
                {Object.entries(traces.labels[shown] ?? {}).map(([label, value]) => (
                  <button
                    key={label}
                    type="button"
                    className="chip"
                    title="Filter by this"
                    onClick={() =>
                      update({ filters: [...state.filters, { label, operator: "=", value }] }, true)
                    }
                  >
                    {label}={value}
                  </button>
                ))}
              </header>
              <ol>
                {stack.map((frame, depth) => (
                  // Recursion: the same frame more than once.
                  // oxlint-disable-next-line react/no-array-index-key
                  <li key={depth}>
                    <span className="swatch" style={{ background: fills[frame] }} />
                    <span className="frame-name">{frames.name[frame]}</span>
                    <span className="frame-place">
                      {position(basename(frames.file[frame]!), frames.line[frame]!)}{" "}
                      {basename(frames.mapping[frame]!)}
                    </span>
                  </li>
                ))}
              </ol>
            </>
          )}
        </article>
      </div>
    </section>
  );
}
