"""A full disk, a thousand senders, hostile messages: errors that can be retried or that say why, and nothing lost."""

import os
import random
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from flameherd_agent.pipeline.otlp import encode

from tests.backend.running import EXPORT, RunningBackend
from tests.backend.stored import StoredTables
from tests.backend.test_receive import message, recent
from tests.unit import profiles

MIB = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 256 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256m", "none", str(folder)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, leave: int) -> Path:
    """A file that takes all room but `leave` bytes."""
    disk = os.statvfs(folder)
    filler = folder / "filler"
    with filler.open("wb") as file:
        left = disk.f_bavail * disk.f_frsize - leave
        while left > 0:
            left -= file.write(bytes(min(left, MIB)))
    return filler


@pytest.mark.parametrize("min_free", ["64Mi", "0"])
def test_a_full_disk_refuses_for_a_while_answers_queries_and_recovers(
    small_disk: Path, min_free: str
) -> None:
    """With room kept free by the guard, and with the engine itself running into the end of the disk."""
    with RunningBackend(small_disk / "store", ["--min-free", min_free]) as backend:
        assert backend.post(message(recent(profiles.numbered(0, samples=50)))).status == 200
        filler = fill(small_disk, 32 * MIB if min_free != "0" else 0)
        refused = backend.post(message(recent(profiles.numbered(1, samples=2000))))
        assert (refused.status, int(refused.headers["retry-after"]) > 0) == (503, True), (
            refused.body
        )
        with pytest.raises(grpc.RpcError) as caught:
            backend.export(message(recent(profiles.numbered(1, samples=2000))))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        answer = backend.get("flamegraph", type="cpu")
        assert (answer.status, answer.json()["samples"]) == (200, 50)
        filler.unlink()
        accepted = backend.post(message(recent(profiles.numbered(2, samples=2000))))
        assert accepted.status == 200, accepted.body
        after = backend.get("flamegraph", type="cpu", max_nodes=50_000).json()
        assert after["samples"] == 2050
        # What was refused in part may have left definitions that are not used; nothing is used that is not defined.
        assert "[unknown]" not in after["strings"]
        assert after["pruned"]["value"] == 0
        # Nor was anything stored twice, or left out of the sums by minute.
        types = backend.get("profile-types").json()["types"]
        assert [kind["total"] for kind in types] == [after["total"]]


@pytest.mark.parametrize(
    ("senders", "seconds"), [(50, 3), pytest.param(1000, 60, marks=pytest.mark.soak)]
)
def test_many_senders_at_once_lose_nothing_that_was_acknowledged(
    tmp_path: Path, senders: int, seconds: int
) -> None:
    """Each on a connection of its own, one message after the other. Those who are sent away come again."""
    acknowledged: list[int] = [0] * senders
    bodies = [message(recent(profiles.numbered(number, samples=20))) for number in range(senders)]
    with RunningBackend(tmp_path / "store") as backend:
        until = time.monotonic() + seconds
        together = threading.Barrier(senders)

        def send(number: int) -> None:
            target = f"127.0.0.1:{backend.ports['OTLP/gRPC']}"
            options = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.insecure_channel(target, options) as channel:
                export = channel.unary_unary(EXPORT, None, None)
                together.wait(120)
                while time.monotonic() < until:
                    try:
                        assert export(bodies[number], timeout=120) == b""
                    except grpc.RpcError as error:
                        if error.code() is not grpc.StatusCode.UNAVAILABLE:
                            raise
                        time.sleep(1)
                    else:
                        acknowledged[number] += 1

        with ThreadPoolExecutor(senders) as threads:
            for future in [threads.submit(send, number) for number in range(senders)]:
                future.result()
        assert backend.get("status").json()["samples"] == 20 * sum(acknowledged)
        backend.stop()
    assert min(acknowledged) > 0
    counts = [0] * senders
    stored = StoredTables(tmp_path / "store") if senders <= 50 else None
    if stored is not None:
        for row in stored.samples:
            counts[int(stored.resources[row["resource_id"]]["service.instance.id"])] += 1
        assert counts == [20 * number for number in acknowledged]


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seconds", [5, pytest.param(600, marks=pytest.mark.soak)])
def test_hostile_messages_break_nothing_for_others(tmp_path: Path, seconds: int) -> None:
    """Mutated, truncated, repeated and huge messages over both protocols, with an honest sender between them."""
    dice = random.Random(seconds)
    valid = [
        message(recent(profiles.resources())),
        message(recent(profiles.numbered(1, samples=300))),
    ]
    huge = [
        encode(recent(profiles.numbered(1))).SerializeToString() * 3000,
        b"\x0a\x80\x80\x80\x80\x08" + bytes(100),
        b"\x12\x04\x3a\x02\x0a\x00" * 50_000,
        b"[" * 200_000,
        b'{"resourceProfiles":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    ]
    honest = 0
    sent = 0
    with RunningBackend(tmp_path / "store", ["--max-decompressed", "4Mi"]) as backend:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            body = bytearray(dice.choice([*valid, *valid, *huge]))
            for _ in range(dice.choice([0, 1, 3, 30])):
                body[dice.randrange(len(body))] = dice.randrange(256)
            kind = dice.choice(["application/x-protobuf", "application/json"])
            headers = {"Content_Type": kind}
            if dice.random() < 0.2:
                headers["Content_Encoding"] = "gzip"
            cut = dice.choice([len(body), len(body), dice.randrange(len(body) + 1)])
            status = backend.post(bytes(body[:cut]), **headers).status
            assert status in (200, 400, 413), status
            sent += 1
            if sent % 10 == 0:
                fresh = [("service.name", "honest")]
                made = recent(profiles.numbered(7, samples=5))
                made[0].attributes = tuple(fresh)
                assert backend.export(message(made)) == b""
                honest += 1
        answer = backend.get(
            "flamegraph", type="cpu", match="service=honest", **{"from": "now-1h"}
        ).json()
        assert answer["samples"] == 5 * honest > 0
        graph = {answer["strings"][place] for place in answer["frames"]["name"]} - {""}
        assert graph == {"main", *(f"function_number_{n}" for n in range(5))}
        assert "mistake of ours" not in backend.said()
        assert len(backend.children()) == 1
