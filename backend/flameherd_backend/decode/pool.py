"""The server's end of the decoding workers: hands each message to an idle one, restarts those that die.

A message that takes too long or kills its worker is refused and counted; others go on. Workers are
plain children with pipes, not a pool of `concurrent.futures`: that one breaks as a whole when one
process dies.
"""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from flameherd_backend.decode.protocol import PREFIX, pack, unpack_prefix, unpack_sizes
from flameherd_backend.errors import Busy, Refused, TooLarge

log = logging.getLogger(__name__)

_RESTART_S: Final = 0.5
_PIPE_BUFFER: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Bounds of a worker."""

    max_bytes: int
    max_age_s: float
    memory_bytes: int = 2 << 30
    timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Request:
    """A message as it came, checked for its size only."""

    body: bytes
    gzipped: bool = False
    is_json: bool = False
    namespaces: frozenset[str] | None = None
    """That its sender may claim; None = any."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A message decoded."""

    blocks: Mapping[str, bytes]
    profiles: int
    rejected: int
    reason: str
    rows: int


@dataclass(slots=True)
class PoolStats:
    """What became of messages."""

    decoded: int = 0
    refused: int = 0
    died: int = 0
    rows: int = 0


class DecoderPool:
    """`start`, then `decode` as often as one likes, then `close`."""

    def __init__(self, key: bytes, settings: WorkerSettings, size: int) -> None:
        self._key = key
        self._settings = settings
        self._size = size
        self._idle: asyncio.Queue[asyncio.subprocess.Process | None] = asyncio.Queue()
        self._all: set[asyncio.subprocess.Process] = set()
        self.stats = PoolStats()

    async def start(self) -> None:
        """Starts the workers."""
        for _ in range(self._size):
            self._idle.put_nowait(await self._new_worker())

    def is_running(self) -> bool:
        """Whether there is a worker; one that died is replaced with the next message."""
        return bool(self._all) or not self._idle.empty()

    async def _new_worker(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "flameherd_backend.decode.worker",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            start_new_session=True, limit=_PIPE_BUFFER, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        self._all.add(process)
        settings = {
            "max_bytes": self._settings.max_bytes,
            "max_age_s": self._settings.max_age_s,
            "memory_bytes": self._settings.memory_bytes,
        }
        await self._send(process, settings, self._key)
        return process

    async def _send(
        self, process: asyncio.subprocess.Process, head: Mapping[str, Any], part: bytes
    ) -> None:
        assert process.stdin is not None
        process.stdin.writelines(pack(head, [part]))
        await process.stdin.drain()

    async def _receive(
        self, process: asyncio.subprocess.Process
    ) -> tuple[dict[str, Any], list[bytes]]:
        stream = process.stdout
        assert stream is not None
        head_bytes, count = unpack_prefix(await stream.readexactly(PREFIX.size))
        sizes = unpack_sizes(await stream.readexactly(8 * count))
        head = json.loads(await stream.readexactly(head_bytes))
        return head, [await stream.readexactly(size) for size in sizes]

    async def decode(self, request: Request, epoch: int) -> Answer:
        """The message's blocks. Raises `Refused`, or `Busy` if there is no worker."""
        process = await self._idle.get()
        try:
            if process is None or process.returncode is not None:
                process = await self._replace(process)
            head, parts = await asyncio.wait_for(
                self._exchange(process, request, epoch), self._settings.timeout_s
            )
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
            self.stats.died += 1
            self._kill(process)
            self._idle.put_nowait(None)
            reason = "took too long" if isinstance(error, TimeoutError) else "broke its worker"
            log.error("a message of %d bytes %s and is refused", len(request.body), reason)
            raise Refused(f"decoding the message {reason}") from error
        except BaseException:
            # Cancelled half way: the worker's answer would be taken for the next message's.
            self._kill(process)
            self._idle.put_nowait(None)
            raise
        self._idle.put_nowait(process)
        return self._answer(head, parts)

    def _answer(self, head: dict[str, Any], parts: list[bytes]) -> Answer:
        if "tables" in head:
            self.stats.decoded += 1
            self.stats.rows += head["rows"]
            blocks = dict(zip(head["tables"], parts, strict=True))
            return Answer(blocks, head["profiles"], head["rejected"], head["reason"], head["rows"])
        self.stats.refused += 1
        if "too_large" in head:
            raise TooLarge(head["too_large"])
        if "failed" in head:
            log.error("a message could not be decoded, by a mistake of ours: %s", head["failed"])
            raise Refused("decoding the message failed; the backend's log tells where")
        raise Refused(head["refused"])

    async def _exchange(
        self, process: asyncio.subprocess.Process, request: Request, epoch: int
    ) -> tuple[dict[str, Any], list[bytes]]:
        head = {
            "gzipped": request.gzipped,
            "json": request.is_json,
            "epoch": epoch,
            "namespaces": None if request.namespaces is None else sorted(request.namespaces),
        }
        await self._send(process, head, request.body)
        return await self._receive(process)

    async def _replace(self, dead: asyncio.subprocess.Process | None) -> asyncio.subprocess.Process:
        self._kill(dead)
        try:
            return await self._new_worker()
        except OSError as error:
            self._idle.put_nowait(None)
            raise Busy(f"no decoding worker can be started: {error}", _RESTART_S) from error

    def _kill(self, process: asyncio.subprocess.Process | None) -> None:
        if process is not None:
            self._all.discard(process)
            if process.returncode is None:
                process.kill()

    async def close(self) -> None:
        """Ends the workers."""
        for process in list(self._all):
            if process.stdin is not None:
                process.stdin.close()
        for process in list(self._all):
            try:
                await asyncio.wait_for(process.wait(), 5.0)
            except TimeoutError:
                self._kill(process)
                await process.wait()
        self._all.clear()
