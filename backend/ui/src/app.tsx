/** The page: one state (in the URL), one bar that says what is looked at, four views of it. */
import { type ReactNode, useCallback, useEffect, useRef, useState } from "react";
import type { LabelsAnswer, ProfileTypesAnswer, StatusAnswer } from "./api/answers";
import { Empty } from "./components/empty";
import { ExecutablesView } from "./components/executables_view";
import { FileDrop } from "./components/file_drop";
import { FlamePanel } from "./components/flame_panel";
import { FunctionsView } from "./components/functions_view";
import { Header } from "./components/header";
import { Help } from "./components/help";
import { Failure, Notice } from "./components/notice";
import { OpeningBar } from "./components/opening_bar";
import { CompareBar, QueryBar } from "./components/query_bar";
import { Timeline } from "./components/timeline";
import { TracesView } from "./components/traces_view";
import type { Recording } from "./core/recording";
import { plainParameters } from "./core/selection";
import { amount } from "./core/format";
import { useAnswer } from "./state/use_answer";
import { useFile } from "./state/use_file";
import { usePageState } from "./state/use_page_state";
import { useFilePicture, useServerPicture } from "./state/use_profile";
import { useTheme } from "./state/use_theme";

const LIVE_MS = 10_000;
const WAITING_MS = 2000;
const MESSAGE_MS = 4000;

interface Opened {
  recording: Recording;
  series: number;
}

export function App(): ReactNode {
  const [state, update] = usePageState();
  const [theme, toggleTheme] = useTheme();
  const [tick, setTick] = useState(0);
  const [help, setHelp] = useState(false);
  const [message, setMessage] = useState("");
  const [opened, setOpened] = useState<Opened | null>(null);
  const refresh = useCallback(() => setTick((n) => n + 1), []);
  const local = opened !== null;

  const types = useAnswer<ProfileTypesAnswer, ProfileTypesAnswer>(
    local ? null : "profile-types",
    new URLSearchParams({ from: state.window.from, to: state.window.to }),
    (wire) => wire,
    tick,
  );
  const listed = types.data?.types ?? [];
  const firstType = listed[0]?.id ?? "";
  useEffect(() => {
    if (!local && state.type === "" && firstType !== "") update({ type: firstType });
  }, [local, state.type, firstType, update]);

  const want =
    state.view === "functions" || state.pane === "table"
      ? "table"
      : state.pane === "flame"
        ? "graph"
        : "both";
  const onGraph = state.view === "flamegraph" || state.view === "functions";
  const server = useServerPicture(state, !local && onGraph, want, tick);
  const file = useFilePicture(opened?.recording ?? null, opened?.series ?? 0, state);
  const picture = local ? file : server;

  const nothing =
    !local &&
    types.data !== null &&
    (listed.length === 0 || (picture.head?.total === 0 && onGraph && !state.base));
  // The picture first: what only menus and messages need is asked for when it is there.
  const status = useAnswer<StatusAnswer, StatusAnswer>(
    nothing ? "status" : null,
    new URLSearchParams(),
    (wire) => wire,
    tick,
  );
  const labels = useAnswer<LabelsAnswer, LabelsAnswer>(
    state.type && !local && (picture.head || !onGraph) ? "labels" : null,
    plainParameters({ ...state, filters: [], path: [], brush: null }),
    (wire) => wire,
    tick,
  );
  const waiting = nothing && status.data?.newest === null;
  const pace = waiting ? WAITING_MS : state.live && !local ? LIVE_MS : 0;
  // An answer that is slower than the pace must not be given up for the next question.
  const busy = useRef(false);
  busy.current = picture.loading || types.loading || status.loading;
  useEffect(() => {
    if (pace === 0) return;
    const timer = setInterval(() => {
      if (!document.hidden && !busy.current) refresh();
    }, pace);
    return () => clearInterval(timer);
  }, [pace, refresh]);

  useEffect(() => {
    if (message === "") return;
    const timer = setTimeout(() => setMessage(""), MESSAGE_MS);
    return () => clearTimeout(timer);
  }, [message]);

  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName))
        return;
      if (event.key === "?") setHelp(true);
      else if (event.key === "r") refresh();
      else if (event.key === "t") update({ pane: "table" }, true);
      else if (event.key === "b") update({ pane: "both" }, true);
      else if (event.key === "g") update({ pane: "flame" }, true);
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [update, refresh]);

  const onRead = (recording: Recording): void => {
    setOpened({
      recording,
      series: Math.max(
        0,
        recording.series.findLastIndex(({ total }) => total > 0),
      ),
    });
    update({ view: "flamegraph", zoom: 0, path: [], sandwich: "", picked: "", search: "", base: null }, true);
    setMessage("");
  };
  const files = useFile(onRead, (name, reason) => setMessage(`${name} cannot be shown: ${reason}`));
  const onCopy = useCallback((text: string) => {
    navigator.clipboard.writeText(text).then(
      () => setMessage("Name copied"),
      () => setMessage("The browser does not let this page copy"),
    );
  }, []);

  const title = local
    ? (opened.recording.series[opened.series]?.title ?? "")
    : (listed.find(({ id }) => id === state.type)?.title ?? state.type);
  const blocked = types.error ?? (nothing ? null : !picture.head ? picture.error : null);

  let body: ReactNode;
  // Again for all: what one view was refused, for want of a token say, the others were too.
  if (!local && blocked) body = <Failure error={blocked} onRetry={refresh} />;
  else if (nothing) body = <Empty state={state} update={update} status={status.data} />;
  else if (state.view === "executables" && !local)
    body = <ExecutablesView state={state} update={update} theme={theme} tick={tick} />;
  else if (state.view === "traces" && !local)
    body = <TracesView state={state} update={update} theme={theme} tick={tick} />;
  else if (!picture.head) body = <Notice title="Loading the flame graph" busy />;
  else if (picture.lost && !state.sandwich) {
    body = (
      <Notice title="This subtree is not in the selection">
        <p>The link points at a call path that has no samples here, or only few.</p>
        <button type="button" className="button primary" onClick={() => update({ path: [], zoom: 0 }, true)}>
          Show everything
        </button>
      </Notice>
    );
  } else if (state.view === "functions")
    body = <FunctionsView state={state} update={update} picture={picture} theme={theme} />;
  else
    body = (
      <FlamePanel
        state={state}
        update={update}
        picture={picture}
        theme={theme}
        typeTitle={title}
        onCopy={onCopy}
      />
    );

  return (
    <div className="page">
      <Header
        state={state}
        update={update}
        theme={theme}
        local={local}
        onTheme={toggleTheme}
        onHelp={() => setHelp(true)}
        onFile={files.open}
        onMessage={setMessage}
      />
      {local ? (
        <div className="query-bar file" role="status">
          <span className="badge">{opened.recording.file}</span>
          <label className="field">
            <span className="filter-label">Profile</span>
            <select
              value={opened.series}
              onChange={(event) => setOpened({ ...opened, series: Number(event.target.value) })}
            >
              {opened.recording.series.map(({ title: name, total, unit }, i) => (
                // The titles in a file need not differ.
                // oxlint-disable-next-line react/no-array-index-key
                <option key={i} value={i}>
                  {name}: {amount(total, unit)}
                </option>
              ))}
            </select>
          </label>
          <span className="hint">
            Read in this browser; nothing was uploaded. {opened.recording.notes.join("; ")}
          </span>
          <span className="spacer" />
          <button
            type="button"
            className="button"
            onClick={() => {
              setOpened(null);
              update({ zoom: 0, path: [], sandwich: "", picked: "" });
            }}
          >
            Close file
          </button>
        </div>
      ) : (
        <>
          <QueryBar
            state={state}
            update={update}
            types={listed}
            labels={labels}
            loading={picture.loading || types.loading}
            onRefresh={refresh}
          />
          <CompareBar state={state} update={update} types={listed} labels={labels} />
          {!waiting && blocked?.trouble !== "unauthorized" && (
            <Timeline state={state} update={update} theme={theme} tick={tick} labels={labels} />
          )}
        </>
      )}
      <main>
        {picture.error && picture.head && !blocked && (
          <p className="stale">Not up to date: {picture.error.message}</p>
        )}
        {body}
      </main>
      {help && <Help onClose={() => setHelp(false)} />}
      <FileDrop onFile={files.open} />
      {files.opening && <OpeningBar opening={files.opening} onCancel={files.cancel} />}
      <div className="toast" role="status" data-shown={message !== ""}>
        {message}
      </div>
    </div>
  );
}
