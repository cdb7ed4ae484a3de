/** What is looked at: profile type, filters, window, comparison. */
import type { ReactNode } from "react";
import type { LabelsAnswer, ProfileType } from "../api/answers";
import type { PageState } from "../core/page_state";
import { type Filter, filterText, valuesOf, windowBefore, withValues } from "../core/selection";
import type { Answer } from "../state/use_answer";
import type { Update } from "../state/use_page_state";
import { Icon } from "./icons";
import { LabelMenu, LabelValues, labelTitle } from "./label_menu";
import { Popover } from "./popover";
import { WindowPicker } from "./window_picker";

interface Props {
  state: PageState;
  update: Update;
  types: ProfileType[];
  labels: Answer<LabelsAnswer>;
  loading: boolean;
  onRefresh: () => void;
}

const USUAL = ["instance", "namespace", "workload", "pod", "container", "node"];

export function QueryBar({ state, update, types, labels, loading, onRefresh }: Props): ReactNode {
  const known = labels.data?.labels ?? [];
  const counts = new Map(known.map(({ name, values }) => [name, values]));
  const filtered = [...new Set(state.filters.map(({ label }) => label))];
  const shown = [...new Set([...USUAL, ...filtered])];
  const others = known.map(({ name }) => name).filter((name) => !shown.includes(name));
  const unit = types.find(({ id }) => id === state.type)?.unit ?? "count";
  const negative = state.filters.filter(({ operator }) => operator === "!=");
  const listed = types.some(({ id }) => id === state.type);
  return (
    <div className="query-bar">
      <label className="field">
        <span className="filter-label">Profile</span>
        <select
          value={state.type}
          onChange={(event) => update({ type: event.target.value, zoom: 0, path: [] }, true)}
        >
          {types.map(({ id, title }) => (
            <option key={id} value={id}>
              {title}
            </option>
          ))}
          {!listed && <option value={state.type}>{state.type || "none yet"}</option>}
        </select>
      </label>
      {shown.map((label) => (
        <LabelMenu
          key={label}
          label={label}
          selection={state}
          unit={unit}
          known={counts.get(label) ?? 0}
          chosen={valuesOf(state.filters, label)}
          onChange={(values) => update({ filters: withValues(state.filters, label, values) }, true)}
        />
      ))}
      {others.length > 0 && (
        <Popover className="filter" title="More filters" label={<Icon name="plus" />} caret={false}>
          {(close) => (
            <ul className="menu-list">
              {others.map((label) => (
                <li key={label}>
                  <Popover className="flat" label={`${labelTitle(label)} (${counts.get(label)})`}>
                    {() => (
                      <LabelValues
                        label={label}
                        selection={state}
                        unit={unit}
                        chosen={valuesOf(state.filters, label)}
                        onChange={(values) => {
                          update({ filters: withValues(state.filters, label, values) }, true);
                          close();
                        }}
                      />
                    )}
                  </Popover>
                </li>
              ))}
            </ul>
          )}
        </Popover>
      )}
      {negative.map((filter) => (
        <Chip
          key={filterText(filter)}
          filter={filter}
          onRemove={() => update({ filters: state.filters.filter((other) => other !== filter) }, true)}
        />
      ))}
      <span className="spacer" />
      <WindowPicker
        label="Window"
        window={state.window}
        onChange={(window) => update({ window, brush: null }, true)}
      />
      <button
        type="button"
        className={state.live ? "button active" : "button"}
        aria-pressed={state.live}
        title="Ask again every 10 seconds"
        onClick={() => update({ live: !state.live })}
      >
        Live
      </button>
      <button type="button" className="button square" title="Refresh (r)" onClick={onRefresh}>
        <span className={loading ? "turning" : ""}>
          <Icon name="refresh" />
        </span>
        <span className="sr-only">Refresh</span>
      </button>
      <button
        type="button"
        className={state.base ? "button active" : "button"}
        aria-pressed={state.base !== null}
        title="Compare with another window or other filters"
        onClick={() =>
          update(
            {
              base: state.base
                ? null
                : { window: windowBefore(state.window, Date.now()), filters: state.filters },
              sort: state.base ? "self" : "diff",
              descending: true,
            },
            true,
          )
        }
      >
        <Icon name="compare" /> Compare
      </button>
    </div>
  );
}

function Chip({ filter, onRemove }: { filter: Filter; onRemove: () => void }): ReactNode {
  return (
    <button type="button" className="chip" title="Take this filter away" onClick={onRemove}>
      {labelTitle(filter.label)} is not {filter.value || "(none)"} <Icon name="close" />
    </button>
  );
}

/** The baseline of a comparison: its window and its filters, and where it stands. */
export function CompareBar({
  state,
  update,
  labels,
  types,
}: Omit<Props, "loading" | "onRefresh">): ReactNode {
  const base = state.base;
  if (!base) return null;
  const unit = types.find(({ id }) => id === state.type)?.unit ?? "count";
  const set = (change: Partial<typeof base>): void => update({ base: { ...base, ...change } }, true);
  const shown = [...new Set([...USUAL, ...base.filters.map(({ label }) => label)])];
  const counts = new Map((labels.data?.labels ?? []).map(({ name, values }) => [name, values]));
  return (
    <div className="query-bar compare" role="group" aria-label="Baseline of the comparison">
      <span className="badge base">Baseline</span>
      {shown.map((label) => (
        <LabelMenu
          key={label}
          label={label}
          selection={{ ...state, window: base.window, filters: base.filters, brush: null }}
          unit={unit}
          known={counts.get(label) ?? 0}
          chosen={valuesOf(base.filters, label)}
          onChange={(values) => set({ filters: withValues(base.filters, label, values) })}
        />
      ))}
      <span className="spacer" />
      <button
        type="button"
        className="button"
        title="The window of the same length that ends where the other begins"
        onClick={() => set({ window: windowBefore(state.window, Date.now()) })}
      >
        Window before
      </button>
      {state.brush && (
        <button
          type="button"
          className="button"
          title="Take the part of the timeline that is selected as the baseline"
          onClick={() => {
            const { brush } = state;
            if (brush)
              update(
                {
                  base: { ...base, window: { from: String(brush.from), to: String(brush.to) } },
                  brush: null,
                },
                true,
              );
          }}
        >
          Selection as baseline
        </button>
      )}
      <WindowPicker
        label="Window of the baseline"
        window={base.window}
        onChange={(window) => set({ window })}
      />
    </div>
  );
}
