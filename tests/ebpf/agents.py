"""`flameherd agent` as a user runs it: a process of its own under files of its own."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

FLAMEHERD = str(Path(sys.executable).with_name("flameherd"))
POLICY = """\
apiVersion: flameherd.dev/v1alpha1
kind: ClusterProfilingPolicy
metadata: {{name: host}}
spec:
  host: {{cpu: {{frequencyHz: {frequency}}}}}
  defaults: {{export: {{endpoint: "http://127.0.0.1:9", protocol: HTTP, interval: 1s}}}}
"""
"""The whole machine; nothing listens at the endpoint."""


def eventually(check: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first truthy answer of `check`."""
    until = time.monotonic() + seconds
    while True:
        answer = check()
        if answer or time.monotonic() > until:
            assert answer
            return answer
        time.sleep(0.1)


def agent_config(policies: Sequence[dict[str, Any]], output: Path, interval: str = "1s") -> str:
    """An AgentConfig (JSON is YAML) whose policies export to a file, as OTLP JSON lines."""
    return json.dumps(
        {
            "apiVersion": "flameherd.dev/v1alpha1",
            "kind": "AgentConfig",
            "version": "1",
            "policies": [{"endpoint": "file", **policy} for policy in policies],
            "endpoints": {"file": {"protocol": "File", "path": str(output), "interval": interval}},
            "ceilings": {"maxFrequencyHz": 997},
        }
    )


class Agent:
    """An agent under a policy file of its own.

    `through` runs it: `setpriv …`, `unshare …`. `cache` is made by the agent unless it is given.
    """

    def __init__(
        self,
        folder: Path,
        frequency: int = 97,
        *,
        config: str = "",
        through: Sequence[str] = (),
        cache: Path | None = None,
    ) -> None:
        self.config = folder / "policy.yaml"
        self.config.write_text(config or POLICY.format(frequency=frequency))
        self.log = folder / "agent.log"
        self._through = through
        self._cache = cache
        self.process = self.start()
        try:
            self.url = eventually(self._find_url, 120.0)
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def start(self) -> "subprocess.Popen[bytes]":
        with self.log.open("wb") as log:
            return subprocess.Popen(self.arguments(), stderr=log)

    def arguments(self) -> list[str]:
        return [*self._through, *self.command(self.config.parent, self.config, self._cache)]

    @staticmethod
    def command(folder: Path, config: Path, cache: Path | None = None) -> list[str]:
        """The command line of an agent that keeps its files in a folder."""
        return [
            FLAMEHERD, "agent", "--config", str(config), "--lock", str(folder / "agent.lock"),
            "--listen", "127.0.0.1:0", "--cache", str(cache or folder / "cache"),
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

    def metrics(self) -> dict[tuple[str, ...], float]:
        """{(name, values of its labels …): value}"""
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(self.get("/metrics"))
            for sample in family.samples
        }

    def samples(self) -> int:
        """Samples accepted so far."""
        count: int = self.status()["counters"]["SAMPLES"]
        return count

    def stop(self) -> str:
        """End it in order; everything that it logged."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        return self.log.read_text()


@contextmanager
def agent(folder: Path, **options: Any) -> Iterator[Agent]:
    """An agent that has ended when the block ends."""
    it = Agent(folder, **options)
    try:
        yield it
    finally:
        it.process.send_signal(signal.SIGTERM)
        it.process.wait(60)
