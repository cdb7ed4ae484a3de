"""What a real agent sent is what the API tells, by stack and nanosecond: read off the wire between the two."""

import gzip
import http.server
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from tests.backend.running import RunningBackend, request
from tests.backend.truth import Name, read_tree
from tests.ebpf.agents import POLICY, agent, eventually
from tests.otlp_reader import Observed, read_back
from tests.programs.running import running

Tree = dict[tuple[Name, ...], tuple[int, int]]


class Wire(http.server.BaseHTTPRequestHandler):
    """Passes each message on, and keeps what was accepted."""

    target: str
    seen: list[bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = request(f"{self.target}{self.path}", body, dict(self.headers))
        if answer.status == 200:
            packed = self.headers.get("Content-Encoding") == "gzip"
            self.seen.append(gzip.decompress(body) if packed else body)
        self.send_response(answer.status)
        for name in ("content-type", "retry-after"):
            if name in answer.headers:
                self.send_header(name, answer.headers[name])
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = False
    """Its end waits for what is on its way: an agent that ends does not."""


@contextmanager
def wire(backend: RunningBackend) -> Iterator[tuple[int, list[bytes]]]:
    """Its port, and the messages that passed."""
    seen: list[bytes] = []
    target = f"http://127.0.0.1:{backend.ports['OTLP/HTTP']}"
    handler = type("ThisWire", (Wire,), {"target": target, "seen": seen})
    server = Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1], seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def executable(sample: Observed) -> str:
    own = dict(sample[0]) | dict(sample[4])
    return str(own.get("process.executable.name", ""))


def root_down(sample: Observed) -> tuple[Name, ...]:
    """The functions of a sample's stack, from its root; inlined ones below their callers."""
    leaf_first: list[Name] = []
    for address, kind, path, _, lines in sample[3]:
        if not lines:
            place = path.rpartition("/")[2]
            leaf_first.append(
                (f"{place}+0x{address:x}" if place else f"0x{address:x}", kind, path, "")
            )
        leaf_first += [(name, kind, path, file) for name, _, file, _ in lines]
    return tuple(reversed(leaf_first))


def tree_of(samples: list[Observed]) -> Tree:
    """Path from the root → (nanoseconds, those of stacks that end there)."""
    value: Counter[tuple[Name, ...]] = Counter()
    own: Counter[tuple[Name, ...]] = Counter()
    for sample in samples:
        path, nanoseconds = root_down(sample), sample[5] * sample[2][4]
        own[path] += nanoseconds
        for depth in range(len(path) + 1):
            value[path[:depth]] += nanoseconds
    return {path: (total, own[path]) for path, total in value.items()}


def test_what_the_agent_sent_is_what_the_api_tells(tmp_path: Path) -> None:
    with RunningBackend(tmp_path / "store") as backend:
        with wire(backend) as (port, seen):
            policy = POLICY.format(frequency=97).replace("127.0.0.1:9", f"127.0.0.1:{port}")
            with running("pie"), agent(tmp_path, config=policy) as profiler:
                eventually(lambda: profiler.samples() > 300 and len(seen) > 3, 240.0)
        sent = [
            sample
            for body in seen
            for sample in read_back(ExportProfilesServiceRequest.FromString(body))
        ]
        window = {"type": "cpu", "from": "now-1h"}
        answer = backend.get("flamegraph", max_nodes=50_000, **window).json()
        expected = tree_of(sent)
        assert answer["pruned"] == {"nodes": 0, "value": 0}
        assert read_tree(answer, answer["nodes"]) == expected
        assert answer["total"] == sum(sample[5] * sample[2][4] for sample in sent) > 0
        assert answer["samples"] == sum(sample[5] for sample in sent)
        # So it is by program.
        name = Counter(map(executable, sent)).most_common(1)[0][0]
        chosen = {"match": f"executable={name}", "max_nodes": 50_000, **window}
        of_one = backend.get("flamegraph", **chosen).json()
        alone = [sample for sample in sent if executable(sample) == name]
        assert read_tree(of_one, of_one["nodes"]) == tree_of(alone)
