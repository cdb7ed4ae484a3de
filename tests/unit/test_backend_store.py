"""Retention's choice, migrations, parameters and results of the store; the engine is real."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from flameherd_backend.access import Access, Identity, read_tokens
from flameherd_backend.app import GuardedDatabase
from flameherd_backend.errors import (
    EnvironmentProblem,
    QueryTimeout,
    StoreError,
    StoreFull,
    Unauthenticated,
    UsageError,
)
from flameherd_backend.store import results, retention, schema
from flameherd_backend.store.database import EmbeddedDatabase, QueryLimits, failure, parameter
from flameherd_backend.store.retention import Partition, Retention, choose
from hypothesis import given, settings
from hypothesis import strategies as st

HOUR = 3600
DAY = 24 * HOUR


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedDatabase]:
    opened = EmbeddedDatabase(tmp_path_factory.mktemp("store") / "store", readers=2)
    schema.migrate(opened)
    yield opened
    opened.close()


def samples(begins: int, size: int = 100, table: str = "samples") -> Partition:
    return Partition(begins, table, str(begins), size, 1)


def test_partitions_over_the_age_go_whole_ones_only() -> None:
    now = 100 * DAY
    found = [samples(now - hours * HOUR) for hours in (80, 79, 78, 77, 6, 0)]
    assert choose(found, Retention(72 * HOUR), now) == found[:3]


def test_over_the_bytes_the_oldest_go_and_the_newest_stays() -> None:
    now = 100 * DAY
    found = [samples(now - hours * HOUR) for hours in (18, 12, 6, 0)]
    assert choose(found, Retention(72 * HOUR, 250), now) == found[:2]
    assert choose(found, Retention(72 * HOUR, 1), now) == found[:3]
    assert choose(found, Retention(72 * HOUR, 400), now) == []
    together = [*found, samples(now - 18 * HOUR, 100, "timeline")]
    assert choose(together, Retention(72 * HOUR, 350), now) == [found[0], together[-1]]


def test_definitions_outlive_the_samples_of_their_day() -> None:
    now = 100 * DAY
    stacks = [samples(day * DAY, 1, "stacks") for day in range(94, 101)]
    found = [*stacks, samples(98 * DAY + 6 * HOUR), samples(now)]
    assert [part.begins // DAY for part in choose(found, Retention(3 * DAY), now)] == [94, 95, 96]
    assert choose(stacks[-1:], Retention(3 * DAY), now) == []


def test_a_partition_is_dropped_from_the_store(database: EmbeddedDatabase) -> None:
    database.execute(
        "INSERT INTO samples (ts, value, count, type) SELECT toDateTime64('2026-01-01 03:00:00', 9, 'UTC'), 1, 1, 'cpu'"
    )
    database.execute(
        "INSERT INTO samples (ts, value, count, type) SELECT toDateTime64('2026-01-02 13:00:00', 9, 'UTC'), 1, 1, 'cpu'"
    )
    database.execute("INSERT INTO stacks (stack_id, day) SELECT 1, '2025-12-30'")
    now = 1767366000  # 2026-01-02 15:00
    found = {(part.table, part.name, part.begins) for part in retention.partitions(database)}
    assert ("samples", "2026-01-01 00:00:00", 1767225600) in found
    assert ("stacks", "2025-12-30", 1767052800) in found
    dropped = retention.enforce(database, Retention(24 * HOUR), now)
    assert {(part.table, part.begins) for part in dropped} == {
        ("samples", 1767225600), ("timeline", 1767225600), ("stacks", 1767052800)
    }  # fmt: skip
    left = database.query("SELECT ts FROM samples")
    assert left["ts"].tolist() == [1767358800 * 10**9]


@settings(max_examples=60)
@given(
    st.text(max_size=30),
    st.lists(st.text(max_size=8), max_size=4),
    st.lists(st.integers(0, 2**63), max_size=3),
)
def test_parameters_arrive_as_they_are(text: str, texts: list[str], numbers: list[int]) -> None:
    text = text.encode("utf-8", "replace").decode()
    texts = [each.encode("utf-8", "replace").decode() for each in texts]
    table = OPEN[0].query(
        "SELECT {t:String} AS t, {l:Array(String)} AS l, {n:Array(UInt64)} AS n",
        {"t": text, "l": texts, "n": numbers},
    )
    assert table["t"] == [text]
    assert table["l"].rows() == [texts]
    assert [row.tolist() for row in table["n"].rows()] == [numbers]


OPEN: list[EmbeddedDatabase] = []


@pytest.fixture(autouse=True)
def _opened(database: EmbeddedDatabase) -> Iterator[None]:
    OPEN[:] = [database]
    yield
    OPEN.clear()


def test_limits_end_queries_with_their_error(database: EmbeddedDatabase) -> None:
    endless = "SELECT sum(sipHash64(number)) AS s FROM numbers(100000000000)"
    with pytest.raises(QueryTimeout):
        database.query(endless, limits=QueryLimits(seconds=0.2))
    with pytest.raises(StoreFull):
        database.query(
            "SELECT number FROM numbers(100000000) ORDER BY sipHash64(number) LIMIT 100000000",
            limits=QueryLimits(memory_bytes=10 << 20),
        )
    with pytest.raises(StoreError, match="nothing"):
        database.query("SELECT x FROM nothing")
    assert database.query("SELECT 1 AS one")["one"].tolist() == [1]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Code: 159. DB::Exception: Timeout exceeded", QueryTimeout),
        ("Code: 243. DB::Exception: Cannot reserve 1.00 MiB, not enough space", StoreFull),
        (
            "Code: 75. DB::ErrnoException: Cannot write: errno: 28, strerror: No space left on device",
            StoreFull,
        ),
        ("Code: 62. DB::Exception: Syntax error", StoreError),
    ],
)
def test_engine_messages_become_errors(text: str, kind: type[StoreError]) -> None:
    assert type(failure(text, "INSERT")) is kind


def test_results_of_every_shape(database: EmbeddedDatabase) -> None:
    table = database.query(
        """SELECT number AS n, toLowCardinality(toString(number % 3)) AS low, [number, 1] AS many,
        map('k', toString(number)) AS m, toFixedString('abcd', 4) AS f, ['x', toString(number)] AS texts
        FROM numbers(200000)"""
    )
    assert table["n"].tolist() == list(range(200000))
    assert table["low"][:4] == ["0", "1", "2", "0"]
    assert table["many"].rows()[199999].tolist() == [199999, 1]
    assert table["m"][7] == {"k": "7"}
    assert table["f"][0] == b"abcd"
    assert table["texts"].rows()[5] == ["x", "5"]
    assert results.read(b"") == {}
    assert (
        database.query("SELECT 1 AS x, toLowCardinality('a') AS y WHERE 0").get("x", []) is not None
    )


def test_migrations_run_once_in_order_and_freeze_what_there_was(tmp_path: Path) -> None:
    folder = tmp_path / "migrations"
    folder.mkdir()
    (folder / "0001_a.sql").write_text(
        "-- one\nCREATE TABLE a (x UInt8) ENGINE = MergeTree ORDER BY x;\n"
    )
    script = f"""
from pathlib import Path
from flameherd_backend.store import schema
from flameherd_backend.store.database import EmbeddedDatabase
folder = Path({str(folder)!r})
database = EmbeddedDatabase(Path({str(tmp_path / "store")!r}), readers=1)
assert schema.migrate(database, schema.load(folder)) == 1
database.execute("INSERT INTO a VALUES (7)")
(folder / "0002_b.sql").write_text("ALTER TABLE a ADD COLUMN y UInt8 DEFAULT 3;\\nINSERT INTO a (x) VALUES (8);\\n")
(folder / "notes.txt").write_text("not a migration")
for _ in range(2):
    assert schema.migrate(database, schema.load(folder)) == 2
assert database.query("SELECT x, y FROM a ORDER BY x")["y"].tolist() == [3, 3]
assert list(Path({str(tmp_path / "store")!r}).glob("shadow/before%2D2/**/*.bin")) or list(
    Path({str(tmp_path / "store")!r}).glob("shadow/before-2/**/*.bin"))
(folder / "0003_c.sql").write_text("ALTER TABLE nothing DROP COLUMN y;\\n")
from flameherd_backend.errors import EnvironmentProblem
for migrations, says in ((schema.load(folder), "0003_c.sql"), (schema.load(folder)[:1], "schema 2")):
    try:
        schema.migrate(database, migrations)
    except EnvironmentProblem as error:
        assert says in str(error), error
    else:
        raise AssertionError(says)
key = schema.id_key
database.close()
"""
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_the_key_of_ids_is_made_once(database: EmbeddedDatabase) -> None:
    assert schema.id_key(database) == schema.id_key(database)
    assert len(schema.id_key(database)) == 32


def test_inserts_stop_before_the_disk_is_full(database: EmbeddedDatabase, tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    free = disk.f_bavail * disk.f_frsize
    guarded = GuardedDatabase(database, tmp_path, 2 * free)
    with pytest.raises(StoreFull, match=re.escape("MiB free")):
        guarded.insert("meta", [b""])
    assert guarded.query("SELECT 1 AS one")["one"].tolist() == [1]


def test_parameter_text() -> None:
    assert parameter([1, 2]) == "[1,2]"
    assert parameter(["a'b\\"]) == "['a\\'b\\\\']"


def tokens(tmp_path: Path, text: str) -> Access:
    path = tmp_path / "tokens"
    path.write_text(text, encoding="utf-8")
    return Access(read_tokens(path))


def test_tokens_say_who_it_is(tmp_path: Path) -> None:
    access = tokens(tmp_path, '# c\n\na 0123456789abcdef * -\nb 0123456789abcdeX "",shop *\n')
    assert access.identify("Bearer 0123456789abcdef") == Identity("a", None, frozenset())
    assert access.identify("bearer 0123456789abcdeX") == Identity(
        "b", frozenset({"", "shop"}), None
    )
    for wrong in (
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic 0123456789abcdef",
        "Bearer 0123456789abcdeY",
    ):
        with pytest.raises(Unauthenticated):
            access.identify(wrong)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no token"),
        ("a b", "tokens:1: a line is"),
        ("\na short * *", "tokens:2: the token of a is shorter"),
    ],
)
def test_a_wrong_tokens_file_says_where(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        tokens(tmp_path, text)


def test_a_newer_store_is_left_alone(database: EmbeddedDatabase) -> None:
    with pytest.raises(EnvironmentProblem, match="run the newer"):
        schema.migrate(database, [])
