/** The view that engineers know: table and flame graph side by side, under one toolbar. */
import { type ReactNode, useCallback, useDeferredValue, useMemo, useState } from "react";
import { amount, count, share } from "../core/format";
import { widthHint } from "../core/describe";
import { fillsOf, legendOf } from "../core/legend";
import { DIFF_STEPS, type Theme, diffColour, diffStep } from "../core/palette";
import type { PageState } from "../core/page_state";
import { matchFrames, matchedValue } from "../core/search";
import { type StackTree, findByHash, pathOf } from "../core/tree";
import type { Picture } from "../state/use_profile";
import type { Update } from "../state/use_page_state";
import { FlameGraph } from "./flame_graph";
import { ACTIONS, type FrameAction } from "./frame_menu";
import { FunctionTable } from "./function_table";
import { Icon } from "./icons";
import { Legend } from "./legend";
import { Notice } from "./notice";
import { SandwichView } from "./sandwich_view";
import { Toolbar } from "./toolbar";

interface Props {
  state: PageState;
  update: Update;
  picture: Picture;
  theme: Theme;
  typeTitle: string;
  onCopy: (text: string) => void;
}

/** Fill of a node: the change in a comparison, else the colour of its frame. */
function filler(tree: StackTree, fills: string[], theme: Theme): (node: number) => string {
  const { total, baseTotal } = tree.totals;
  const base = tree.baseValue;
  if (!base) return (node) => fills[tree.frame[node]!]!;
  const scale = Array.from({ length: 2 * DIFF_STEPS + 1 }, (_, i) => diffColour(theme, i - DIFF_STEPS));
  return (node) => {
    const now = total > 0 ? tree.value[node]! / total : 0;
    const before = baseTotal ? base[node]! / baseTotal : 0;
    return scale[diffStep(now, before) + DIFF_STEPS]!;
  };
}

export function FlamePanel({ state, update, picture, theme, typeTitle, onCopy }: Props): ReactNode {
  const { tree, table, sandwich, head } = picture;
  const [selected, setSelected] = useState<{ tree: StackTree; node: number } | null>(null);
  const [moved, setMoved] = useState(false);
  const [home, setHome] = useState(0);
  const search = useDeferredValue(state.search);

  const shown = state.sandwich ? (sandwich?.callees ?? null) : tree;
  const look = useMemo(() => {
    if (!shown) return null;
    const fills = fillsOf(shown.frames, state.colour, theme);
    return { fills, fillOf: filler(shown, fills, theme), legend: legendOf(shown, state.colour, theme) };
  }, [shown, state.colour, theme]);
  const matches = useMemo(() => (shown ? matchFrames(shown.frames, search) : null), [shown, search]);
  const lit = useMemo(() => {
    if (!shown || (!matches && !state.picked)) return null;
    const picked = state.picked ? shown.frames.id.indexOf(state.picked) : -1;
    return (frame: number) => (!matches || matches[frame] === 1) && (picked < 0 || frame === picked);
  }, [shown, matches, state.picked]);
  const tableFills = useMemo(
    () => (table ? fillsOf(table.frames, state.colour, theme) : []),
    [table, state.colour, theme],
  );
  const tableMatches = useMemo(() => (table ? matchFrames(table.frames, search) : null), [table, search]);

  const onZoom = useCallback(
    (node: number) => update({ zoom: tree && node > 0 ? tree.pathHash[node]! : 0 }),
    [tree, update],
  );
  const act = useCallback(
    (of: StackTree, action: FrameAction, node: number) => {
      const frame = of.frame[node]!;
      const id = of.frames.id[frame]!;
      if (action === "zoom") onZoom(node);
      else if (action === "copy") onCopy(of.frames.name[frame] || "all");
      else if (frame === 0) return;
      else if (action === "sandwich") update({ sandwich: id, zoom: 0 }, true);
      else if (action === "pick") update({ picked: id === state.picked ? "" : id });
      else if (of === tree && node > 0) {
        const path = [...state.path, ...pathOf(of, node).map((at) => of.frames.id[of.frame[at]!]!)];
        update({ path, zoom: 0 }, true);
      }
    },
    [tree, state.path, state.picked, update, onZoom, onCopy],
  );
  const onAction = useCallback(
    (action: FrameAction, node: number) => {
      if (tree) act(tree, action, node);
    },
    [tree, act],
  );
  const onSelect = useCallback(
    (node: number) => setSelected(tree && node >= 0 ? { tree, node } : null),
    [tree],
  );

  const zoom = tree && state.zoom ? Math.max(0, findByHash(tree, state.zoom)) : 0;
  const current = selected && selected.tree === tree ? selected.node : -1;
  const unit = head?.unit ?? "count";
  const compared = head?.base_total !== null && head?.base_total !== undefined;
  const hint = state.sandwich
    ? "Above: who called the function. Below: what it called. Widths are shares of its total"
    : widthHint(state.type, typeTitle, unit, compared);

  return (
    <section className="flame-panel" aria-busy={picture.loading}>
      <Toolbar
        state={state}
        update={update}
        found={
          matches && shown
            ? `${matches.reduce((sum, one) => sum + one, 0)} functions, ${share(matchedValue(shown, matches), shown.value[0]!)}`
            : ""
        }
        moved={moved && !state.sandwich && state.pane !== "table"}
        onReset={() => setHome((times) => times + 1)}
        canFocus={current > 0}
        onFocus={() => onAction("focus", current)}
      />
      {(picture.trail.length > 0 || state.sandwich) && (
        <nav className="trail" aria-label="Focused subtree">
          <button type="button" onClick={() => update({ path: [], zoom: 0, sandwich: "" }, true)}>
            all
          </button>
          {picture.trail.map(({ name }, i) => (
            <button
              // The same function may occur twice on the way down.
              // oxlint-disable-next-line react/no-array-index-key
              key={i}
              type="button"
              aria-current={i === picture.trail.length - 1 && !state.sandwich}
              title={name}
              onClick={() => update({ path: state.path.slice(0, i + 1), zoom: 0, sandwich: "" }, true)}
            >
              {name}
            </button>
          ))}
          {state.sandwich && sandwich && (
            <span>callers and callees of {sandwich.callees.frames.name[sandwich.frame]}</span>
          )}
        </nav>
      )}
      <div className={`panes ${state.pane}`}>
        {state.pane !== "flame" && !table && (
          <div className="table">
            <Notice title="Loading functions" busy />
          </div>
        )}
        {state.pane !== "flame" && table && (
          <FunctionTable
            data={table}
            matches={tableMatches}
            fills={tableFills}
            sort={state.sort}
            descending={state.descending}
            picked={state.picked}
            wide={state.pane === "table"}
            onSort={(sort, descending) => update({ sort, descending })}
            onPick={(picked) => update({ picked })}
            onSandwich={(id) =>
              update({ sandwich: id, zoom: 0, pane: state.pane === "table" ? "both" : state.pane }, true)
            }
          />
        )}
        {state.pane !== "table" && (
          <div className="flame-column">
            {state.sandwich && sandwich && look ? (
              <SandwichView
                sandwich={sandwich}
                theme={theme}
                align={state.align}
                lookOf={(half) => filler(half, look.fills, theme)}
                lit={lit}
                onAction={act}
              />
            ) : !state.sandwich && tree && look ? (
              <FlameGraph
                tree={tree}
                theme={theme}
                upward={state.orientation === "flame"}
                align={state.align}
                fillOf={look.fillOf}
                lit={lit}
                zoom={zoom}
                title={`${typeTitle}: ${amount(tree.value[0]!, unit)}`}
                home={home}
                onMoved={setMoved}
                onZoom={onZoom}
                onSelect={onSelect}
                onAction={onAction}
              />
            ) : (
              <Notice title="Loading the flame graph" busy />
            )}
            <div className="details">
              {current > 0 && tree ? (
                <>
                  <strong title={tree.frames.name[tree.frame[current]!]}>
                    {tree.frames.name[tree.frame[current]!]}
                  </strong>
                  <span>
                    total {amount(tree.value[current]!, unit)} (
                    {share(tree.value[current]!, tree.totals.total)}), self{" "}
                    {amount(tree.self[current]!, unit)}
                  </span>
                  <span className="actions">
                    {ACTIONS.map(({ action, title, icon, keys }) => (
                      <button
                        key={action}
                        type="button"
                        title={`${title} (${keys})`}
                        onClick={() => onAction(action, current)}
                      >
                        <Icon name={icon} />
                        <span className="sr-only">{title}</span>
                      </button>
                    ))}
                  </span>
                </>
              ) : (
                <span className="hint">
                  {hint}
                  {picture.pruned > 0 && !state.sandwich && (
                    <> · {count(picture.pruned)} smaller frames not drawn</>
                  )}
                </span>
              )}
              <span className="spacer" />
              {look && <Legend entries={look.legend} theme={theme} compared={compared} />}
            </div>
          </div>
        )}
      </div>
    </section>
  );
}
