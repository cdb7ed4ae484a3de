"""Receiving and storing by a real backend process: what was sent is what is stored, and what refusals say."""

import gzip
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from flameherd_agent.model import ResourceProfiles
from flameherd_agent.pipeline.otlp import encode
from google.protobuf import json_format
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
    ExportProfilesServiceResponse,
)

from tests.backend.running import EXPORT, HTTP_PATH, RunningBackend, now_ns
from tests.backend.stored import StoredTables, as_stored
from tests.collector.certificates import issue, make_ca
from tests.otlp_reader import expected
from tests.unit import profiles

PLAIN = "application/json"


def recent(resources: list[ResourceProfiles], offset_ns: int = 0) -> list[ResourceProfiles]:
    """The same profiles, of now."""
    for resource in resources:
        for profile in resource.profiles:
            profile.time_unix_ns = now_ns() + offset_ns
    return resources


def message(resources: list[ResourceProfiles]) -> bytes:
    return encode(resources).SerializeToString()


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBackend]:
    store = tmp_path_factory.mktemp("backend") / "store"
    with RunningBackend(store, ["--max-message", "1Mi", "--max-decompressed", "4Mi"]) as running:
        yield running
    assert running.process.returncode == 0


def as_json(body: bytes) -> bytes:
    """OTLP's JSON of a request: protobuf's, with hexadecimal ids."""
    plain = json_format.MessageToDict(ExportProfilesServiceRequest.FromString(body))
    for resource in plain["resourceProfiles"]:
        for scope in resource["scopeProfiles"]:
            for profile in scope["profiles"]:
                profile["profileId"] = "00" * 16
    plain["dictionary"]["linkTable"] = [{"traceId": "00" * 16, "spanId": "00" * 8}]
    return json.dumps(plain).encode()


def test_what_the_agent_sends_is_what_is_stored_by_each_way(tmp_path: Path) -> None:
    sent = []
    with RunningBackend(tmp_path / "store") as backend:
        for number, way in enumerate(
            ("grpc", "grpc+gzip", "http", "http+gzip", "json", "json+gzip")
        ):
            made = recent(profiles.resources(), number)
            made = [replace(each, attributes=(*each.attributes, ("way", way))) for each in made]
            sent += expected(made)
            body = message(made)
            if way.startswith("grpc"):
                compression = grpc.Compression.Gzip if "gzip" in way else None
                assert (
                    ExportProfilesServiceResponse.FromString(
                        backend.export(body, compression=compression)
                    )
                    == ExportProfilesServiceResponse()
                )
                continue
            headers = {}
            if "json" in way:
                body, headers = as_json(body), {"Content_Type": PLAIN}
            if "gzip" in way:
                body, headers = gzip.compress(body), {**headers, "Content_Encoding": "gzip"}
            response = backend.post(body, **headers)
            assert (response.status, response.body) == (200, b"{}" if "json" in way else b"")
            assert response.headers["content-type"] == headers.get(
                "Content_Type", "application/x-protobuf"
            )
        assert backend.stop() == 0
    stored = StoredTables(tmp_path / "store").observed()
    assert len(stored) == 6 * 6
    assert stored == as_stored(sent)


def test_a_second_message_writes_no_definition_again(tmp_path: Path) -> None:
    with RunningBackend(tmp_path / "store") as backend:
        for _ in range(3):
            assert backend.post(message(recent(profiles.resources()))).status == 200
        backend.stop()
    from flameherd_backend.store.database import EmbeddedDatabase

    database = EmbeddedDatabase(tmp_path / "store", readers=1)
    written = database.query(
        "SELECT table, sum(rows) AS rows FROM system.parts WHERE active AND database = currentDatabase() GROUP BY table"
    )
    counts = dict(zip(written["table"], written["rows"].tolist(), strict=True))
    database.close()
    assert counts["samples"] == 18
    # Both resources' locations: eight, [truncated] and the zero value.
    assert (counts["frames"], counts["stacks"], counts["resources"]) == (9, 5, 2)


@pytest.mark.parametrize(
    ("body", "headers", "status", "says"),
    [
        (b"\xff\xff", {}, 400, "not an ExportProfilesServiceRequest"),
        (b"{}", {"Content_Type": "text/plain"}, 415, "application/x-protobuf"),
        (b"", {"Content_Encoding": "zstd"}, 415, "zstd"),
        (b"no gzip", {"Content_Encoding": "gzip"}, 400, "gzip"),
        (gzip.compress(b"")[:-4], {"Content_Encoding": "gzip"}, 400, "too early"),
        (gzip.compress(bytes(5 << 20)), {"Content_Encoding": "gzip"}, 413, "4194304"),
        (bytes(2 << 20), {}, 413, "1048576"),
        (b"[" * 100_000, {"Content_Type": PLAIN}, 400, "JSON"),
        (b'{"resourceProfiles": 3}', {"Content_Type": PLAIN}, 400, "JSON"),
    ],
)
def test_refusals_say_why(
    backend: RunningBackend, body: bytes, headers: dict[str, str], status: int, says: str
) -> None:
    response = backend.post(body, **headers)
    assert response.status == status
    assert says in response.body.decode("utf-8", "replace")
    assert backend.post(message(recent(profiles.numbered(1)))).status == 200


def test_grpc_refusals_have_their_codes(backend: RunningBackend) -> None:
    cases = [
        (b"\xff\xff", None, grpc.StatusCode.INVALID_ARGUMENT),
        (bytes(5 << 20), None, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (bytes(5 << 20), grpc.Compression.Gzip, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ]
    for body, compression, code in cases:
        with pytest.raises(grpc.RpcError) as caught:
            backend.export(body, compression=compression)
        assert caught.value.code() is code
    assert backend.export(message(recent(profiles.numbered(2)))) == b""


def test_partial_success_rejects_the_bad_profile_only(backend: RunningBackend) -> None:
    good, bad = recent(profiles.resources())
    bad.profiles[0].time_unix_ns = 10**18
    request = encode([good, bad])
    answer = ExportProfilesServiceResponse.FromString(backend.export(request.SerializeToString()))
    assert answer.partial_success.rejected_profiles == 1
    assert "2001-09-09" in answer.partial_success.error_message
    response = backend.post(as_json(request.SerializeToString()), Content_Type=PLAIN)
    assert response.json()["partialSuccess"]["rejectedProfiles"] == "1"


def test_a_worker_that_dies_costs_one_message(backend: RunningBackend) -> None:
    (worker,) = backend.children()
    os.kill(worker, signal.SIGKILL)
    answers = [backend.post(message(recent(profiles.numbered(3)))).status for _ in range(3)]
    assert answers[1:] == [200, 200]
    assert backend.children() != [worker]


def test_a_full_queue_sends_senders_away_with_a_delay(tmp_path: Path) -> None:
    """A stopped worker holds what was admitted: four messages fill the queue, others are to come again."""
    body = message(recent(profiles.numbered(4, samples=2000)))
    room = str(4 * len(body))
    with RunningBackend(tmp_path / "store", ["--max-waiting", room]) as backend:
        (worker,) = backend.children()
        os.kill(worker, signal.SIGSTOP)
        with ThreadPoolExecutor(8) as threads:
            futures = [threads.submit(backend.post, body) for _ in range(8)]
            done, _ = wait(futures, 60, FIRST_COMPLETED)
            away = done.pop().result()
            assert away.status == 429
            assert 1 <= int(away.headers["retry-after"]) <= 8
            with pytest.raises(grpc.RpcError) as caught:
                backend.export(body)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert b"google.rpc.RetryInfo" in str(caught.value.trailing_metadata()).encode()
            os.kill(worker, signal.SIGCONT)
            statuses = [future.result().status for future in futures]
        assert sorted(statuses) == [200] * 4 + [429] * 4
        assert backend.post(body).status == 200


TOKENS = """\
# name   token             may send   may see
agents   agents-agents-000   *          -
shop     shop-shop-shop-00  shop       shop
"""


def test_tokens_bind_senders_to_namespaces(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKENS)

    def of(namespace: str) -> bytes:
        made = recent(profiles.numbered(5))
        return message([replace(made[0], attributes=(("k8s.namespace.name", namespace),))])

    with RunningBackend(tmp_path / "store", ["--tokens", str(tokens)]) as backend:
        refused = backend.post(of("shop"))
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert backend.post(of("shop"), Authorization="Bearer shop-shop-shop-01").status == 401
        with pytest.raises(grpc.RpcError) as caught:
            backend.export(of("shop"))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED

        mine = (("authorization", "Bearer shop-shop-shop-00"),)
        assert backend.export(of("shop"), metadata=mine) == b""
        for claimed in ("bank", ""):
            answer = ExportProfilesServiceResponse.FromString(
                backend.export(of(claimed), metadata=mine)
            )
            assert answer.partial_success.rejected_profiles == 1
            assert (
                f"may not send profiles of namespace {claimed!r}"
                in answer.partial_success.error_message
            )
        assert backend.post(of("bank"), Authorization="Bearer agents-agents-000").body == b""
        backend.stop()
    assert sorted(row["namespace"] for row in StoredTables(tmp_path / "store").samples) == [
        "bank",
        "shop",
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--grpc", "nowhere"], 3, "--grpc nowhere"),
        (["--http", "127.0.0.1"], 2, "HOST:PORT"),
        (["--tls-cert", "/none"], 2, "--tls-key"),
        (["--tokens", "/none"], 2, "--tokens /none"),
        (["--store", "http://127.0.0.1:1/a b"], 2, "--store"),
        (["--store", "http://127.0.0.1:1/x"], 1, "127.0.0.1:1"),
    ],
)
def test_a_wrong_command_line_ends_with_a_sentence(
    tmp_path: Path, arguments: list[str], code: int, says: str
) -> None:
    store = [] if "--store" in arguments else ["--store", str(tmp_path / "store")]
    off = [
        word
        for name in ("--grpc", "--http", "--page")
        if name not in arguments
        for word in (name, "")
    ]
    done = subprocess.run(
        [sys.executable, "-m", "flameherd_backend.cli", *store, *off, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert says in done.stderr


def test_tls_on_both_ports_and_client_certificates(tmp_path: Path) -> None:
    ca = make_ca(tmp_path)
    server, client = issue(tmp_path, ca, "server", "IP:127.0.0.1"), issue(tmp_path, ca, "client")
    options = [
        "--tls-cert",
        str(server.cert),
        "--tls-key",
        str(server.key),
        "--tls-client-ca",
        str(ca.cert),
    ]
    body = message(recent(profiles.numbered(6)))
    with RunningBackend(tmp_path / "store", options) as backend:
        url = f"https://127.0.0.1:{backend.ports['OTLP/HTTP']}{HTTP_PATH}"
        made = urllib.request.Request(url, body, {"Content-Type": "application/x-protobuf"})
        context = ssl.create_default_context(cafile=str(ca.cert))
        with urllib.request.urlopen(made, context=context, timeout=60) as answer:
            assert answer.status == 200
        target = f"127.0.0.1:{backend.ports['OTLP/gRPC']}"
        trusted = ca.cert.read_bytes()
        mine = grpc.ssl_channel_credentials(
            trusted, client.key.read_bytes(), client.cert.read_bytes()
        )
        with grpc.secure_channel(target, mine) as channel:
            assert channel.unary_unary(EXPORT, None, None)(body, timeout=60) == b""
        with (
            grpc.secure_channel(target, grpc.ssl_channel_credentials(trusted)) as channel,
            pytest.raises(grpc.RpcError) as caught,
        ):
            channel.unary_unary(EXPORT, None, None)(body, timeout=60)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_store_that_is_in_use_is_refused(backend: RunningBackend) -> None:
    with pytest.raises(AssertionError, match=re.escape("another backend")):
        RunningBackend(backend.store).start()


@pytest.mark.parametrize("rounds", [3, pytest.param(10, marks=pytest.mark.soak)])
def test_kills_lose_nothing_that_was_acknowledged(tmp_path: Path, rounds: int) -> None:
    """Rounds of: senders all the while, SIGKILL, restart; each acknowledged message is there, whole."""
    acknowledged: list[int] = []
    backend = RunningBackend(tmp_path / "store")
    number = 0
    for _ in range(rounds):
        backend.start()
        stop = threading.Event()
        enough = threading.Event()
        lock = threading.Lock()
        before = len(acknowledged)

        def send(
            stop: threading.Event = stop,
            enough: threading.Event = enough,
            lock: threading.Lock = lock,
            before: int = before,
        ) -> None:
            nonlocal number
            while not stop.is_set():
                with lock:
                    number += 1
                    mine = number
                body = message(recent(profiles.numbered(mine, samples=20)))
                try:
                    status = backend.post(body).status
                except OSError:
                    return
                if status == 200:
                    acknowledged.append(mine)
                    if len(acknowledged) - before >= 12:
                        enough.set()

        senders = [threading.Thread(target=send) for _ in range(4)]
        for sender in senders:
            sender.start()
        assert enough.wait(120)
        backend.kill()
        stop.set()
        for sender in senders:
            sender.join()
    assert len(acknowledged) >= 12 * rounds
    # The sums by minute, too, are those of all samples: a kill may come between the two.
    backend.start()
    total = backend.get("flamegraph", type="cpu").json()["total"]
    assert [kind["total"] for kind in backend.get("profile-types").json()["types"]] == [total] > [0]
    backend.stop()
    stored = StoredTables(tmp_path / "store")
    counts: dict[int, int] = {}
    for row in stored.samples:
        of = int(stored.resources[row["resource_id"]]["service.instance.id"])
        counts[of] = counts.get(of, 0) + 1
        assert row["stack_id"] in stored.stacks
    assert {each: counts.get(each) for each in acknowledged} == dict.fromkeys(acknowledged, 20)
    assert len(stored.observed()) == sum(counts.values())
