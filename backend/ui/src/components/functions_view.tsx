/** Top functions: the table in full width, with runtime, source and mapping. */
import { type ReactNode, useDeferredValue, useMemo } from "react";
import { fillsOf } from "../core/legend";
import type { Theme } from "../core/palette";
import type { PageState } from "../core/page_state";
import { matchFrames } from "../core/search";
import type { Picture } from "../state/use_profile";
import type { Update } from "../state/use_page_state";
import { FunctionTable } from "./function_table";
import { Notice } from "./notice";
import { SearchBox } from "./toolbar";

interface Props {
  state: PageState;
  update: Update;
  picture: Picture;
  theme: Theme;
}

export function FunctionsView({ state, update, picture, theme }: Props): ReactNode {
  const { table } = picture;
  const search = useDeferredValue(state.search);
  const fills = useMemo(
    () => (table ? fillsOf(table.frames, state.colour, theme) : []),
    [table, state.colour, theme],
  );
  const matches = useMemo(() => (table ? matchFrames(table.frames, search) : null), [table, search]);
  if (!table) return <Notice title="Loading functions" busy />;
  const found = matches ? `${matches.reduce((sum, one) => sum + one, 0)} functions` : "";
  return (
    <section className="list-view" aria-busy={picture.loading}>
      <div className="toolbar">
        <SearchBox state={state} update={update} found={found} />
        <span className="hint">Sums over everything selected; double click shows callers and callees</span>
      </div>
      <FunctionTable
        data={table}
        matches={matches}
        fills={fills}
        sort={state.sort}
        descending={state.descending}
        picked={state.picked}
        wide
        onSort={(sort, descending) => update({ sort, descending })}
        onPick={(picked) => update({ picked })}
        onSandwich={(id) => update({ view: "flamegraph", pane: "both", sandwich: id, zoom: 0 }, true)}
      />
    </section>
  );
}
