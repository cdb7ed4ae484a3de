/** Search and how the picture is drawn. */
import { type ReactNode, useEffect, useRef } from "react";
import { matcher } from "../core/search";
import type { PageState } from "../core/page_state";
import type { Update } from "../state/use_page_state";
import { Icon } from "./icons";
import { Segments } from "./popover";

interface Props {
  state: PageState;
  update: Update;
  /** What the search found, in words. */
  found: string;
  /** Wheel, keys or fingers have moved the picture. */
  moved: boolean;
  onReset: () => void;
  canFocus: boolean;
  onFocus: () => void;
}

export function Toolbar({ state, update, found, moved, onReset, canFocus, onFocus }: Props): ReactNode {
  const changed =
    moved ||
    state.zoom !== 0 ||
    state.path.length > 0 ||
    state.sandwich !== "" ||
    state.search !== "" ||
    state.picked !== "";
  return (
    <div className="toolbar">
      <SearchBox state={state} update={update} found={found} />
      <Segments
        label="Panes"
        value={state.pane}
        choices={[
          ["table", "Table"],
          ["both", "Both"],
          ["flame", "Flamegraph"],
        ]}
        onChange={(pane) => update({ pane }, true)}
      />
      <button
        type="button"
        className="button"
        disabled={!changed}
        title="Whole flame graph, no search, no mark"
        onClick={() => {
          onReset();
          update({ zoom: 0, path: [], sandwich: "", search: "", picked: "" }, true);
        }}
      >
        Reset view
      </button>
      <button
        type="button"
        className="button"
        disabled={!canFocus}
        title={canFocus ? "Only what the selected frame called (f)" : "Select a frame first"}
        onClick={onFocus}
      >
        <Icon name="focus" /> Focus on subtree
      </button>
      <span className="spacer" />
      <Segments
        label="Which end of a long name is shown"
        value={state.align}
        choices={[
          ["head", "Head first", "Long names show their beginning"],
          ["tail", "Tail first", "Long names show their end"],
        ]}
        onChange={(align) => update({ align })}
      />
      <Segments
        label="Direction"
        value={state.orientation}
        choices={[
          ["icicle", "Icicle", "The root is on top"],
          ["flame", "Flame", "The root is at the bottom"],
        ]}
        onChange={(orientation) => update({ orientation })}
      />
      <Segments
        label="Colours"
        value={state.colour}
        choices={[
          ["runtime", "Runtime", "Colour by the language that runs the function"],
          ["package", "Package", "Colour by the package or library of the function"],
        ]}
        onChange={(colour) => update({ colour })}
      />
    </div>
  );
}

export function SearchBox({ state, update, found }: Pick<Props, "state" | "update" | "found">): ReactNode {
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      const target = event.target as HTMLElement;
      if (
        event.key !== "/" ||
        event.ctrlKey ||
        event.metaKey ||
        /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)
      )
        return;
      event.preventDefault();
      input.current?.focus();
      input.current?.select();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const error = matcher(state.search)?.error ?? "";
  return (
    <div className="search">
      <Icon name="search" />
      <input
        ref={input}
        type="search"
        placeholder="Search functions, files, libraries (/)"
        aria-label="Search functions, files and libraries; between slashes a regular expression"
        aria-invalid={error !== ""}
        title={error || "Between slashes: a regular expression"}
        value={state.search}
        onChange={(event) => update({ search: event.target.value })}
        onKeyDown={(event) => {
          if (event.key === "Escape") update({ search: "" });
        }}
      />
      <span className="found" role="status">
        {error ? "not a valid expression" : found}
      </span>
    </div>
  );
}
