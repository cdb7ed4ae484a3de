"""A ClickHouse server by URL: the same rows in, the same answers out."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from flameherd_agent.pipeline.otlp import encode
from flameherd_backend.errors import StoreError, UsageError
from flameherd_backend.store.server import ServerDatabase

from tests.backend import truth as truths
from tests.backend.running import RunningBackend
from tests.backend.truth import frame_names, read_tree


@contextmanager
def clickhouse(folder: Path) -> Iterator[str]:
    """URL of a server with the user `fh` and an odd password."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.backend.clickhouse_http", str(folder), "fh", "p@ss:word/"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield f"http://fh:p%40ss%3Aword%2F@127.0.0.1:{int(process.stdout.readline())}/profiles"
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_views_are_the_same_on_a_server(tmp_path: Path) -> None:
    made, truth = truths.make(3, ["shop"])
    with clickhouse(tmp_path / "server") as url:
        backend = RunningBackend(tmp_path / "none", ["--store", url])
        with backend:
            assert backend.post(encode(made).SerializeToString()).body == b""
            window = {"type": "cpu", "from": "now-1h"}
            graph = backend.get("flamegraph", max_nodes=50_000, **window).json()
            assert read_tree(graph, graph["nodes"]) == truth.tree()
            rows = backend.get("functions", **window).json()
            columns = (rows["rows"][key] for key in ("frame", "self", "total"))
            frames = frame_names(rows)
            assert {
                frames[f]: (own, total) for f, own, total in zip(*columns, strict=True)
            } == truth.functions()
            labels = backend.get("labels/team/values", match="pod!=it's \\n", **window).json()
            assert {row["value"]: row["total"] for row in labels["values"]} == truth.by("team")
            assert backend.get("timeline", **window).json()["total"] == truth.total()
            stored = backend.get("status").json()["samples"]
        assert backend.process.returncode == 0
        with RunningBackend(tmp_path / "none", ["--store", url]) as again:
            assert again.get("status").json()["samples"] == stored > 100


def test_a_server_that_is_away_or_refuses_is_named_without_its_password(tmp_path: Path) -> None:
    with (
        clickhouse(tmp_path / "server") as url,
        pytest.raises(StoreError, match="Authentication") as caught,
    ):
        ServerDatabase(url.replace("word", "wrong"))
    assert "wrong" not in str(caught.value)
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:9: .*refused") as caught:
        ServerDatabase("http://fh:secret@127.0.0.1:9/profiles")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://", "http://h/a/b", "http://h/a;drop", "http://h/a?x=1", "ftp://h/a"]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--store"):
        ServerDatabase(url)
