"""When interpreters' programs are compiled: one at a time, and not beside a worker that is busy."""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from flameherd_agent.errors import EnvironmentProblem
from flameherd_agent.interpreters import compiling
from flameherd_agent.interpreters.compiling import Compilers
from flameherd_agent.interpreters.cpython import CPYTHON
from flameherd_agent.kernel.loader import Bytecode

OTHER = replace(CPYTHON, name="other", program="fh_other")


class Worker:
    """Stands for the worker: as busy as the test says."""

    def __init__(self) -> None:
        self.pending = 0
        self.paused = False
        self.rests = True

    def pause(self, wanted: bool) -> bool:
        self.paused = wanted
        return wanted and self.rests


class Compiler:
    """Stands for the loader child: ends when it is told to, and knows how many run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Semaphore(0)
        self.running: list[str] = []
        self.most = 0
        monkeypatch.setattr(compiling, "bytecode", self.compile)

    def compile(self, cache: Path | None, extra: Sequence[str], programs: list[str]) -> Bytecode:
        self.running += programs
        self.most = max(self.most, len(self.running))
        assert self.go.acquire(timeout=60)
        self.running.remove(programs[0])
        if programs == [OTHER.program]:
            raise EnvironmentProblem("refused")
        return Bytecode({}, {})


def wait_for(compilers: Compilers) -> tuple[str, bool]:
    """(interpreter, whether its program was made) of the next that is done."""
    until = time.monotonic() + 60
    while (done := compilers.poll()) is None:
        assert time.monotonic() < until
        time.sleep(0.001)
    return done[0].name, isinstance(done[1], Bytecode)


def test_one_at_a_time_each_once_and_the_worker_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, worker = Compiler(monkeypatch), Worker()
    compilers = Compilers(None, worker)
    for interpreter in (CPYTHON, CPYTHON, OTHER):
        compilers.want(interpreter)
    assert compilers.poll() is None
    compilers.want(CPYTHON)
    assert worker.paused
    compiler.go.release(2)
    assert wait_for(compilers) == (CPYTHON.name, True)
    assert wait_for(compilers) == (OTHER.name, False)
    assert compiler.most == 1
    assert not worker.paused
    assert compilers.poll() is None
    compilers.close()


def test_a_busy_worker_comes_first_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, worker = Compiler(monkeypatch), Worker()
    now = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: now)
    compilers = Compilers(None, worker)
    worker.pending, worker.rests = 3, False
    compilers.want(CPYTHON)
    compilers.poll()
    assert not worker.paused
    now += compiling.PATIENCE_S
    compilers.poll()
    assert worker.paused, "names wait from now on"
    assert not compiler.running
    now += compiling.PATIENCE_S
    compilers.poll()
    compiler.go.release()
    compilers.close()
    assert compilers.poll() is not None
    assert not worker.paused


def test_bytecode_from_the_cache_waits_for_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler, worker = Compiler(monkeypatch), Worker()
    monkeypatch.setattr(compiling, "is_compiled", lambda cache, sources: cache == tmp_path)
    worker.pending = 3
    compilers = Compilers(tmp_path, worker)
    compilers.want(CPYTHON)
    compilers.poll()
    compiler.go.release()
    assert wait_for(compilers) == (CPYTHON.name, True)
    assert not worker.paused
