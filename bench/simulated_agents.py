"""Agents of thousands of nodes that report to a real operator: each with a pod, a token that the API
server made for it, and a connection of its own for each report.

What they report is made up: every node has a share of all policies, whose numbers change from one
report to the next.
"""

import random
import ssl
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException, HTTPSConnection
from typing import Final

import msgspec
from flameherd_operator.settings import STATUS_SERVICE, STATUS_TRUST, TRUST_KEY
from flameherd_policy.report import PATH, ExportState, PolicyDelta, StatusDelta, write_report

from tests.cluster.api import Api, eventually
from tests.cluster.operating import AGENTS, SYSTEM
from tests.cluster.reporting import make_agent, token_for

POLICIES_PER_NODE: Final = 30
_HOST: Final = f"{STATUS_SERVICE}.{SYSTEM}.svc"
_MAKERS, _SENDERS = 12, 24


class _Connection(HTTPSConnection):
    """To this machine, by the name that the operator's certificate has."""

    def connect(self) -> None:
        self.host, name = "127.0.0.1", self.host
        super(HTTPSConnection, self).connect()
        self.sock = self._context.wrap_socket(self.sock, server_hostname=name)  # type: ignore[attr-defined]


class SimulatedAgents:
    """`make` them, then `report` for a while."""

    def __init__(self, api: Api, port: int, nodes: int, policies: list[str]) -> None:
        self._api, self._port = api, port
        self._policies = policies
        self._names = [f"node-{number:04d}" for number in range(nodes)]
        self._tokens: dict[str, str] = {}
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._lock = threading.Lock()
        self.answers: Counter[str] = Counter()
        self.sent_bytes = 0

    def make(self) -> float:
        """Nodes, pods and tokens; the seconds that it took."""
        started = time.monotonic()

        def one(node: str) -> None:
            self._tokens[node] = token_for(self._api, make_agent(self._api, node))

        with ThreadPoolExecutor(_MAKERS) as pool:
            list(pool.map(one, self._names))
        return time.monotonic() - started

    def trust(self) -> None:
        path = f"/api/v1/namespaces/{AGENTS}/configmaps/{STATUS_TRUST}"
        found = eventually(lambda: self._api.find(path), "the operator's certificate", 600)
        assert found is not None
        self._context.load_verify_locations(cadata=found["data"][TRUST_KEY])

    def report(self, seconds: float, shards: dict[str, str], seed: int) -> None:
        """Every node once, spread over `seconds`."""
        started = time.monotonic()
        pause = seconds / len(self._names)

        def one(number: int) -> None:
            time.sleep(max(0.0, started + number * pause - time.monotonic()))
            node = self._names[number]
            rng = random.Random(f"{node} {seed}")
            self._send(node, write_report(self._made_up(node, shards, rng)))

        with ThreadPoolExecutor(_SENDERS) as pool:
            list(pool.map(one, range(len(self._names))))

    def _made_up(self, node: str, shards: dict[str, str], rng: random.Random) -> StatusDelta:
        mine = random.Random(node).sample(
            self._policies, min(POLICIES_PER_NODE, len(self._policies))
        )
        made = []
        for name in mine:
            samples = rng.randrange(200, 2000)
            made.append(
                PolicyDelta(
                    name=name,
                    frequency_hz=19,
                    pods_matched=2,
                    pods_profiled=2,
                    containers_matched=3,
                    containers_profiled=3,
                    samples=samples,
                    complete=samples - 3,
                    truncated=3,
                    unsymbolized=samples // 50,
                    kernel_ns=samples * 20_000,
                    agent_ns=samples * 30_000,
                    sent_bytes=samples * 60,
                    export=ExportState.SENDING,
                )
            )
        return StatusDelta(seconds=60.0, agent_version="bench", shards=shards, policies=tuple(made))

    def _send(self, node: str, body: bytes) -> None:
        connection = _Connection(_HOST, self._port, timeout=60, context=self._context)
        headers = {"Authorization": f"Bearer {self._tokens[node]}"}
        try:
            connection.request("POST", PATH, body, headers)
            answer = connection.getresponse()
            text = answer.read()
            said = f"{answer.status}"
            if answer.status != 200:
                said += f" {msgspec.json.decode(text)['reason']}"
        except (OSError, HTTPException) as error:
            said = type(error).__name__
        finally:
            connection.close()
        with self._lock:
            self.answers[said] += 1
            self.sent_bytes += len(body)
