"""Programs that a test keeps running: each by a name, with a log of its own.

They die with the test run, however it ends.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def _nothing(pid: int) -> None: ...


class Programs:
    """Started by `start`, told apart by name; logs are `NAME.log` in `folder`."""

    def __init__(
        self, folder: Path, enter: Sequence[str] = (), adopt: Callable[[int], None] = _nothing
    ) -> None:
        """`enter` goes before each command (`nsenter`, for one); `adopt` gets each new pid."""
        self._folder = folder
        self._enter = tuple(enter)
        self._adopt = adopt
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self,
        name: str,
        *command: str | Path,
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        entered: bool = True,
    ) -> None:
        """`entered` false: started here, whatever `enter` says."""
        prefix = self._enter if entered else ()
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*prefix, "setpriv", "--pdeathsig", "KILL", *map(str, command)],
                env=os.environ | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=pass_fds,
            )
        self._running[name] = process
        self._adopt(process.pid)

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def check(self) -> None:
        """Raises `RuntimeError`, with the end of its log, when one has ended by itself."""
        for name, process in self._running.items():
            if process.poll() is not None:
                raise RuntimeError(
                    f"{name} ended with {process.returncode}:\n{self.log(name)[-3000:]}"
                )

    def log(self, name: str) -> str:
        path = self._folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def stop(self, name: str) -> None:
        """By SIGKILL: there is nothing to tidy up, all of it is scratch."""
        process = self._running.pop(name, None)
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=60)

    def stop_all(self) -> None:
        """The last started first."""
        for name in reversed(list(self._running)):
            self.stop(name)
