"""Inserts that fail half way: what is answered, what is there, and that sending again counts nothing twice. Real engine."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

import numpy as np
import pytest
from flameherd_backend.decode import native
from flameherd_backend.errors import StoreError, StoreFull
from flameherd_backend.store import rollup, schema
from flameherd_backend.store.database import (
    DEFAULT_LIMITS,
    EmbeddedDatabase,
    QueryLimits,
    Value,
)
from flameherd_backend.store.results import Table
from flameherd_backend.store.writer import Writer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

NOON_S = 1_790_000_000 // 86_400 * 86_400 + 43_200
VIEW = "timeline_of_samples"


TABLES = ("samples", "timeline", "stacks")


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedDatabase]:
    opened = EmbeddedDatabase(tmp_path_factory.mktemp("store") / "store", readers=1)
    schema.migrate(opened)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _emptied(database: EmbeddedDatabase) -> None:
    empty(database)


def empty(database: EmbeddedDatabase) -> None:
    for table in TABLES:
        database.execute(f"TRUNCATE TABLE {table}")


def samples(values: Sequence[int], seconds: Sequence[int]) -> bytes:
    """A block of `samples`: CPU time at seconds since noon."""
    ts = [(NOON_S + second) * 10**9 for second in seconds]
    kinds = native.codes([b"cpu"], np.zeros(len(ts), np.int64))
    return native.block(
        len(ts),
        [
            ("ts", "DateTime64(9, 'UTC')", native.numbers(ts, "i8")),
            ("type", "LowCardinality(String)", kinds),
            ("value", "Int64", native.numbers(values, "i8")),
            ("count", "Int64", native.numbers([1] * len(ts), "i8")),
        ],
    )


def stack(number: int) -> bytes:
    none = native.offsets([0])
    return native.block(
        1,
        [
            ("stack_id", "UInt64", native.numbers([number], "u8")),
            ("day", "Date", native.numbers([NOON_S // 86_400], "u2")),
            ("functions", "Array(UInt64)", none),
            ("frames", "Array(UInt64)", none),
        ],
    )


def sums(database: EmbeddedDatabase) -> list[tuple[int, int]]:
    """(value, count) of samples, and of their sums by minute."""
    out = []
    for table in ("samples", "timeline"):
        found = database.query(
            f"SELECT sum({table}.value) AS v, sum({table}.count) AS c FROM {table}"
        )
        out.append((int(found["v"][0]), int(found["c"][0])))
    return out


class Failing:
    """A database whose inserts into one table fail while `error` is set."""

    def __init__(self, database: EmbeddedDatabase, table: str) -> None:
        self._database = database
        self._table = table
        self.error: StoreError | None = None

    def execute(self, sql: str, parameters: Mapping[str, Value] | None = None) -> None:
        self._database.execute(sql, parameters)

    def query(
        self,
        sql: str,
        parameters: Mapping[str, Value] | None = None,
        limits: QueryLimits = DEFAULT_LIMITS,
    ) -> Table:
        return self._database.query(sql, parameters, limits)

    def insert(self, table: str, blocks: Sequence[bytes]) -> None:
        if table == self._table and self.error is not None:
            raise self.error
        self._database.insert(table, blocks)

    def close(self) -> None:
        self._database.close()


def written(
    database: EmbeddedDatabase | Failing, work: Callable[[Writer], Awaitable[None]]
) -> Writer:
    """A writer that was given some work and closed."""

    async def run() -> Writer:
        writer = Writer(database, asyncio.get_running_loop())
        try:
            await work(writer)
        finally:
            await asyncio.to_thread(writer.close)
        return writer

    return asyncio.run(run())


def test_definitions_that_a_failed_insert_left_count_nothing_twice(
    database: EmbeddedDatabase,
) -> None:
    """The sender comes again with what it sent: samples once, and one definition of what they refer to."""
    failing = Failing(database, "samples")
    blocks = {"stacks": stack(7), "samples": samples([3, 4], [0, 1])}

    async def work(writer: Writer) -> None:
        failing.error = StoreFull("no room")
        with pytest.raises(StoreFull):
            await writer.insert(blocks, writer.epoch)
        assert sums(database) == [(0, 0), (0, 0)]
        failing.error = None
        await writer.insert(blocks, writer.epoch)

    assert written(failing, work).epoch == 1
    assert sums(database) == [(7, 2), (7, 2)]
    assert database.query("SELECT count() AS n FROM stacks FINAL")["n"].tolist() == [1]


def test_samples_whose_sums_failed_are_stored_once_and_summed_up_later(
    database: EmbeddedDatabase,
) -> None:
    """The engine runs views when a table's rows are stored already: to refuse the message then would count it twice."""
    made = next(
        statement
        for migration in schema.load()
        for statement in migration.statements
        if VIEW in statement
    )

    async def work(writer: Writer) -> None:
        database.execute(f"DROP VIEW {VIEW}")
        database.execute(made.replace("sum(samples.value)", "sum(samples.value + throwIf(1))"))
        await writer.insert({"samples": samples([5, 6], [0, 60])}, writer.epoch)
        assert sums(database) == [(11, 2), (0, 0)]
        database.execute(f"DROP VIEW {VIEW}")
        database.execute(made)
        await writer.insert({"samples": samples([1], [61])}, writer.epoch)

    writer = written(database, work)
    assert (writer.epoch, writer.stats.failures) == (0, 1)
    assert sums(database) == [(12, 3), (12, 3)]
    by_minute = database.query(
        "SELECT sum(timeline.value) AS v FROM timeline GROUP BY minute, type ORDER BY minute"
    )
    assert by_minute["v"].tolist() == [5, 7]


def test_an_insert_over_partitions_is_all_or_nothing(database: EmbeddedDatabase) -> None:
    """The second of three partitions cannot be written."""
    database.execute("ALTER TABLE samples ADD INDEX broken throwIf(value = 666) TYPE minmax")
    spread = [samples([1, 2], [0, -86_400]), samples([666], [-43_200])]
    with pytest.raises(StoreError, match="throwIf"):
        database.insert("samples", spread)
    assert sums(database) == [(0, 0), (0, 0)]
    database.execute("ALTER TABLE samples DROP INDEX broken")
    database.insert("samples", spread)
    assert sums(database) == [(669, 3), (669, 3)]


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 300)), min_size=1, max_size=20),
    st.sampled_from(["0", "value > 4", "1"]),
)
def test_sums_are_mended_whatever_of_them_is_missing(
    database: EmbeddedDatabase, rows: list[tuple[int, int]], lost: str
) -> None:
    """As at a start after a kill between the samples of an insert and their sums."""
    empty(database)
    database.insert("samples", [samples(*zip(*rows, strict=True))])
    before = database.query(BY_MINUTE)
    database.execute(f"ALTER TABLE timeline DELETE WHERE {lost} SETTINGS mutations_sync = 1")
    missing = sums(database)[0] != sums(database)[1]
    assert (rollup.mend(database) > 0) == missing
    after = database.query(BY_MINUTE)
    assert after["m"].tolist() == before["m"].tolist()
    assert after["v"].tolist() == before["v"].tolist()
    assert rollup.mend(database) == 0


BY_MINUTE = """
SELECT toUnixTimestamp(minute) AS m, sum(timeline.value) AS v FROM timeline WHERE type = 'cpu' GROUP BY m ORDER BY m
"""


@pytest.mark.parametrize("rows", [0, 1, 127, 128, 16_384, 300_000])
def test_the_rows_of_a_block_are_in_its_head(rows: int) -> None:
    numbers = native.numbers(np.zeros(rows), "u1")
    assert native.rows_of(native.block(rows, [("a", "UInt8", numbers)])) == rows
    assert (
        native.rows_of(native.block(rows, [(f"{n}", "UInt8", numbers) for n in range(200)])) == rows
    )
