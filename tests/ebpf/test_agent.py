"""The agent and the record command as a user runs them: separate processes, real files, real signals."""

import ctypes
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from flameherd_agent.kernel.bpf import Command, call, call_buffer

from tests.programs.running import running

FLAMEHERD = str(Path(sys.executable).with_name("flameherd"))
POLICY = """\
apiVersion: flameherd.dev/v1alpha1
kind: ClusterProfilingPolicy
metadata: {{name: host}}
spec:
  host: {{cpu: {{frequencyHz: {frequency}}}}}
  defaults: {{export: {{endpoint: "http://127.0.0.1:9", protocol: HTTP, interval: 1s}}}}
"""
_PROG_GET_NEXT_ID = 11
_PROG_GET_FD_BY_ID = 13


def eventually(check: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first truthy answer of `check`."""
    until = time.monotonic() + seconds
    while True:
        answer = check()
        if answer or time.monotonic() > until:
            assert answer
            return answer
        time.sleep(0.1)


class Agent:
    """An agent under a policy file of its own."""

    def __init__(self, folder: Path, frequency: int = 97) -> None:
        self.config = folder / "policy.yaml"
        self.config.write_text(POLICY.format(frequency=frequency))
        self.lock = folder / "agent.lock"
        self.log = folder / "agent.log"
        self.process = self.start()
        self.url = eventually(self._find_url)

    def start(self) -> "subprocess.Popen[bytes]":
        with self.log.open("wb") as log:
            return subprocess.Popen(self.arguments(), stderr=log)

    def arguments(self) -> list[str]:
        return [
            FLAMEHERD, "agent", "--config", str(self.config), "--lock", str(self.lock),
            "--listen", "127.0.0.1:0", "--cache", str(self.config.parent / "cache"),
        ]  # fmt: skip

    def _find_url(self) -> str:
        assert self.process.poll() is None, self.log.read_text()
        found = re.search(r"http://[0-9.:]+", self.log.read_text())
        return found[0] if found else ""

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=20) as answer:
            return str(answer.read().decode())

    def status(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.get("/status"))
        return value


@contextmanager
def agent(folder: Path) -> Iterator[Agent]:
    it = Agent(folder)
    try:
        yield it
    finally:
        it.process.send_signal(signal.SIGTERM)
        it.process.wait(30)


def loaded_programs() -> set[int]:
    """Ids of the eBPF programs in the kernel that are called fh_tick."""
    found: set[int] = set()
    number = 0
    while True:
        attributes = struct.pack("<I", number)
        # The next id is written behind the first: ask for one after another by hand.
        following = _next_program(attributes)
        if following is None:
            return found
        number = following
        if _program_name(number) == "fh_tick":
            found.add(number)


def _next_program(attributes: bytes) -> int | None:
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    try:
        call_buffer(_raw(_PROG_GET_NEXT_ID), buffer, "next program")
    except FileNotFoundError:
        return None
    return int(struct.unpack_from("<I", buffer.raw, 4)[0])


def _program_name(number: int) -> str:
    try:
        fd = call(_raw(_PROG_GET_FD_BY_ID), struct.pack("<I", number), "program")
    except FileNotFoundError:
        return ""
    try:
        info = ctypes.create_string_buffer(256)
        attributes = struct.pack("<IIQ", fd, len(info), ctypes.addressof(info))
        call(Command.OBJ_INFO, attributes, "info")
        # struct bpf_prog_info: name at 64, 16 bytes.
        return info.raw[64:80].split(b"\0")[0].decode()
    finally:
        os.close(fd)


def _raw(number: int) -> Any:
    """A command that the agent itself never uses."""

    class _Number(int):
        name = "QUERY"

    return _Number(number)


def test_agent_follows_its_policy_file_and_tells_how_it_is_doing(tmp_path: Path) -> None:
    with running("pie"), agent(tmp_path) as it:
        eventually(lambda: it.status()["policies"]["host"]["samples"] > 20)
        assert it.get("/healthz").strip().startswith("ok")
        assert "flameherd_samples_total" in it.get("/metrics")

        it.config.write_text(POLICY.format(frequency=19))
        eventually(lambda: it.status()["policies"]["host"]["frequencyHz"] == 19)

        it.config.write_text("spec: {nonsense: 1}\n")
        eventually(lambda: it.status()["configError"])
        assert it.status()["policies"]["host"]["frequencyHz"] == 19, "the last good one stays"


def test_second_agent_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    with agent(tmp_path) as it:
        second = subprocess.run(
            it.arguments(), capture_output=True, text=True, timeout=60, check=False
        )
        assert second.returncode == 4
        assert f"process {it.process.pid} holds" in second.stderr


def test_killed_agent_leaves_no_program_and_no_child(tmp_path: Path) -> None:
    before = loaded_programs()
    with running("pie"):
        it = Agent(tmp_path)
        eventually(lambda: it.status()["policies"]["host"]["samples"] > 5)
        assert loaded_programs() - before
        children = (
            Path(f"/proc/{it.process.pid}/task/{it.process.pid}/children").read_text().split()
        )
        it.process.kill()
        it.process.wait()
        eventually(lambda: not loaded_programs() - before)
        for child in children:
            eventually(partial(_gone, child))


def _gone(pid: str) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_bad_policy_is_refused_with_file_and_field(tmp_path: Path) -> None:
    config = tmp_path / "policy.yaml"
    config.write_text(POLICY.format(frequency=0))
    done = subprocess.run(
        [FLAMEHERD, "agent", "--config", str(config), "--lock", str(tmp_path / "lock"),
         "--listen", "127.0.0.1:0"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "spec.host.cpu.frequencyHz" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("extension", [".collapsed.txt", ".svg", ".pb.gz", ".speedscope.json"])
def test_record_writes_what_the_extension_says(tmp_path: Path, extension: str) -> None:
    output = tmp_path / f"profile{extension}"
    with running("pie") as program:
        done = subprocess.run(
            [FLAMEHERD, "record", "--pid", str(program.pid), "--duration", "2s",
             "--frequency", "499", "--output", str(output)],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "unwound to the root" in done.stderr
    assert output.stat().st_size > 100
    if extension == ".collapsed.txt":
        assert "main;" in output.read_text()


def test_record_of_a_command_keeps_its_exit_code(tmp_path: Path) -> None:
    output = tmp_path / "command.collapsed.txt"
    done = subprocess.run(
        [FLAMEHERD, "record", "--frequency", "499", "--output", str(output), "--",
         "sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; exit 7"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    assert output.read_text().strip()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name one of --pid"),
        (["--pid", "4194303"], "no such process"),
        (["--all", "--output", "x.gif"], ".gif"),
        (["--all", "--frequency", "0"], "frequency"),
        (["--all", "--duration", "soon"], "duration"),
        (["--container", "feedfacefeed"], "no container"),
        (["--", "no-such-command-here"], "no such command"),
    ],
)
def test_record_refuses_with_a_sentence(arguments: list[str], message: str) -> None:
    done = subprocess.run(
        [FLAMEHERD, "record", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
