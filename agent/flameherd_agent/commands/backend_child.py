"""`flameherd-backend` as a child of `flameherd up`.

It is a program, not an import: it maps 180 MB of ClickHouse, and crashes alone. It runs in a session of
its own, so that Ctrl-C reaches only `up`, which sends the last interval first; and it ends when its
stdin does, so that it never outlives `up`, however that ends.
"""

import collections
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from flameherd_agent.errors import EnvironmentProblem

_PROGRAM: Final = "flameherd-backend"
_READY: Final = re.compile(r"flameherd-backend: ready;.* page on port (\d+)")
_READY_S: Final = 120.0
_STOP_S: Final = 30.0
_KEPT_LINES: Final = 5


def find_program() -> str:
    """Beside this command, else on the path. Raises `EnvironmentProblem`."""
    beside = Path(sys.argv[0]).resolve().with_name(_PROGRAM)
    found = str(beside) if beside.exists() else shutil.which(_PROGRAM)
    if found is None:
        raise EnvironmentProblem(
            f"{_PROGRAM} is not installed beside flameherd nor on the path: install it, or run "
            "`flameherd up --no-page` for the table in this terminal"
        )
    return found


class BackendChild:
    """A backend that is starting or runs; what it says goes to stderr."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._ready = threading.Event()
        self._said: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self._port = 0
        self._reader = threading.Thread(target=self._read, name="backend", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := _READY.search(line):
                self._port = int(found[1])
                self._ready.set()
                continue
            self._said.append(line.strip())
            if self._port:
                sys.stderr.write(line)
        self._ready.set()

    def page_port(self) -> int:
        """Waits until it is ready. Raises `EnvironmentProblem` with what it said if it is not."""
        self._ready.wait(_READY_S)
        if not self._port:
            raise EnvironmentProblem(f"{_PROGRAM} did not start: {self._last_words()}")
        return self._port

    def check(self) -> None:
        """Raises `EnvironmentProblem` if it has ended."""
        code = self._process.poll()
        if code is not None:
            raise EnvironmentProblem(f"{_PROGRAM} ended with code {code}: {self._last_words()}")

    def _last_words(self) -> str:
        return " | ".join(self._said) or "it said nothing"

    def stop(self) -> None:
        """Lets it store what it has, and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_STOP_S)
        assert self._process.stderr is not None
        self._process.stderr.close()


@contextmanager
def backend(arguments: Sequence[str]) -> Iterator[BackendChild]:
    """A backend with these arguments, until the end of the block."""
    process = subprocess.Popen(
        [find_program(), "--until-stdin-ends", "--log-level", "warning", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    child = BackendChild(process)
    try:
        yield child
    finally:
        child.stop()
