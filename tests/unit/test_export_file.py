"""The file exporter: OTLP JSON lines, read back; rotation; disks that are full."""

import os
import resource
import signal
from pathlib import Path

import pytest
from flameherd_agent.errors import UsageError
from flameherd_agent.pipeline.export import EndpointConfig, Exporter, Protocol
from flameherd_agent.pipeline.export.config import read_headers
from flameherd_agent.pipeline.export.file_transport import FileTransport, otlp_json
from flameherd_agent.pipeline.export.transport import RefusedError, RetryableError
from flameherd_agent.pipeline.otlp import Batch, encode_batches

from tests.collector.collector import parse_otlp_json, read_json_lines
from tests.otlp_reader import expected
from tests.unit.profiles import numbered, resources


def config(path: Path, **more: object) -> EndpointConfig:
    return EndpointConfig("test", Protocol.FILE, path=path, **more)  # type: ignore[arg-type]


def one(number: int) -> Batch:
    (batch,) = encode_batches(numbered(number))
    return batch


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    exporter = Exporter(config(path))
    exporter.submit(resources())
    exporter.submit(numbered(1))
    exporter.close()
    assert exporter.stats().sent_batches == 2
    assert exporter.stats().sent_bytes == path.stat().st_size
    assert read_json_lines(path) == expected([*resources(), *numbered(1)])
    assert path.stat().st_mode & 0o777 == 0o640


def test_the_json_is_otlp_json() -> None:
    (batch,) = encode_batches(resources())
    line = otlp_json(batch.message())
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    parsed = parse_otlp_json(line.decode())
    assert parsed.SerializeToString(deterministic=True) == (
        type(parsed).FromString(batch.message()).SerializeToString(deterministic=True)
    )


def test_files_are_rotated_and_capped(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    size = len(otlp_json(one(10).message()))
    transport = FileTransport(config(path, file_max_bytes=3 * size + size // 2, file_count=3))
    for n in range(10, 22):
        transport.send(one(n), 1)
    transport.close()
    names = ["profiles.json", "profiles.json.1", "profiles.json.2"]
    assert sorted(file.name for file in tmp_path.iterdir()) == names
    for first, name in zip((19, 16, 13), names, strict=True):
        wanted = expected([r for n in range(first, first + 3) for r in numbered(n)])
        assert read_json_lines(tmp_path / name) == wanted


def test_one_file_only(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    size = len(otlp_json(one(10).message()))
    transport = FileTransport(config(path, file_max_bytes=size + 5, file_count=1))
    transport.send(one(10), 1)
    transport.send(one(11), 1)
    transport.close()
    assert [file.name for file in tmp_path.iterdir()] == ["profiles.json"]
    assert read_json_lines(path) == expected(numbered(11))


def test_a_line_over_the_cap_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedError) as error:
        FileTransport(config(tmp_path / "x.json", file_max_bytes=10)).send(one(1), 1)
    assert error.value.reason == "too_large"


def test_a_file_that_was_moved_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    transport = FileTransport(config(path))
    transport.send(one(1), 1)
    path.rename(tmp_path / "moved.json")
    transport.send(one(2), 1)
    transport.close()
    assert read_json_lines(tmp_path / "moved.json") == expected(numbered(1))
    assert read_json_lines(path) == expected(numbered(2))


def test_no_folder_is_told_and_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "later" / "profiles.json"
    transport = FileTransport(config(path))
    with pytest.raises(RetryableError, match="No such file"):
        transport.send(one(1), 1)
    path.parent.mkdir()
    transport.send(one(1), 1)
    transport.close()
    assert read_json_lines(path) == expected(numbered(1))


def test_a_symlink_and_a_fifo_are_not_followed(tmp_path: Path) -> None:
    link, fifo = tmp_path / "link.json", tmp_path / "fifo.json"
    link.symlink_to(tmp_path / "elsewhere")
    os.mkfifo(fifo)
    for path in (link, fifo):
        with pytest.raises(RetryableError):
            FileTransport(config(path)).send(one(1), 1)
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_leaves_no_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    transport = FileTransport(config(path))
    transport.send(one(1), 1)
    size = path.stat().st_size
    old_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    old_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, old_limit[1]))
        with pytest.raises(RetryableError, match="File too large"):
            transport.send(one(2), 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old_limit)
        signal.signal(signal.SIGXFSZ, old_handler)
    assert path.stat().st_size == size
    transport.send(one(2), 1)
    transport.close()
    assert read_json_lines(path) == expected([*numbered(1), *numbered(2)])


# --- configuration ---


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "localhost:4317"}, "is not http://"),
        ({"url": "http://a:1", "ca_file": Path("x")}, "plain text"),
        ({"url": "http://a:1", "insecure_skip_verify": True, "protocol": Protocol.HTTP}, "plain"),
        ({"url": "https://a:1", "insecure_skip_verify": True}, "gRPC always verifies"),
        ({"url": "https://a:1", "cert_file": Path("x")}, "go together"),
        ({"url": "http://a:1", "headers": (("content-length", "1"),)}, "'content-length' cannot"),
        ({"url": "http://a:1", "headers": (("Host", "b"),)}, "'Host' cannot"),
        ({"url": "http://a:1", "headers": (("grpc-timeout", "1"),)}, "'grpc-timeout' cannot"),
        ({"url": "http://a:1", "headers": (("x\r\ny", "1"),)}, "cannot be set"),
        ({"url": "http://a:1", "headers": (("x", "secret\r\nHost: b"),)}, "not printable ASCII"),
        ({"protocol": Protocol.FILE}, "needs a path"),
        ({"protocol": Protocol.FILE, "path": Path("x"), "file_count": 0}, "at least one"),
    ],
)
def test_configurations_that_cannot_work(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        EndpointConfig("test", **settings)  # type: ignore[arg-type]
    assert "'test'" in str(error.value)
    assert "secret" not in str(error.value)


def test_headers_are_not_shown() -> None:
    endpoint = EndpointConfig("test", url="http://a:1", headers=(("Authorization", "secret"),))
    assert "secret" not in repr(endpoint)


def test_a_headers_file_is_bounded(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("x: y\n" * 100_000, encoding="ascii")
    endpoint = EndpointConfig("test", url="http://a:1", headers_file=file)
    with pytest.raises(UsageError, match="more than"):
        read_headers(endpoint)
