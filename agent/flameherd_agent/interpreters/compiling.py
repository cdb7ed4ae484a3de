"""Compiling the interpreters' programs: one at a time, on a thread of its own, and not beside a worker that is busy.

A compiler takes a second and 50 MB, a worker that parses a large file twice that: together they would make the peak of
the agent's memory. So a program is compiled when the worker has nothing to do; on a node where it always has, after
`PATIENCE_S`, and names wait meanwhile. Bytecode that is in the cache is taken at once.
"""

import threading
import time
from pathlib import Path
from typing import Final, Protocol

from flameherd_agent.errors import EnvironmentProblem
from flameherd_agent.interpreters.base import Interpreter
from flameherd_agent.kernel.loader import Bytecode, bytecode, is_compiled

PATIENCE_S: Final = 10.0
"""Until names have to wait for a program, and as long again until tables no longer keep it waiting."""


class Neighbour(Protocol):
    """The worker, as far as it matters here."""

    @property
    def pending(self) -> int:
        """What it has to do."""

    def pause(self, wanted: bool) -> bool:
        """While `wanted`, begin nothing that can wait. True once it does nothing and has given memory back."""


class _Job:
    """A program that is wanted."""

    def __init__(self, interpreter: Interpreter, cache: Path | None) -> None:
        self.interpreter = interpreter
        self.result: Bytecode | EnvironmentProblem | None = None
        self.since = time.monotonic()
        self.is_compiled = is_compiled(cache, interpreter.sources)
        self._cache = cache
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.result = bytecode(
                self._cache, self.interpreter.sources, [self.interpreter.program]
            )
        except EnvironmentProblem as problem:
            self.result = problem


class Compilers:
    """The queue. `poll` moves it on."""

    def __init__(self, cache: Path | None, neighbour: Neighbour | None = None) -> None:
        self._cache = cache
        self._neighbour = neighbour
        self._waiting: dict[str, _Job] = {}
        """By interpreter, oldest first."""
        self._running: _Job | None = None
        self._pausing = False

    def want(self, interpreter: Interpreter) -> None:
        """Its program is needed. Asking again does nothing until the answer was given."""
        running = self._running is not None and self._running.interpreter is interpreter
        if not running and interpreter.name not in self._waiting:
            self._waiting[interpreter.name] = _Job(interpreter, self._cache)

    def poll(self) -> tuple[Interpreter, Bytecode | EnvironmentProblem] | None:
        """A program that is done, or why there is none; None while nothing is."""
        done: tuple[Interpreter, Bytecode | EnvironmentProblem] | None = None
        running = self._running
        if running is not None and not running.thread.is_alive():
            running.thread.join()
            self._running = None
            problem = EnvironmentProblem(f"{running.interpreter.program} was not compiled")
            done = running.interpreter, running.result or problem
            if self._neighbour is not None and self._pausing:
                self._pausing = False
                self._neighbour.pause(False)
        if self._running is None and self._waiting:
            job = min(self._waiting.values(), key=lambda job: not job.is_compiled)
            if self._may_begin(job):
                del self._waiting[job.interpreter.name]
                self._running = job
                job.thread.start()
        return done

    def _may_begin(self, job: _Job) -> bool:
        if self._neighbour is None or job.is_compiled:
            return True
        waited = time.monotonic() - job.since
        if not self._pausing and self._neighbour.pending and waited < PATIENCE_S:
            return False
        self._pausing = True
        return self._neighbour.pause(True) or waited >= 2 * PATIENCE_S

    def close(self) -> None:
        """Wait for a compiler that still runs."""
        if self._running is not None:
            self._running.thread.join()
