"""The seam to the engine: run a statement, run a query, insert blocks. Embedded here, a server in `server.py`.

The embedded engine is chDB: ClickHouse in this process. One connection writes; each reading thread
takes one of a few others, since a connection does one thing at a time. The engine's own caps
bound its memory. Values never become part of a statement: they go as parameters (`{name:Type}`).
"""

import contextlib
import os
import queue
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from flameherd_backend.decode.native import rows_of
from flameherd_backend.errors import (
    EnvironmentProblem,
    NotSummedUp,
    QueryTimeout,
    StoreError,
    StoreFull,
)
from flameherd_backend.store import results

DATABASE: Final = "flameherd"
_CODE: Final = re.compile(r"Code: (\d+)\.")
_TIMEOUT: Final = frozenset({159, 209})
_FULL: Final = frozenset({241, 243, 244})
_TOO_MUCH: Final = frozenset({158, 396, 307})
_NO_SPACE: Final = re.compile(r"No space left on device|Disk quota exceeded|Too many parts")
_MAX_MESSAGE: Final = 400
_SUMMED_UP: Final = "samples"
"""The table that a view derives from: an insert can store its rows and fail behind them."""
_AT_ONCE: Final = "SETTINGS max_insert_delayed_streams_for_parallel_write=1000"
"""All parts of an insert are written before the first one counts, so that it is all or nothing over partitions."""

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
        """Blocks of `Native` format into a table; returns when they are stored.

        Raises `NotSummedUp` when they are, but their sums by minute may not be; a server's tables are not
        this process's alone, so that there any error may leave rows behind.
        """

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


@contextlib.contextmanager
def _scratch_in(folder: Path) -> Iterator[None]:
    """chDB makes a folder in $TMPDIR or /tmp, as it was when it was imported: a container may have a read-only root."""
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before


class EmbeddedDatabase:
    """chDB over a folder. One process can open a folder, and a process can open one."""

    def __init__(self, folder: Path, *, max_memory_bytes: int = 2 << 30, readers: int = 4) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Imported here: it maps 180 MB, which a backend with a ClickHouse server does without.
            with _scratch_in(folder):
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
            summed_up = table == _SUMMED_UP
            before = self._rows(table) if summed_up else 0
            try:
                self._insert(table, blocks)
            except RuntimeError as error:
                problem = failure(str(error), f"INSERT INTO {table}")
                if summed_up and self._rows(table) - before == sum(map(rows_of, blocks)):
                    raise NotSummedUp(str(problem)) from error
                raise problem from error

    def _insert(self, target: str, blocks: Sequence[bytes]) -> None:
        """From a file in memory: chDB's own streaming insert keeps silent about what fails when it ends."""
        memory = os.memfd_create("insert")
        try:
            with open(memory, "wb", closefd=False) as file:
                file.writelines(blocks)
            sql = f"INSERT INTO {target} FROM INFILE '/proc/self/fd/{memory}' {_AT_ONCE} FORMAT Native"
            result = self._writer.query(sql, "CSV")
        finally:
            os.close(memory)
        if result.has_error():
            raise RuntimeError(result.error_message())

    def _rows(self, table: str) -> int:
        """From the parts' heads: nothing is read. Called with `_writing`, so that nobody else inserts or drops."""
        sql = f"SELECT count() AS rows FROM {table}"  # noqa: S608 - one of our tables
        counted = self._run(self._writer, sql, None, "Native")
        return int(results.read(counted)["rows"][0])

    def close(self) -> None:
        for _ in range(self._count):
            self._readers.get().close()
        with self._writing:
            self._writer.close()
