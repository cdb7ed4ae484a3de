/** Name, views, and what concerns the page as a whole. */
import { type ReactNode, useRef } from "react";
import type { Theme } from "../core/palette";
import type { PageState, View } from "../core/page_state";
import { plainParameters } from "../core/selection";
import { getFile, storedToken, url } from "../api/client";
import type { Update } from "../state/use_page_state";
import { Flame, Icon } from "./icons";
import { Popover } from "./popover";

interface Props {
  state: PageState;
  update: Update;
  theme: Theme;
  /** A file is shown: the server's views and exports do not apply. */
  local: boolean;
  onTheme: () => void;
  onHelp: () => void;
  onFile: (file: File) => void;
  onMessage: (text: string) => void;
}

const TABS: readonly (readonly [view: View, title: string])[] = [
  ["flamegraph", "Flame graph"],
  ["functions", "Functions"],
  ["executables", "Executables"],
  ["traces", "Traces"],
];

const FORMATS = [
  ["pprof", "pprof", "for go tool pprof and most other tools"],
  ["speedscope", "speedscope", "for speedscope.app"],
  ["collapsed", "Collapsed stacks", "a line for each stack"],
  ["svg", "SVG", "a flame graph that opens in a browser"],
] as const;

export function Header({
  state,
  update,
  theme,
  local,
  onTheme,
  onHelp,
  onFile,
  onMessage,
}: Props): ReactNode {
  const input = useRef<HTMLInputElement>(null);
  const link = (format: string): { path: string; query: URLSearchParams } => {
    const query = plainParameters(state);
    query.set("format", format);
    return { path: "export", query };
  };
  const download = async (format: string): Promise<void> => {
    const { path, query } = link(format);
    try {
      const { name, content } = await getFile(path, query);
      const anchor = document.createElement("a");
      anchor.href = URL.createObjectURL(content);
      anchor.download = name;
      anchor.click();
      setTimeout(() => URL.revokeObjectURL(anchor.href), 60_000);
    } catch (error) {
      onMessage(error instanceof Error ? error.message : String(error));
    }
  };
  const copyLink = async (): Promise<void> => {
    try {
      await navigator.clipboard.writeText(location.href);
      onMessage("Link copied");
    } catch {
      onMessage("The browser does not let this page copy: the link is in the address bar");
    }
  };
  return (
    <header className="top">
      <h1>
        <Flame /> Flameherd
      </h1>
      <nav aria-label="Views">
        {TABS.filter(([view]) => !local || view === "flamegraph" || view === "functions").map(
          ([view, title]) => (
            <button
              key={view}
              type="button"
              aria-current={state.view === view ? "page" : undefined}
              onClick={() => update({ view }, true)}
            >
              {title}
            </button>
          ),
        )}
      </nav>
      <span className="spacer" />
      {!local && (
        <Popover
          label={
            <>
              <Icon name="download" /> <span className="wide-only">Export</span>
            </>
          }
          title="Export"
          align="right"
        >
          {(close) => (
            <ul className="menu-list exports">
              {FORMATS.map(([format, title, hint]) => {
                const { path, query } = link(format);
                return (
                  <li key={format}>
                    <a
                      href={url(path, query)}
                      download
                      onClick={(event) => {
                        // A link cannot carry the token.
                        if (storedToken()) {
                          event.preventDefault();
                          void download(format);
                        }
                        close();
                      }}
                    >
                      <strong>{title}</strong>
                      <span>{hint}</span>
                    </a>
                  </li>
                );
              })}
            </ul>
          )}
        </Popover>
      )}
      <button
        type="button"
        className="button"
        title="Open a pprof or speedscope file; it stays in this browser"
        onClick={() => input.current?.click()}
      >
        <Icon name="open" /> <span className="wide-only">Open file</span>
      </button>
      <input
        ref={input}
        type="file"
        hidden
        aria-label="Profile file"
        accept=".pb,.gz,.pprof,.prof,.json"
        onChange={(event) => {
          const file = event.target.files?.[0];
          if (file) onFile(file);
          event.target.value = "";
        }}
      />
      <button
        type="button"
        className="button square"
        title="Copy a link to this view"
        onClick={() => void copyLink()}
      >
        <Icon name="link" />
        <span className="sr-only">Copy a link to this view</span>
      </button>
      <button
        type="button"
        className="button square"
        title={theme === "dark" ? "Light colours" : "Dark colours"}
        onClick={onTheme}
      >
        <Icon name={theme === "dark" ? "sun" : "moon"} />
        <span className="sr-only">{theme === "dark" ? "Light colours" : "Dark colours"}</span>
      </button>
      <button type="button" className="button square" title="Keys and help (?)" onClick={onHelp}>
        <Icon name="help" />
        <span className="sr-only">Keys and help</span>
      </button>
    </header>
  );
}
