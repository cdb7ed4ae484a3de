"""The agent and the record command as a user runs them: separate processes, real files, real signals."""

import subprocess
from pathlib import Path

import pytest

from tests.ebpf.agents import FLAMEHERD, POLICY, agent, eventually
from tests.programs.running import running


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
