"""The agent's side of the worker: asks, never waits.

    client = WorkerClient(cache_directory)
    number = client.submit(FileRequest(…))
    …                                       # select() on client.fileno(), or poll now and then
    for answer in client.poll(): …

Tables come before names: requests made by `submit_names` are sent when no other waits. Of tables the one comes first
that is needed most, as the asker says when the child has room for another request.

The child is started at the first request and again when it has ended. Requests go to it a few at a
time and come back in order, so the oldest one out is the one it works on: a child that dies, or
works on one request for longer than the time limit, costs that request (after a second try, if it
died), and the others are asked again. Everything that goes wrong is an answer with `error`; nothing
is raised.
"""

import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import Final

from flameherd_agent.worker import protocol
from flameherd_agent.worker.cache import fallback_places
from flameherd_agent.worker.protocol import (
    FileAnswer,
    FileRequest,
    Message,
    NamesAnswer,
    file_answer,
    names_answer,
)

__all__ = ["FileAnswer", "FileRequest", "NamesAnswer", "WorkerClient"]

log = logging.getLogger(__name__)

TABLES: Final = "tables"
"""Subdirectory of the cache directory that belongs to the worker."""
TIME_LIMIT_S: Final = 20.0
"""For one request. node takes 0.8 s of CPU; a throttled container may need many times that."""
START_LIMIT_S: Final = 30.0
IDLE_S: Final = 60.0
"""A warm child answers the next new process 0.2 to 0.4 s of CPU time sooner, for some 40 MB."""
_WINDOW: Final = 16
"""Requests that the child has at one time: it need not wait for the agent between two."""
_MAX_STARTS: Final = 3
"""After so many children in a row that did not come up, requests fail at once for a while."""
_MAX_DEATHS: Final = 2
"""A request gets a second child: when memory is short, the kernel kills the worker first."""
_REST_S: Final = 30.0
_STALE_S: Final = 3600.0
_PRIVATE: Final = "flameherd-worker-"


class _Call:
    """A request under way."""

    __slots__ = ("deaths", "message", "number", "on_answer", "urgent", "weight")

    def __init__(
        self,
        number: int,
        message: Message,
        on_answer: Callable[[Message], None],
        urgent: bool,
        weight: Callable[[], int],
    ) -> None:
        self.number = number
        self.weight = weight
        self.urgent = urgent
        self.message = message
        self.on_answer = on_answer
        self.deaths = 0
        """Children that died while this was the oldest request."""


class WorkerClient:
    """One worker child. Not thread-safe, and the child dies with the thread that started it.

    `cache` is where tables and names are kept (in a subdirectory).
    """

    def __init__(
        self,
        cache: Path,
        *,
        time_limit_s: float = TIME_LIMIT_S,
        idle_s: float = IDLE_S,
        command: tuple[str, ...] = (sys.executable, "-P", "-m", "flameherd_agent.worker.child"),
    ) -> None:
        self._cache = cache.absolute() / TABLES  # the worker runs elsewhere
        self._private = f"{_PRIVATE}{os.getpid()}-{os.urandom(4).hex()}"
        self._time_limit_s = time_limit_s
        self._idle_s = idle_s
        self._command = command
        self._number = 0
        self._waiting: deque[_Call] = deque()
        self._later: deque[_Call] = deque()
        self._sent: deque[_Call] = deque()
        self._answers: list[FileAnswer | NamesAnswer] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._ready = False
        self._since = 0.0
        """Monotonic time since when the child has worked on the oldest request, or started up."""
        self._failed_starts = 0
        self._rest_until = 0.0
        self._incoming = b""
        self._outgoing = b""
        self._warned: set[str] = set()
        self._hurried: frozenset[int] = frozenset()
        self._paused = False
        self._rested = False
        """Since the pause began, the child was told to give memory back."""
        self.children = 0
        """Started so far."""
        self.restarts = 0
        """Children that were killed or died of a request."""
        _remove_stale()

    @property
    def pending(self) -> int:
        """Requests without an answer yet."""
        queues = (self._waiting, self._later, self._sent, self._answers)
        return sum(len(queue) for queue in queues)

    def fileno(self) -> int:
        """The socket to select on; -1 while there is no child. It changes on restart."""
        return -1 if self._socket is None else self._socket.fileno()

    def start(self) -> None:
        """Starts the child now, so that it is there when the first request comes."""
        if self._process is None and time.monotonic() >= self._rest_until:
            self._start()

    def submit(self, request: FileRequest, weight: Callable[[], int] | None = None) -> int:
        """Asks for a file's ids and unwind table. Returns the number that the answer will carry.

        Of requests that wait, the one of the highest `weight` is sent first, without one in the order of asking.
        """
        message = asdict(request)
        number = self._number + 1
        return self.call(
            message.pop("kind"),
            message,
            lambda answer: self._answers.append(file_answer(number, answer)),
            weight=weight or _alike,
        )

    def submit_names(self, request: FileRequest, content_key: str) -> int:
        """Asks for the names of a file that was answered with `content_key`."""
        message = asdict(request)
        message |= {"of": message.pop("kind"), "content_key": content_key}
        number = self._number + 1
        return self.call(
            "names",
            message,
            lambda answer: self._answers.append(names_answer(number, answer)),
            urgent=False,
        )

    def hurry(self, numbers: Collection[int]) -> None:
        """Send these requests for names before the others."""
        wanted = frozenset(numbers)
        if not wanted <= self._hurried:
            self._hurried = wanted
            self._later = deque(sorted(self._later, key=lambda call: call.number not in wanted))

    def pause(self, wanted: bool) -> bool:
        """While `wanted`, requests for names wait. True once the child has nothing to do and gave memory back."""
        if wanted != self._paused:
            self._paused, self._rested = wanted, False
            self._advance()
        if not wanted or self._waiting or self._sent:
            return False
        if self._process is not None and not self._rested:
            self._rested = True
            self.call("rest", {}, _ignore)
            return False
        return True

    def call(
        self,
        kind: str,
        fields: Message,
        on_answer: Callable[[Message], None],
        *,
        urgent: bool = True,
        weight: Callable[[], int] | None = None,
    ) -> int:
        """Asks for a job of another kind; `poll` calls `on_answer` with the answer's fields."""
        self._number += 1
        message = {**fields, "kind": kind, "id": self._number}
        queue = self._waiting if urgent else self._later
        queue.append(_Call(self._number, message, on_answer, urgent, weight or _before_files))
        self._advance()
        return self._number

    def poll(self) -> list[FileAnswer | NamesAnswer]:
        """The answers to `submit` and `submit_names` that have come. Enforces time limits, restarts the child."""
        self._receive()
        if self._process is not None and (self._sent or not self._ready):
            limit = self._time_limit_s if self._ready else START_LIMIT_S
            if time.monotonic() - self._since > limit:
                text = f"takes longer than {limit:g} s"
                self._end(protocol.TIMEOUT, text)
        self._advance()
        answers, self._answers = self._answers, []
        return answers

    def close(self) -> None:
        """Ends the child and removes its private directory; requests left get no answer."""
        self._stop()
        for queue in (self._waiting, self._later, self._sent):
            queue.clear()
        for place in fallback_places(self._private):
            shutil.rmtree(place, ignore_errors=True)

    def _advance(self) -> None:
        """Starts a child if there is work for one, and sends it what fits the window."""
        if (self._waiting or (self._later and not self._paused)) and self._process is None:
            if time.monotonic() < self._rest_until:
                for queue in (self._waiting, self._later):
                    while queue:
                        self._fail(queue.popleft(), protocol.NO_WORKER, "no worker starts")
                return
            self._start()
        while self._ready and self._waiting and len(self._sent) < _WINDOW:
            first = max(self._waiting, key=lambda call: call.weight())
            self._waiting.remove(first)
            self._send(first)
        # One at a time, so that a table never waits for more than one file's names.
        if self._ready and self._later and not self._sent and not self._paused:
            self._send(self._later.popleft())
        if self._outgoing and self._socket is not None:
            try:
                sent = self._socket.send(self._outgoing)
                self._outgoing = self._outgoing[sent:]
            except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                pass  # full: more at the next poll; gone: reading tells how

    def _send(self, call: _Call) -> None:
        if not self._sent:
            self._since = time.monotonic()
        self._sent.append(call)
        self._outgoing += json.dumps(call.message).encode() + b"\n"

    def _start(self) -> None:
        self.children += 1
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        arguments = (
            *self._command,
            *("--cache", os.fspath(self._cache), "--private", self._private),
            *("--parent", str(os.getpid()), "--idle", str(self._idle_s)),
        )
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with theirs:
            self._process = subprocess.Popen(
                arguments,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env=environment,
                cwd="/",
            )
        self._socket = ours
        self._ready = False
        self._since = time.monotonic()

    def _receive(self) -> None:
        while self._socket is not None:
            try:
                received = self._socket.recv(1 << 18)
            except BlockingIOError:
                return
            except ConnectionResetError:
                received = b""
            if not received:
                self._end(protocol.CRASHED, "the worker died of it")
                return
            *lines, self._incoming = (self._incoming + received).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _take(self, message: Message) -> None:
        self._since = time.monotonic()
        if message == protocol.READY:
            self._ready = True
            self._failed_starts = 0
            return
        call = self._sent.popleft()
        self._warn(message.get("warning", ""))
        call.on_answer(message)

    def _end(self, reason: str, text: str) -> None:
        """The child is gone or has to go. Blames the oldest request unless it left by itself."""
        code = self._stop(0 if reason == protocol.TIMEOUT else 2.0)
        if not self._ready:
            self._failed_starts += 1
            if self._failed_starts >= _MAX_STARTS:
                log.error("the worker does not start (exit code %s)", code)
                self._rest_until = time.monotonic() + _REST_S
                self._failed_starts = 0
        elif code != 0:
            self.restarts += 1
            if self._sent:
                self._sent[0].deaths += 1
                if reason == protocol.TIMEOUT or self._sent[0].deaths == _MAX_DEATHS:
                    self._fail(self._sent.popleft(), reason, f"{text} (exit code {code})")
        self._ready = False
        while self._sent:
            call = self._sent.pop()
            (self._waiting if call.urgent else self._later).appendleft(call)

    def _stop(self, patience_s: float = 0.0) -> int | None:
        """Closes the socket and reaps the child, killed if need be. Returns its exit code."""
        code: int | None = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            try:
                code = self._process.wait(patience_s) if patience_s else self._process.poll()
            except subprocess.TimeoutExpired:
                code = None
            if code is None:
                self._process.kill()
                code = self._process.wait()
            self._process = None
        self._incoming = self._outgoing = b""
        return code

    def _fail(self, call: _Call, reason: str, text: str) -> None:
        call.on_answer({"error": text, "reason": reason})

    def _warn(self, text: str) -> None:
        if text.startswith("the cache directory") and text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)


def _alike() -> int:
    return 0


def _before_files() -> int:
    """Short work that is asked for once."""
    return 1 << 40


def _ignore(answer: Message) -> None:
    """Nothing depends on it."""


def _remove_stale() -> None:
    """Private directories that agents left which were killed."""
    for parent in {place.parent for place in fallback_places("")}:
        for path in parent.glob(f"{_PRIVATE}*-*"):
            pid = path.name.removeprefix(_PRIVATE).partition("-")[0]
            try:
                old = time.time() - path.stat().st_mtime > _STALE_S
            except OSError:
                continue
            if old and pid.isdecimal() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(path, ignore_errors=True)
