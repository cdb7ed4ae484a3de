"""`flameherd up` as a newcomer runs it: one address, and this machine's stacks behind it."""

import re
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from tests.backend.running import request
from tests.ebpf.agents import FLAMEHERD, eventually
from tests.programs.running import running

POLICY = """\
apiVersion: flameherd.dev/v1alpha1
kind: ClusterProfilingPolicy
metadata: {{name: host}}
spec:
  host: {{cpu: {{frequencyHz: 97}}}}
  defaults: {{export: {{endpoint: "http://127.0.0.1:{port}", protocol: GRPC, interval: 1s}}}}
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


def arguments(folder: Path, port: int) -> list[str]:
    config = folder / "policy.yaml"
    config.write_text(POLICY.format(port=port))
    return [
        FLAMEHERD, "up", "--config", str(config), "--lock", str(folder / "lock"), "--cache", str(folder / "cache"),
        "--store", str(folder / "store"), "--page", "127.0.0.1:0", "--otlp", f"127.0.0.1:{port}",
    ]  # fmt: skip


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(child) for child in text.split()]


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_the_page_shows_what_runs_here_and_nothing_stays_behind(
    tmp_path: Path, ending: signal.Signals
) -> None:
    with running("pie"), (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            arguments(tmp_path, free_port()), stdout=subprocess.PIPE, stderr=log, text=True
        )
        begun = time.monotonic()
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url), (tmp_path / "log").read_text()

            def shown() -> bool:
                answer = request(f"{url}/api/v1/functions?type=cpu&search=burn")
                assert answer.status == 200, answer.body
                names = answer.json()["strings"]
                return "burn" in names

            eventually(shown, 240.0)
            print(f"stacks of this machine after {time.monotonic() - begun:.1f} s")  # -s shows it
            graph = request(f"{url}/api/v1/flamegraph?type=cpu&match=executable%3Dpie").json()
            assert {"main", "recurse", "bottom", "burn"} <= set(graph["strings"])
            family = children(process.pid)
        finally:
            process.send_signal(ending)
            code = process.wait(60)
            if process.stdout is not None:
                process.stdout.close()
    assert code == (0 if ending is signal.SIGINT else -signal.SIGKILL), (
        tmp_path / "log"
    ).read_text()
    assert family
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=10)


def test_a_taken_port_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            arguments(tmp_path, port), capture_output=True, text=True, timeout=180, check=False
        )
    assert done.returncode == 3
    assert f"--grpc 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_page_the_table_is_printed(tmp_path: Path) -> None:
    with running("pie"):
        done = subprocess.run(
            [*arguments(tmp_path, free_port()), "--no-page", "--window", "5"],
            capture_output=True, text=True, timeout=180, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "pie" in done.stdout
    assert not (tmp_path / "store").exists()
