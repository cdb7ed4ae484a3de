"""The seam to the engine: run a statement, run a query, insert blocks. Embedded here, a server in `server.py`.

The embedded engine is chDB: ClickHouse in this process. One connection writes; each reading thread
takes one of a few others, since a connection does one thing at a time. The engine's own caps
bound its memory. Values never become part of a statement: they go as parameters (`{name:Type}`).
"""

import queue
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from flameherd_backend.errors import EnvironmentProblem, QueryTimeout, StoreError, StoreFull
from flameherd_backend.store import results

DATABASE: Final = "flameherd"
_CODE: Final = re.compile(r"Code: (\d+)\.")
_TIMEOUT: Final = frozenset({159, 209})
_FULL: Final = frozenset({241, 243, 244})
_TOO_MUCH: Final = frozenset({158, 396, 307})
_NO_SPACE: Final = re.compile(r"No space left on device|Disk quota exceeded|Too many parts")
_MAX_MESSAGE: Final = 400

Value = int | str | Sequence[int] | Sequence[str]


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Bounds of one query."""

    seconds: float = 10.0
    memory_bytes: int = 1 << 30
    threads: int = 0
    """0 = as many as there are cores."""

    def settings(self) -> dict[str, str]:
        """As settings of the engine."""
        chosen = {
            "max_execution_time": f"{self.seconds:g}",
            "max_memory_usage": str(self.memory_bytes),
            "max_result_rows": "5000000",
        }
        return {**chosen, "max_threads": str(self.threads)} if self.threads else chosen


DEFAULT_LIMITS: Final = QueryLimits()


class Database(Protocol):
    """Implementations raise `StoreError` and its kinds."""

    def execute(self, sql: str, parameters: Mapping[str, Value] | None = None) -> None:
        """A statement without a result, on the writing side."""

    def query(
        self,
        sql: str,
        parameters: Mapping[str, Value] | None = None,
        limits: QueryLimits = DEFAULT_LIMITS,
    ) -> results.Table:
        """A SELECT's columns."""

    def insert(self, table: str, blocks: Sequence[bytes]) -> None:
        """Blocks of `Native` format into a table; returns when they are stored."""

    def close(self) -> None:
        """Ends all connections."""


def parameter(value: Value) -> str:
    """A parameter's value as the engine reads it."""
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return (
            value.replace("\\", "\\\\")
            .replace("\t", "\\t")
            .replace("\n", "\\n")
            .replace("\r", "\\r")
            .replace("\0", "\\0")
        )
    items = [
        str(item)
        if isinstance(item, int)
        else "'" + item.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0") + "'"
        for item in value
    ]
    return "[" + ",".join(items) + "]"


def failure(text: str, what: str) -> StoreError:
    """The error for the engine's message."""
    found = _CODE.search(text)
    code = int(found[1]) if found else 0
    short = f"{what}: {text[:_MAX_MESSAGE]}"
    if code in _TIMEOUT or code in _TOO_MUCH:
        return QueryTimeout(short)
    if code in _FULL or _NO_SPACE.search(text):
        return StoreFull(short)
    return StoreError(short)


def settings_clause(settings: Mapping[str, str]) -> str:
    """` SETTINGS a=b, …`"""
    return " SETTINGS " + ", ".join(f"{name}={value}" for name, value in settings.items())


class EmbeddedDatabase:
    """chDB over a folder. One process can open a folder, and a process can open one."""

    def __init__(self, folder: Path, *, max_memory_bytes: int = 2 << 30, readers: int = 4) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Imported here: it maps 180 MB, which a backend with a ClickHouse server does without.
            from chdb import _chdb

            address = f"{folder}?max_server_memory_usage={max_memory_bytes}"
            connect: Callable[[str], Any] = vars(_chdb)["connect"]  # its stubs leave it out
            self._writer = connect(address)
            self._writing = threading.Lock()
            self._readers: queue.SimpleQueue[Any] = queue.SimpleQueue()
            self._count = readers
            for _ in range(readers):
                self._readers.put(connect(str(folder)))
        except (OSError, RuntimeError, ImportError) as error:
            raise EnvironmentProblem(
                f"the store in {folder} cannot be opened: {str(error)[:_MAX_MESSAGE]}. Is another backend running "
                "on it? --store names another folder, or a ClickHouse server's URL"
            ) from error
        self.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        self.execute(f"USE {DATABASE}")
        for _ in range(readers):
            reader = self._readers.get()
            reader.query(f"USE {DATABASE}")
            self._readers.put(reader)

    def execute(self, sql: str, parameters: Mapping[str, Value] | None = None) -> None:
        with self._writing:
            self._run(self._writer, sql, parameters, "CSV")

    def query(
        self,
        sql: str,
        parameters: Mapping[str, Value] | None = None,
        limits: QueryLimits = DEFAULT_LIMITS,
    ) -> results.Table:
        reader = self._readers.get()
        try:
            answer = self._run(
                reader, sql + settings_clause(limits.settings()), parameters, "Native"
            )
        finally:
            self._readers.put(reader)
        return results.read(answer)

    def _run(
        self, connection: Any, sql: str, parameters: Mapping[str, Value] | None, form: str
    ) -> bytes:
        texts = {name: parameter(value) for name, value in (parameters or {}).items()}
        try:
            result = connection.query(sql, form, params=texts)
        except RuntimeError as error:
            raise failure(str(error), sql.split("\n", 1)[0][:80]) from error
        if result.has_error():
            raise failure(result.error_message(), sql.split("\n", 1)[0][:80])
        data: bytes = result.bytes()
        return data

    def insert(self, table: str, blocks: Sequence[bytes]) -> None:
        with self._writing:
            try:
                stream = self._writer.send_insert(f"INSERT INTO {table}", "Native")
                try:
                    for block in blocks:
                        self._writer.insert_append(stream, block)
                except RuntimeError:
                    self._writer.insert_cancel(stream)
                    raise
                self._writer.insert_done(stream)
            except RuntimeError as error:
                raise failure(str(error), f"INSERT INTO {table}") from error

    def close(self) -> None:
        for _ in range(self._count):
            self._readers.get().close()
        with self._writing:
            self._writer.close()
