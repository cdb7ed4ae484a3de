"""What the backend costs: decoding and inserting samples, and the page's queries at ten million rows.

Decoding is compared, in the same run and on the same messages, with a plain loop over protobuf objects
that resolves each sample's stack, labels and value as one would write it first. Messages are those of
`bench.export`: an agent's interval of 10 s on 2 and on 16 busy cores.

The queries run over HTTP against a real backend process, on a store filled by SQL: six hours, twenty
namespaces of five workloads with four pods, 20,000 distinct stacks of 8 to 48 functions out of 15,000.
Times are wall clock for the whole answer, the median and the worst of some runs with windows that
differ; CPU is the backend's; peak is its VmHWM, which it never gives back.

    python -m bench.backend [--only queries] [--rows 10000000] [--json FILE]

That nothing acknowledged is lost with a thousand senders at once is a test: `pytest tests/backend/test_trouble.py --soak -m soak -k senders`.
"""

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flameherd_agent.pipeline.otlp import encode
from flameherd_backend.decode.message import Decoder, Limits
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from bench import export
from tests.backend.running import RunningBackend

PARTS = ["decoding", "inserting", "queries"]
MIB = 1 << 20
HOUR_MS = 3_600_000


def messages(hz: int, cores: int, count: int) -> list[bytes]:
    """Intervals of one agent, one after the other."""
    dice = random.Random(1)
    names, kernel = export.library_names(), export.kernel_stacks(export.kernel_names(), dice)
    programs = [export.Program(n, names, kernel, dice) for n in range(export.PROGRAMS)]
    now = time.time_ns()
    return [
        encode(export.interval(programs, hz, cores, now, dice)).SerializeToString()
        for _ in range(count)
    ]


def plain_loop(body: bytes) -> int:
    """Each sample resolved by itself; how many."""
    request = ExportProfilesServiceRequest.FromString(body)
    table = request.dictionary
    text = table.string_table
    rows = []
    for resource in request.resource_profiles:
        labels = {entry.key: entry.value.string_value for entry in resource.resource.attributes}
        for scope in resource.scope_profiles:
            for profile in scope.profiles:
                for sample in profile.samples:
                    frames = []
                    for index in table.stack_table[sample.stack_index].location_indices:
                        location = table.location_table[index]
                        mapping = text[
                            table.mapping_table[location.mapping_index].filename_strindex
                        ]
                        for line in location.lines:
                            function = table.function_table[line.function_index]
                            name = text[function.name_strindex]
                            frames.append(
                                (name, text[function.filename_strindex], mapping, line.line)
                            )
                    own = {}
                    for index in sample.attribute_indices:
                        entry = table.attribute_table[index]
                        value = entry.value
                        own[text[entry.key_strindex]] = value.string_value or str(value.int_value)
                    value_ns = sample.values[0] * profile.period
                    rows.append(
                        (profile.time_unix_nano, labels, own, hash(tuple(frames)), value_ns)
                    )
    return len(rows)


def cpu_of(work: Callable[[], int]) -> tuple[int, float]:
    """What it returns, and its CPU seconds."""
    before = time.process_time()
    done = work()
    return done, time.process_time() - before


def decoding(hz: int, cores: int) -> dict[str, float]:
    """Samples a second and core."""
    made = messages(hz, cores, 12)
    decoder = Decoder(b"bench", Limits(64 * MIB, 3600.0))

    def decode(body: bytes) -> int:
        return decoder.decode(body, gzipped=False, is_json=False, epoch=0, namespaces=None).rows

    gc.freeze()
    gc.set_threshold(200_000, 50, 1000)  # as the worker has it, for both
    plain, plain_s = cpu_of(lambda: sum(plain_loop(body) for body in made[:6]))
    first, first_s = cpu_of(lambda: decode(made[0]))
    rest, rest_s = cpu_of(lambda: sum(decode(body) for body in made[1:]))
    return {
        "message_kib": len(made[0]) / 1024,
        "samples_per_message": first,
        "plain_per_s": plain / plain_s,
        "arrays_first_message_per_s": first / first_s,
        "arrays_per_s": rest / rest_s,
        "ratio": (rest / rest_s) / (plain / plain_s),
    }


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


def memory_mib(pid: int, field: str) -> float:
    """A line of /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"/proc/{pid}/status has no {field}")


def inserting(folder: Path) -> dict[str, float]:
    """Many senders at once, one worker: rows a second from the first byte to the last answer."""
    made = messages(97, 16, 8)
    with RunningBackend(folder / "inserts") as backend:
        idle = memory_mib(backend.process.pid, "VmRSS"), memory_mib(backend.process.pid, "RssAnon")
        assert all(backend.post(body).status == 200 for body in made)
        (worker,) = backend.children()
        before = cpu_seconds(backend.process.pid), cpu_seconds(worker)
        begun = time.monotonic()
        with ThreadPoolExecutor(8) as threads:
            statuses = [answer.status for answer in threads.map(backend.post, made * 20)]
        wall = time.monotonic() - begun
        assert statuses == [200] * len(statuses), statuses
        after = cpu_seconds(backend.process.pid), cpu_seconds(worker)
        rows = sum(plain_loop(body) for body in made) * 20
        return {
            "rows": rows,
            "rows_per_s": rows / wall,
            "messages_per_s": len(statuses) / wall,
            "server_cpu_us_per_row": (after[0] - before[0]) / rows * 1e6,
            "worker_cpu_us_per_row": (after[1] - before[1]) / rows * 1e6,
            "idle_rss_mib": idle[0],
            "idle_anonymous_mib": idle[1],
            "worker_rss_mib": memory_mib(worker, "VmRSS"),
        }


FILL = """
import sys
from pathlib import Path
from flameherd_backend.store import schema
from flameherd_backend.store.database import EmbeddedDatabase
database = EmbeddedDatabase(Path(sys.argv[1]), readers=1)
schema.migrate(database)
rows, now = int(sys.argv[2]), int(sys.argv[3])
database.execute('''INSERT INTO functions SELECT cityHash64('f', number), today(),
    concat('ns', toString(number % 97), '::Class', toString(number % 1009), '::method_', toString(number), '(int, std::string const&)'),
    concat('/src/f', toString(number % 700), '.cc'), concat('/usr/lib/lib', toString(number % 80), '.so'), 'native', number % 3000, 0
    FROM numbers(15000)''')
database.execute('''INSERT INTO stacks SELECT cityHash64('s', number), today(),
    arrayMap(d -> cityHash64('f', if(d < 6, d + number % 40 * 6, sipHash64(number, d) % 15000)), arrayReverse(range(8 + sipHash64(number) % 41))), []
    FROM numbers(20000)''')
step = 1_000_000
for begin in range(0, rows, step):
    database.execute(f'''INSERT INTO samples (ts, type, unit, sample_type, sample_unit, period, duration_ns, namespace, workload, pod, container,
        node, service, instance, executable, thread, pid, tid, resource_id, stack_id, value, count)
    SELECT fromUnixTimestamp64Nano(toInt64({now}) - toInt64(number * 21600000000000 / {rows}), 'UTC'), 'cpu', 'nanoseconds', 'samples', 'count',
        52631578, 10000000000, concat('ns-', toString(n)), concat('ns-', toString(n), '-w', toString(w)),
        concat('ns-', toString(n), '-w', toString(w), '-', toString(p)), 'main', concat('node-', toString(sipHash64(n, w, p) % 50)),
        concat('ns-', toString(n), '-w', toString(w)), concat('ns-', toString(n), '-w', toString(w), '-', toString(p)), 'server',
        concat('worker-', toString(r % 7)), 100 + p, 100 + r % 7, cityHash64(n, w, p),
        cityHash64('s', toUInt64(20000 * pow((r % 100000) / 100000, 3))), 52631578 * (1 + r % 3), 1 + r % 3
    FROM (SELECT number, sipHash64(number) AS r, r % 20 AS n, intDiv(r, 20) % 5 AS w, intDiv(r, 100) % 4 AS p
          FROM numbers({begin}, {min(step, rows - begin)}))''')
print(database.query("SELECT sum(bytes_on_disk) AS b FROM system.parts WHERE active AND database = currentDatabase()")["b"][0])
database.close()
"""


def querying(folder: Path, rows: int, runs: int) -> list[dict[str, Any]]:
    """The page's requests."""
    store = folder / "queries"
    now_ns = time.time_ns()
    begun = time.monotonic()
    filled = subprocess.run(
        [sys.executable, "-c", FILL, str(store), str(rows), str(now_ns)],
        check=True,
        capture_output=True,
        text=True,
    )
    fill_s = time.monotonic() - begun
    out: list[dict[str, Any]] = [
        {
            "query": f"(filled: {rows / fill_s / 1e6:.2f} M rows/s, {int(filled.stdout) / MIB:.0f} MiB on disk)"
        }
    ]
    now = now_ns // 10**6
    quarter, six = {"from": now - HOUR_MS // 4, "to": now}, {"from": now - 6 * HOUR_MS, "to": now}
    one = {"match": "namespace=ns-3"}
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("15 min, one namespace: flame graph", "flamegraph", {**quarter, **one}),
        ("15 min, one namespace: functions", "functions", {**quarter, **one}),
        ("15 min, one namespace: timeline", "timeline", {**quarter, **one}),
        ("15 min, one namespace: sandwich", "sandwich", {**quarter, **one}),
        ("15 min, all: flame graph", "flamegraph", quarter),
        ("6 h, one namespace: flame graph", "flamegraph", {**six, **one}),
        ("6 h, all: flame graph", "flamegraph", six),
        ("6 h, all: functions", "functions", six),
        ("6 h, all: timeline", "timeline", six),
        ("6 h, all: timeline by namespace", "timeline", {**six, "by": "namespace"}),
        ("6 h, all: values of pod", "labels/pod/values", six),
        ("6 h, all: labels", "labels", six),
        ("diff of 15 min with the 15 before", "flamegraph",
         {**quarter, **one, "base_from": now - HOUR_MS // 2, "base_to": now - HOUR_MS // 4}),
        ("status", "status", {}),
    ]  # fmt: skip
    with RunningBackend(store) as backend:
        pid = backend.process.pid
        opened = memory_mib(pid, "VmRSS")
        found = backend.get("functions", type="cpu", **quarter, **one).json()
        frame = found["frames"]["id"][found["rows"]["frame"][0]]
        for name, view, parameters in cases:
            given = dict(parameters)
            if view != "status":
                given["type"] = "cpu"
            if view == "sandwich":
                given["frame"] = frame
            walls = []
            before = cpu_seconds(pid)
            for run in range(runs):
                if "to" in given:
                    given["to"] = parameters["to"] - 1000 * run
                begun = time.monotonic()
                answer = backend.get(view, **given)
                walls.append(time.monotonic() - begun)
                if answer.status != 200:
                    print(f"  {name}: {answer.status} after {walls[-1]:.1f} s: {answer.body!r}")
            out.append(
                {
                    "query": name,
                    "median_ms": 1000 * statistics.median(walls),
                    "worst_ms": 1000 * max(walls),
                    "cpu_ms": 1000 * (cpu_seconds(pid) - before) / runs,
                    "answer_kib": len(answer.body) / 1024,
                    "peak_mib": memory_mib(pid, "VmHWM"),
                }
            )
        out.append(
            {
                "query": f"(resident after opening: {opened:.0f} MiB; at the end: {memory_mib(pid, 'VmRSS'):.0f})"
            }
        )
    return out


def show(title: str, row: dict[str, float]) -> None:
    """One block."""
    print(title)
    for key, value in row.items():
        print(f"  {key:32} {value:>14,.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--only", choices=PARTS, action="append", help="a part; several times for several"
    )
    parser.add_argument("--json", type=Path, help="also write all figures there")
    options = parser.parse_args()
    parts = options.only or PARTS
    figures: dict[str, Any] = {}
    for hz, cores in ((20, 2), (97, 2), (97, 16)) if "decoding" in parts else ():
        name = f"{hz} Hz, {cores} cores"
        figures.setdefault("decoding", {})[name] = decoding(hz, cores)
        show(f"decoding, {name}", figures["decoding"][name])
    with tempfile.TemporaryDirectory() as folder:
        if "inserting" in parts:
            figures["inserting"] = inserting(Path(folder))
            show("inserting, one worker", figures["inserting"])
        if "queries" in parts:
            figures["queries"] = querying(Path(folder), options.rows, options.runs)
            print(f"queries at {options.rows:,} rows")
    for row in figures.get("queries", []):
        if "median_ms" not in row:
            print(f"  {row['query']}")
            continue
        print(
            f"  {row['query']:38} {row['median_ms']:8.0f} ms median {row['worst_ms']:8.0f} worst"
            f" {row['cpu_ms']:8.0f} CPU {row['answer_kib']:8.0f} KiB {row['peak_mib']:7.0f} MiB peak"
        )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
