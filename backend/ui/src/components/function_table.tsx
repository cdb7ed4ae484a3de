/** The table Location, Self, Total: beside the flame graph, and with more columns as the view "Functions". */
import { type ReactNode, useMemo } from "react";
import { amount, points, position, share } from "../core/format";
import { shortMapping } from "../core/describe";
import { runtimeTitle } from "../core/palette";
import type { Sort } from "../core/page_state";
import { firstDirection, largest, orderRows, rowChange } from "../core/table";
import type { FunctionTable as Data } from "../api/answers";
import { Icon } from "./icons";
import { VirtualRows } from "./virtual_rows";

interface Props {
  data: Data;
  matches: Uint8Array | null;
  fills: string[];
  sort: Sort;
  descending: boolean;
  picked: string;
  /** With runtime, source and mapping. */
  wide: boolean;
  onSort: (sort: Sort, descending: boolean) => void;
  onPick: (id: string) => void;
  onSandwich: (id: string) => void;
}

const ROW = 28;

export function FunctionTable(props: Props): ReactNode {
  const { data, matches, fills, sort, descending, picked, wide, onSort, onPick, onSandwich } = props;
  const { frames, rows, totals } = data;
  const compared = rows.baseSelf !== undefined;
  const order = useMemo(
    () => orderRows(frames, rows, totals, matches, sort, descending),
    [frames, rows, totals, matches, sort, descending],
  );
  const most = useMemo(() => largest(rows), [rows]);

  const head = (key: Sort, title: string, extra = ""): ReactNode => {
    const active = sort === key;
    return (
      <div
        role="columnheader"
        className={`cell ${extra}`}
        aria-sort={active ? (descending ? "descending" : "ascending") : "none"}
      >
        <button
          type="button"
          className={active ? "sort active" : "sort"}
          onClick={() => onSort(key, active ? !descending : firstDirection(key))}
        >
          {title}
          <span aria-hidden="true" className="arrow">
            {active ? (descending ? "↓" : "↑") : ""}
          </span>
        </button>
      </div>
    );
  };
  const header = (
    <div role="row" className="row head" aria-rowindex={1}>
      {head("name", "Location", "location")}
      {wide && (
        <div role="columnheader" className="cell text">
          Runtime
        </div>
      )}
      {wide && (
        <div role="columnheader" className="cell text source">
          Source
        </div>
      )}
      {wide && (
        <div role="columnheader" className="cell text">
          Mapping
        </div>
      )}
      {head("self", "Self", "number")}
      {head("total", "Total", "number")}
      {compared && head("diff", "Change", "number narrow")}
    </div>
  );

  const bar = (value: number, scale: number, whole: number): ReactNode => (
    <div role="cell" className="cell number" title={share(value, whole)}>
      <span className="bar" style={{ width: `${scale > 0 ? (100 * value) / scale : 0}%` }} />
      <span className="value">{amount(value, totals.unit)}</span>
    </div>
  );
  const row = (index: number, top: number): ReactNode => {
    const at = order[index]!;
    const frame = rows.frame[at]!;
    const id = frames.id[frame]!;
    const name = frames.name[frame]!;
    const change = compared ? rowChange(rows, totals, at) : 0;
    return (
      <div
        key={id}
        role="row"
        aria-rowindex={index + 2}
        className={id === picked ? "row picked" : "row"}
        style={{ top, height: ROW }}
      >
        <div role="cell" className="cell location">
          <span className="swatch" style={{ background: fills[frame] }} />
          <button
            type="button"
            className="name"
            aria-pressed={id === picked}
            title={`${name}\n${position(frames.file[frame]!, frames.line[frame]!)}\n${frames.mapping[frame]!}`.trim()}
            onClick={() => onPick(id === picked ? "" : id)}
            onDoubleClick={() => onSandwich(id)}
          >
            {name}
          </button>
          <button type="button" className="quiet" title="Callers and callees" onClick={() => onSandwich(id)}>
            <Icon name="sandwich" />
            <span className="sr-only">Callers and callees of {name}</span>
          </button>
        </div>
        {wide && (
          <div role="cell" className="cell text">
            {runtimeTitle(frames.kind[frame]!)}
          </div>
        )}
        {wide && (
          <div role="cell" className="cell text source" title={frames.file[frame]}>
            {position(frames.file[frame]!, frames.line[frame]!) || "–"}
          </div>
        )}
        {wide && (
          <div role="cell" className="cell text" title={frames.mapping[frame]}>
            {shortMapping(frames.mapping[frame]!)}
          </div>
        )}
        {bar(rows.self[at]!, most.self, totals.total)}
        {bar(rows.total[at]!, most.total, totals.total)}
        {compared && (
          <div role="cell" className={`cell number narrow ${change > 0 ? "more" : change < 0 ? "less" : ""}`}>
            <span className="value">{points(change)}</span>
          </div>
        )}
      </div>
    );
  };
  return (
    <div className={`table ${wide ? "wide" : ""} ${compared ? "compared" : ""}`} data-rows={order.length}>
      <VirtualRows
        count={order.length}
        rowHeight={ROW}
        header={header}
        label="Functions"
        columns={(wide ? 6 : 3) + (compared ? 1 : 0)}
        row={row}
        resetKey={`${sort}${descending}`}
        reveal={picked === "" ? -1 : order.findIndex((at) => frames.id[rows.frame[at]!] === picked)}
      />
      {order.length === 0 && <p className="none">No function matches the search.</p>}
      {data.count > rows.frame.length && (
        <p className="footnote">
          The {rows.frame.length.toLocaleString("en")} largest of {data.count.toLocaleString("en")} functions.
        </p>
      )}
    </div>
  );
}
