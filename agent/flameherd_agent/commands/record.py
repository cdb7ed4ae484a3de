"""`flameherd record`."""

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType as StackFrame
from typing import Final

from flameherd_policy.durations import parse_duration

from flameherd_agent.app import DEFAULT_CACHE, EngineOptions
from flameherd_agent.errors import UsageError
from flameherd_agent.pipeline.formats import LABELLED, check_path, write_profile
from flameherd_agent.pipeline.frames import executables, with_process_roots
from flameherd_agent.recording import Recording, RecordingResult

_FOREVER_S: Final = 10 * 365 * 86400.0
_DEFAULT_SECONDS: Final = 10.0

HELP: Final = "profile a process, a container, a command or the machine into a file"
DESCRIPTION: Final = """\
Profiles for a while and writes one file; its extension chooses the format:

  .svg               a flame graph for any browser
  .pb.gz             pprof: `go tool pprof -http=: FILE`, Grafana, Speedscope
  .speedscope.json   https://www.speedscope.app
  .collapsed.txt     one line a stack, root first: flamegraph.pl, inferno

Examples:

  flameherd record --pid 4711
  flameherd record --all --duration 30s --output machine.pb.gz
  flameherd record --frequency 499 --output build.svg -- make -j2

Ctrl-C ends it early and keeps what was recorded."""


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = subparsers.add_parser(
        "record",
        help=HELP,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_argument_group("what to profile (one of)")
    what.add_argument(
        "-p", "--pid", type=int, action="append", default=[], metavar="PID",
        help="a process and what it forks; may be given again",
    )  # fmt: skip
    what.add_argument(
        "-c", "--container", action="append", default=[], metavar="ID",
        help="a container, by the first digits of its id; may be given again",
    )  # fmt: skip
    what.add_argument("-a", "--all", action="store_true", help="every process of the machine")
    what.add_argument(
        "command", nargs="*", metavar="-- COMMAND", help="start and profile a command"
    )
    parser.add_argument(
        "-d", "--duration", metavar="TIME",
        help="how long, as 30s or 2m (default: 10s; of a command: until it ends)",
    )  # fmt: skip
    parser.add_argument(
        "-F", "--frequency", type=int, default=97, metavar="HZ",
        help="samples per second of CPU time (default: 97)",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("profile.svg"), metavar="FILE",
        help="where to write (default: profile.svg)",
    )  # fmt: skip
    parser.add_argument(
        "--cache", type=Path, default=DEFAULT_CACHE, metavar="DIR",
        help=f"unwind tables and names are kept here (default: {DEFAULT_CACHE})",
    )  # fmt: skip
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar, no summary")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Record. Returns the exit code; of a command, its own."""
    _check(arguments)
    seconds = _seconds(arguments)
    if not arguments.command:
        result, _ = _record(arguments, arguments.pid, seconds, lambda: True, lambda: None)
        _finish(arguments, result)
        return 0
    with _Child(arguments.command) as child:
        result, _ = _record(arguments, [child.pid], seconds, child.running, child.start)
        _finish(arguments, result)
        return child.exit_code


def _check(arguments: argparse.Namespace) -> None:
    ways = [bool(arguments.pid), bool(arguments.container), arguments.all, bool(arguments.command)]
    if sum(ways) != 1:
        raise UsageError("name one of --pid, --container, --all or -- COMMAND to profile")
    check_path(arguments.output)
    for pid in arguments.pid:
        if not Path(f"/proc/{pid}").exists():
            raise UsageError(f"--pid {pid}: there is no such process")


def _seconds(arguments: argparse.Namespace) -> float:
    if arguments.duration is None:
        return _FOREVER_S if arguments.command else _DEFAULT_SECONDS
    try:
        return float(parse_duration(arguments.duration)) / 1e9
    except ValueError as error:
        raise UsageError(f"--duration {arguments.duration}: {error}") from error


def _record(
    arguments: argparse.Namespace,
    pids: list[int],
    seconds: float,
    running: Callable[[], bool],
    start: Callable[[], None],
) -> tuple[RecordingResult, Recording]:
    recording = Recording(
        pids,
        frequency_hz=arguments.frequency,
        containers=arguments.container,
        everything=arguments.all,
        options=EngineOptions(cache=arguments.cache),
    )
    progress = _Progress(seconds, enabled=not arguments.quiet and sys.stderr.isatty())
    with recording, _interrupts() as interrupted:
        start()

        def tick(elapsed: float) -> bool:
            progress.show(elapsed)
            return not interrupted() and running()

        recording.run(seconds, tick)
        progress.clear()
        return recording.result(), recording


def _finish(arguments: argparse.Namespace, result: RecordingResult) -> None:
    profiles = result.profiles
    if not str(arguments.output).endswith(LABELLED) and len(executables(profiles)) > 1:
        profiles = with_process_roots(profiles)
    write_profile(arguments.output, profiles)
    if not arguments.quiet:
        sys.stderr.write(summary_text(result, arguments.output))


def summary_text(result: RecordingResult, output: Path) -> str:
    """What was recorded, in four lines."""
    whole = result.outcomes.get("COMPLETE", 0) + result.outcomes.get("KERNEL_THREAD", 0)

    def share(part: int) -> str:
        return f"{100 * part / result.samples:.1f} %" if result.samples else "-"

    lines = [
        f"{result.samples} samples, {result.lost} lost ({share(result.lost)})",
        f"unwound to the root: {whole} ({share(whole)}); "
        f"leaf without a name: {result.unnamed_leaves()} ({share(result.unnamed_leaves())})",
    ]
    rest = {
        name: count
        for name, count in sorted(result.outcomes.items())
        if name not in ("COMPLETE", "KERNEL_THREAD") and count
    }
    if rest:
        lines.append("the rest: " + ", ".join(f"{name} {count}" for name, count in rest.items()))
    if not result.samples:
        lines.append("nothing was sampled: the processes used no CPU time while recording")
    lines.append(f"written to {output}")
    return "\n".join(lines) + "\n"


class _Progress:
    """A bar on the terminal, or a clock where the end is not known."""

    def __init__(self, seconds: float, *, enabled: bool) -> None:
        self._seconds = seconds
        self._enabled = enabled

    def show(self, elapsed: float) -> None:
        if not self._enabled:
            return
        if self._seconds >= _FOREVER_S:
            text = f"recording {elapsed:.0f} s, Ctrl-C ends"
        else:
            width = max(10, min(40, shutil.get_terminal_size().columns - 30))
            done = min(width, round(width * elapsed / self._seconds))
            text = f"[{'█' * done}{'·' * (width - done)}] {elapsed:.0f}/{self._seconds:.0f} s"
        sys.stderr.write(f"\r{text}\x1b[K")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._enabled:
            sys.stderr.write("\r\x1b[K")


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """SIGINT and SIGTERM end the recording instead of the program, once."""
    hit = False

    def note(_number: int, _frame: StackFrame | None) -> None:
        nonlocal hit
        hit = True

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: hit
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Child:
    """The command: forked at once, so that its pid can be selected, but executed only on `start`."""

    def __init__(self, command: list[str]) -> None:
        if shutil.which(command[0]) is None:
            raise UsageError(f"{command[0]}: there is no such command")
        self._gate_read, self._gate = os.pipe()
        self.exit_code = 0
        self._ended = False
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._gate)
            if os.read(self._gate_read, 1):
                os.execvp(command[0], command)  # noqa: S606 - the user's own command line
            os._exit(127)
        os.close(self._gate_read)

    def start(self) -> None:
        os.write(self._gate, b"1")

    def running(self) -> bool:
        if not self._ended:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._ended = True
                self.exit_code = os.waitstatus_to_exitcode(status)
        return not self._ended

    def __enter__(self) -> "_Child":
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._gate)
        if self.running():
            os.kill(self.pid, signal.SIGTERM)
            _, status = os.waitpid(self.pid, 0)
            self.exit_code = os.waitstatus_to_exitcode(status)
