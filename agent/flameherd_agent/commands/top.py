"""`flameherd top`: a live table of what the machine's CPU time is spent on."""

import argparse
import curses
import shutil
import sys
import time
from collections import deque
from pathlib import Path
from typing import Final

from flameherd_agent.app import DEFAULT_CACHE, Engine, EngineOptions
from flameherd_agent.model import ResourceProfiles
from flameherd_agent.pipeline.hot import HotRow, Sort, hot_functions, select, table
from flameherd_agent.recording import Recording

HELP: Final = "a live table: process or container, function, self, total"
DESCRIPTION: Final = """\
Shows, live, which functions the CPU time goes to. SELF is time in the function itself, TOTAL in it and what it
calls; both in percent of what was sampled in the window.

  keys: s sort by self, t by total, n by name; / filter by process or function, Esc clears it; q quits

Without a terminal, or with --once, one table is printed after one window."""

_REFRESH_S: Final = 2.0
_POLL_S: Final = 0.1


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "top",
        help=HELP,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    parser.add_argument(
        "-p", "--pid", type=int, action="append", default=[], help="only this process"
    )
    parser.add_argument(
        "-c", "--container", action="append", default=[], help="only this container"
    )
    parser.add_argument("-F", "--frequency", type=int, default=97, metavar="HZ", help="default: 97")
    parser.add_argument("--cache", type=Path, default=DEFAULT_CACHE, metavar="DIR")
    parser.set_defaults(run=run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `top` and `up` have in common."""
    parser.add_argument(
        "--sort", choices=[sort.value for sort in Sort], default="self", help="default: self"
    )
    parser.add_argument(
        "--filter", default="", metavar="TEXT", help="process or function contains TEXT"
    )
    parser.add_argument(
        "--window",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="look back so far (default: 10)",
    )
    parser.add_argument("--once", action="store_true", help="print one table and exit")


def run(arguments: argparse.Namespace) -> int:
    """Show the table until q."""
    recording = Recording(
        arguments.pid,
        frequency_hz=arguments.frequency,
        containers=arguments.container,
        everything=not (arguments.pid or arguments.container),
        options=EngineOptions(cache=arguments.cache),
    )
    with recording:
        show(recording.engine, arguments)
    return 0


def show(engine: Engine, arguments: argparse.Namespace) -> None:
    """Print or draw the table from an engine that is sampling."""
    view = Window(arguments.window)
    if arguments.once or not sys.stdout.isatty():
        engine.run(arguments.window)
        engine.settle(_REFRESH_S)
        view.add(engine.profiles(engine.take()))
        print_table(view, arguments)
        return
    curses.wrapper(lambda screen: _live(Screen(screen, view, arguments), engine, view))


def print_table(view: "Window", arguments: argparse.Namespace) -> None:
    """One table on standard output."""
    rows, everything = view.rows()
    size = shutil.get_terminal_size((120, 40))
    chosen = select(rows, Sort(arguments.sort), arguments.filter)
    sys.stdout.write("\n".join(table(chosen, everything, size.columns, 40)) + "\n")


def _live(screen: "Screen", engine: Engine, view: "Window") -> None:
    due = time.monotonic() + _REFRESH_S
    while not screen.poll():
        engine.step(_POLL_S)
        if time.monotonic() >= due:
            due = time.monotonic() + _REFRESH_S
            view.add(engine.profiles(engine.take()))


class Window:
    """The profiles of the last `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._intervals: deque[tuple[float, list[ResourceProfiles]]] = deque()
        self.changes = 0

    def add(self, profiles: list[ResourceProfiles]) -> None:
        """One interval more; what is older than the window goes."""
        now = time.monotonic()
        self.changes += 1
        self._intervals.append((now, profiles))
        while self._intervals[0][0] < now - self._seconds:
            self._intervals.popleft()

    def rows(self) -> tuple[list[HotRow], int]:
        """As `hot_functions`, of the whole window."""
        return hot_functions(resource for _, resources in self._intervals for resource in resources)


class Screen:
    """The screen: `poll` reads keys and redraws; whoever samples fills the window in between."""

    def __init__(
        self, screen: "curses.window", view: Window, arguments: argparse.Namespace
    ) -> None:
        self._screen = screen
        self._view = view
        self._sort = Sort(arguments.sort)
        self._filter: str = arguments.filter
        self._typing = False
        self._drawn = -1
        curses.curs_set(0)
        screen.nodelay(True)

    def poll(self) -> bool:
        """Whether the user wants to leave."""
        key = self._screen.getch()
        if key != -1 and not self._press(key):
            return True
        if key != -1 or self._drawn != self._view.changes:
            self._drawn = self._view.changes
            self._draw()
        return False

    def _press(self, key: int) -> bool:
        """Act on a key; False ends the loop."""
        if self._typing:
            if key in (curses.KEY_ENTER, 10, 13):
                self._typing = False
            elif key == 27:
                self._typing, self._filter = False, ""
            elif key in (curses.KEY_BACKSPACE, 127, 8):
                self._filter = self._filter[:-1]
            elif 32 <= key < 127:
                self._filter += chr(key)
            return True
        if key == ord("q"):
            return False
        if key == ord("/"):
            self._typing = True
        elif key == 27:
            self._filter = ""
        else:
            for sort in Sort:
                if key == ord(sort.value[0]):
                    self._sort = sort
        return True

    def _draw(self) -> None:
        height, width = self._screen.getmaxyx()
        self._screen.erase()
        rows, everything = self._view.rows()
        filtering = f"  filter: {self._filter}{'▏' if self._typing else ''}"
        head = (
            f"flameherd top  {len({row.owner for row in rows})} processes  {everything / 1e9:.2f} CPU s"
            f"  sort: {self._sort}{filtering if self._filter or self._typing else ''}"
        )
        chosen = select(rows, self._sort, self._filter)
        lines = [head, *table(chosen, everything, width - 1, height - 2)]
        if not rows:
            lines.append("collecting …")
        lines = lines[: height - 1]
        lines.append("s self  t total  n name  / filter  q quit")
        for number, line in enumerate(lines):
            style = curses.A_BOLD if number == 0 else curses.A_REVERSE if number == 1 else 0
            self._screen.addnstr(number, 0, line, width - 1, style)
        self._screen.refresh()
