"""OTLP/gRPC against a server that answers as told: status codes, RetryInfo, partial success."""

import gzip
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from flameherd_agent.pipeline.export import Compression, EndpointConfig, Protocol
from flameherd_agent.pipeline.export.grpc_transport import METHOD, GrpcTransport
from flameherd_agent.pipeline.export.transport import (
    RefusedError,
    RetryableError,
    Sent,
    retry_delay_s,
    wire_fields,
)
from flameherd_agent.pipeline.formats.pprof import varint
from flameherd_agent.pipeline.otlp import Batch, encode_batches
from flameherd_policy.endpoints import Source
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
    ExportProfilesServiceResponse,
)

from tests.otlp_reader import expected, read_back
from tests.unit.profiles import resources

Answer = Callable[[grpc.ServicerContext], bytes]
RETRYABLE = {
    "CANCELLED",
    "DEADLINE_EXCEEDED",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNAVAILABLE",
    "DATA_LOSS",
}


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def status_with(*details: AnyMessage) -> bytes:
    """A serialised google.rpc.Status."""
    return (
        b"\x08\x08"
        + field(2, b"busy")
        + b"".join(field(3, detail.SerializeToString()) for detail in details)
    )


def retry_info(seconds: int, nanos: int = 0) -> AnyMessage:
    delay = Duration(seconds=seconds, nanos=nanos).SerializeToString()
    return AnyMessage(type_url="type.googleapis.com/google.rpc.RetryInfo", value=field(1, delay))


class Server:
    """Answers by `answer(context)`; keeps (metadata, message) of each call."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, Any], bytes]] = []
        self.answer: Answer = lambda context: b""
        outer = self

        def export(message: bytes, context: grpc.ServicerContext) -> bytes:
            outer.calls.append((dict(context.invocation_metadata()), message))
            return outer.answer(context)

        class Handler(grpc.GenericRpcHandler):  # type: ignore[type-arg]
            def service(self, details: grpc.HandlerCallDetails) -> Any:
                if details.method != METHOD:
                    return None
                return grpc.unary_unary_rpc_method_handler(export, None, None)

        self._pool = ThreadPoolExecutor(4)
        self._server = grpc.server(self._pool, handlers=[Handler()])
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self.url = f"http://127.0.0.1:{self.port}"
        self._server.start()

    def close(self) -> None:
        self._server.stop(None).wait()
        self._pool.shutdown()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def batch() -> Batch:
    (batch,) = encode_batches(resources())
    return batch


def transport(url: str, **more: object) -> GrpcTransport:
    return GrpcTransport(EndpointConfig("test", Protocol.GRPC, url, **more))  # type: ignore[arg-type]


def send(url: str, batch: Batch, timeout_s: float = 10, **more: object) -> Sent:
    made = transport(url, **more)
    try:
        return made.send(batch, timeout_s)
    finally:
        made.close()


def fail(code: grpc.StatusCode, details: bytes | None = None) -> Answer:
    def answer(context: grpc.ServicerContext) -> bytes:
        if details is not None:
            context.set_trailing_metadata((("grpc-status-details-bin", details),))
        context.abort(code, "told to")
        raise AssertionError

    return answer


@pytest.mark.parametrize("compression", list(Compression))
def test_the_request(server: Server, batch: Batch, compression: Compression) -> None:
    sent = send(server.url, batch, compression=compression, headers=(("X-Tenant", "a"),))
    ((metadata, message),) = server.calls
    assert read_back(ExportProfilesServiceRequest.FromString(message)) == expected(resources())
    assert metadata["x-tenant"] == "a"
    assert metadata["user-agent"].startswith("Flameherd/")
    zipped = compression is Compression.GZIP
    assert sent == Sent(len(batch.compressed) if zipped else len(message))
    assert gzip.decompress(batch.compressed) == message


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code.name != "OK"])
def test_codes(server: Server, batch: Batch, code: grpc.StatusCode) -> None:
    server.answer = fail(code)
    if code.name in RETRYABLE:
        with pytest.raises(RetryableError, match=code.name) as retryable:
            send(server.url, batch)
        assert retryable.value.after_s is None
    else:
        with pytest.raises(RefusedError, match="told to") as refused:
            send(server.url, batch)
        assert refused.value.reason == f"grpc_{code.name.lower()}"
    assert len(server.calls) == 1


@pytest.mark.parametrize("code", ["RESOURCE_EXHAUSTED", "UNAVAILABLE"])
def test_retry_info(server: Server, batch: Batch, code: str) -> None:
    other = AnyMessage(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\x0a\x01x")
    server.answer = fail(grpc.StatusCode[code], status_with(other, retry_info(2, 500_000_000)))
    with pytest.raises(RetryableError) as error:
        send(server.url, batch)
    assert error.value.after_s == 2.5


@pytest.mark.parametrize("details", [b"", b"\xff\xff\xff", status_with(), b"\x1a\xff\xff\xff\x7f"])
def test_exhausted_without_retry_info_is_final(
    server: Server, batch: Batch, details: bytes
) -> None:
    server.answer = fail(grpc.StatusCode.RESOURCE_EXHAUSTED, details)
    with pytest.raises(RefusedError) as error:
        send(server.url, batch)
    assert error.value.reason == "grpc_resource_exhausted"


def test_retry_info_is_not_a_reason_to_retry_other_codes(server: Server, batch: Batch) -> None:
    server.answer = fail(grpc.StatusCode.INVALID_ARGUMENT, status_with(retry_info(1)))
    with pytest.raises(RefusedError):
        send(server.url, batch)


def test_partial_success(server: Server, batch: Batch) -> None:
    response = ExportProfilesServiceResponse()
    response.partial_success.rejected_profiles = 1
    response.partial_success.error_message = "too old"
    server.answer = lambda context: response.SerializeToString()
    sent = send(server.url, batch)
    assert (sent.rejected_profiles, sent.message) == (1, "too old")


def test_an_odd_success_is_a_success(server: Server, batch: Batch) -> None:
    server.answer = lambda context: b"\xff\xff"
    assert "not a protobuf message" in send(server.url, batch).message


def test_a_server_that_hangs_times_out(server: Server, batch: Batch) -> None:
    over = threading.Event()

    def hang(context: grpc.ServicerContext) -> bytes:
        over.wait(20)
        return b""

    server.answer = hang
    with pytest.raises(RetryableError, match="DEADLINE_EXCEEDED"):
        send(server.url, batch, timeout_s=0.3)
    over.set()


def test_abort_ends_a_send(server: Server, batch: Batch) -> None:
    arrived, over = threading.Event(), threading.Event()

    def hang(context: grpc.ServicerContext) -> bytes:
        arrived.set()
        over.wait(20)
        return b""

    server.answer = hang
    made = transport(server.url)
    failure: list[Exception] = []

    def run() -> None:
        try:
            made.send(batch, 20)
        except RetryableError as error:
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert arrived.wait(10)
    made.abort()
    thread.join(10)
    over.set()
    assert not thread.is_alive()
    assert len(failure) == 1
    made.close()


def test_proxy_variables_are_ignored(
    server: Server, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("grpc_proxy", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("no_grpc_proxy", "")
    send(server.url, batch)
    assert len(server.calls) == 1


def test_a_tenant_cannot_reach_the_node(server: Server, batch: Batch) -> None:
    url = f"http://localhost:{server.port}"
    with pytest.raises(RefusedError, match="loopback"):
        send(url, batch, source=Source.CR)
    assert not server.calls


def test_headers_come_from_a_file_that_may_change(
    server: Server, batch: Batch, tmp_path: Path
) -> None:
    file = tmp_path / "headers"
    file.write_text("Authorization: Bearer a\n", encoding="ascii")
    made = transport(server.url, headers_file=file)
    made.send(batch, 10)
    file.write_text("Authorization: Bearer longer\n", encoding="ascii")
    made.send(batch, 10)
    made.close()
    assert [metadata["authorization"] for metadata, _ in server.calls] == [
        "Bearer a",
        "Bearer longer",
    ]


# --- the wire reader of google.rpc messages ---


def test_retry_delay() -> None:
    assert retry_delay_s(status_with(retry_info(3, 250_000_000))) == 3.25
    assert retry_delay_s(status_with(retry_info(0))) == 0
    assert retry_delay_s(status_with(retry_info(-5))) == 0
    assert retry_delay_s(status_with()) is None
    assert retry_delay_s(b"") is None


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    try:
        fields = list(wire_fields(data))
    except ValueError:
        return
    assert sum(len(value) for _, value in fields if isinstance(value, bytes)) < max(len(data), 1)


@given(st.binary(max_size=60))
def test_no_retry_info_breaks_the_reader(data: bytes) -> None:
    info = AnyMessage(type_url="type.googleapis.com/google.rpc.RetryInfo", value=field(1, data))
    try:
        delay = retry_delay_s(status_with(info))
    except ValueError:
        return
    assert delay is not None
    assert delay >= 0
