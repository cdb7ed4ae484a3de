/** The filter for one label: a menu of its values with their totals, several may be chosen. */
import { type ReactNode, useDeferredValue, useState } from "react";
import type { LabelValuesAnswer } from "../api/answers";
import { amount } from "../core/format";
import { type Selection, plainParameters } from "../core/selection";
import { useAnswer } from "../state/use_answer";
import { Popover } from "./popover";

const TITLES: ReadonlyMap<string, string> = new Map(
  Object.entries({
    instance: "Instance",
    service: "Service",
    cluster: "Cluster",
    namespace: "Namespace",
    workload: "Workload",
    pod: "Pod",
    container: "Container",
    node: "Node",
    executable: "Executable",
    thread: "Thread",
  }),
);

export const labelTitle = (label: string): string => TITLES.get(label) ?? label;

interface Props {
  label: string;
  selection: Selection;
  unit: string;
  chosen: readonly string[];
  onChange: (values: string[]) => void;
}

interface MenuProps extends Props {
  /** Distinct values in the window: without any, the menu is of no use and stays away. */
  known: number;
}

export function LabelMenu({ known, ...props }: MenuProps): ReactNode {
  const { label, chosen } = props;
  if (known === 0 && chosen.length === 0) return null;
  const shown =
    chosen.length === 0 ? "" : chosen.length === 1 ? chosen[0] || "(none)" : `${chosen.length} chosen`;
  return (
    <Popover
      className={chosen.length > 0 ? "filter active" : "filter"}
      label={
        <>
          <span className="filter-label">{labelTitle(label)}</span>
          {shown && <span className="filter-value">{shown}</span>}
        </>
      }
    >
      {() => <LabelValues {...props} />}
    </Popover>
  );
}

export function LabelValues({ label, selection, unit, chosen, onChange }: Props): ReactNode {
  const [search, setSearch] = useState("");
  const wanted = useDeferredValue(search.trim());
  const query = plainParameters({ ...selection, path: [] });
  if (wanted) query.set("search", wanted);
  const answer = useAnswer<LabelValuesAnswer, LabelValuesAnswer>(
    `labels/${encodeURIComponent(label)}/values`,
    query,
    (wire) => wire,
    0,
  );
  const values = answer.data?.values ?? [];
  // What is chosen stays in the list, or it could not be taken back when it has no samples here.
  const missing = wanted ? [] : chosen.filter((value) => !values.some((listed) => listed.value === value));
  const toggle = (value: string): void =>
    onChange(chosen.includes(value) ? chosen.filter((other) => other !== value) : [...chosen, value]);
  return (
    <div className="values">
      <input
        type="search"
        // The panel opens on a click or a key; where typing goes should follow.
        autoFocus
        placeholder={`Find ${labelTitle(label).toLowerCase()}`}
        aria-label={`Find ${labelTitle(label).toLowerCase()}`}
        value={search}
        onChange={(event) => setSearch(event.target.value)}
      />
      <ul>
        {[...missing.map((value) => ({ value, total: 0 })), ...values].map(({ value, total }) => (
          <li key={value}>
            <label>
              <input type="checkbox" checked={chosen.includes(value)} onChange={() => toggle(value)} />
              <span className="value-name">{value || "(none)"}</span>
              <span className="value-total">{amount(total, unit)}</span>
            </label>
          </li>
        ))}
      </ul>
      {answer.error && <p className="hint">{answer.error.message}</p>}
      {answer.data && values.length === 0 && <p className="hint">No value has samples in this window.</p>}
      {answer.data?.more && <p className="hint">There are more: type a part of the name.</p>}
      <button type="button" className="button" disabled={chosen.length === 0} onClick={() => onChange([])}>
        All
      </button>
    </div>
  );
}
