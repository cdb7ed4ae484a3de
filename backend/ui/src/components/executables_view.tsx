/** Executables and libraries that occur in stacks: how much runs in each, and whether its functions have names. */
import { type ReactNode, useMemo, useState } from "react";
import type { ExecutablesAnswer } from "../api/answers";
import { amount, count, share } from "../core/format";
import { runtimeTitle, type Theme, runtimeSwatch } from "../core/palette";
import type { PageState } from "../core/page_state";
import { matcher } from "../core/search";
import { plainParameters } from "../core/selection";
import { useAnswer } from "../state/use_answer";
import type { Update } from "../state/use_page_state";
import { Failure, Notice } from "./notice";
import { SearchBox } from "./toolbar";
import { VirtualRows } from "./virtual_rows";

interface Props {
  state: PageState;
  update: Update;
  theme: Theme;
  tick: number;
}

type Column = "self" | "total" | "functions" | "unnamed" | "name";

const COLUMNS: readonly (readonly [column: Column | "", title: string, style: string])[] = [
  ["name", "Executable", "location"],
  ["", "Runtime", "text"],
  ["", "Build id", "text source"],
  ["functions", "Functions", "number narrow"],
  ["unnamed", "Without name", "number narrow"],
  ["self", "Self", "number"],
  ["total", "Total", "number"],
];

export function ExecutablesView({ state, update, theme, tick }: Props): ReactNode {
  const [sort, setSort] = useState<{ column: Column; descending: boolean }>({
    column: "self",
    descending: true,
  });
  const answer = useAnswer<ExecutablesAnswer, ExecutablesAnswer>(
    state.type ? "executables" : null,
    plainParameters(state),
    (wire) => wire,
    tick,
  );
  const data = answer.data;
  const order = useMemo(() => {
    if (!data) return [];
    const { rows, strings } = data;
    const test = matcher(state.search)?.test ?? (() => true);
    const text = (row: number): string => strings[rows.name[row]!] ?? "";
    const kept = rows.name
      .map((_, row) => row)
      .filter(
        (row) =>
          test(text(row)) || test(strings[rows.path[row]!] ?? "") || test(strings[rows.build_id[row]!] ?? ""),
      );
    const { column, descending } = sort;
    const compare = (a: number, b: number): number =>
      column === "name" ? (text(a) < text(b) ? -1 : 1) : rows[column][a]! - rows[column][b]!;
    return kept.sort((a, b) => (descending ? compare(b, a) : compare(a, b)));
  }, [data, state.search, sort]);

  if (answer.error && !data) return <Failure error={answer.error} onRetry={answer.retry} />;
  if (!data) return <Notice title="Loading executables" busy />;
  const { rows, strings, total, unit } = data;
  const mostSelf = rows.self.reduce((a, b) => Math.max(a, b), 0);
  const mostTotal = rows.total.reduce((a, b) => Math.max(a, b), 0);
  const header = (
    <div role="row" className="row head" aria-rowindex={1}>
      {COLUMNS.map(([column, title, style]) => {
        const active = column === sort.column;
        return (
          <div
            key={title}
            role="columnheader"
            className={`cell ${style}`}
            aria-sort={active ? (sort.descending ? "descending" : "ascending") : undefined}
          >
            {column ? (
              <button
                type="button"
                className={active ? "sort active" : "sort"}
                onClick={() => setSort({ column, descending: active ? !sort.descending : column !== "name" })}
              >
                {title}
                <span aria-hidden="true" className="arrow">
                  {active ? (sort.descending ? "↓" : "↑") : ""}
                </span>
              </button>
            ) : (
              title
            )}
          </div>
        );
      })}
    </div>
  );
  const bar = (value: number, most: number): ReactNode => (
    <div role="cell" className="cell number" title={share(value, total)}>
      <span className="bar" style={{ width: `${most > 0 ? (100 * value) / most : 0}%` }} />
      <span className="value">{amount(value, unit)}</span>
    </div>
  );
  return (
    <section className="list-view" aria-busy={answer.loading}>
      <div className="toolbar">
        <SearchBox state={state} update={update} found={state.search ? `${order.length} executables` : ""} />
        <span className="hint">Click a name to see its functions</span>
      </div>
      <div className="table wide" data-rows={order.length}>
        <VirtualRows
          count={order.length}
          rowHeight={28}
          header={header}
          label="Executables"
          columns={COLUMNS.length}
          resetKey={`${sort.column}${sort.descending}`}
          row={(index, top) => {
            const row = order[index]!;
            const name = strings[rows.name[row]!]! || "(no file)";
            const path = strings[rows.path[row]!]!;
            const kind = strings[rows.kind[row]!]!;
            const build = strings[rows.build_id[row]!]!;
            return (
              <div key={row} role="row" className="row" aria-rowindex={index + 2} style={{ top, height: 28 }}>
                <div role="cell" className="cell location">
                  <span className="swatch" style={{ background: runtimeSwatch(theme, kind) }} />
                  <button
                    type="button"
                    className="name"
                    title={path}
                    onClick={() => update({ view: "functions", search: path || name }, true)}
                  >
                    {name}
                  </button>
                </div>
                <div role="cell" className="cell text">
                  {runtimeTitle(kind)}
                </div>
                <div role="cell" className="cell text source" title={build}>
                  <code>{build.slice(0, 16) || "–"}</code>
                </div>
                <div role="cell" className="cell number narrow">
                  {count(rows.functions[row]!)}
                </div>
                <div role="cell" className="cell number narrow">
                  {rows.unnamed[row]! > 0
                    ? `${count(rows.unnamed[row]!)} (${share(rows.unnamed[row]!, rows.functions[row]!)})`
                    : "–"}
                </div>
                {bar(rows.self[row]!, mostSelf)}
                {bar(rows.total[row]!, mostTotal)}
              </div>
            );
          }}
        />
        {data.more && (
          <p className="footnote">
            The {count(rows.name.length)} largest of {count(data.count)}.
          </p>
        )}
      </div>
    </section>
  );
}
