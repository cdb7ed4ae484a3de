"""What the whole agent does when something around it is missing or full.

In each case it says what is wrong and what to do, once, and what can go on goes on: samples are
taken, unwound, named and exported. The agent is a process of its own in the state that is tested: on
a file system that is full or read-only, without a capability, in a mount namespace without tracefs.
"""

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from flameherd_agent.types import Pid
from flameherd_agent.worker.client import FileRequest, WorkerClient

from tests.collector.collector import read_json_lines
from tests.ebpf.agents import Agent, agent, agent_config, eventually
from tests.ebpf.recorded import needs_root
from tests.programs.running import Running, running

pytestmark = [needs_root, pytest.mark.timeout(900)]
FREQUENCY_HZ = 199
LEAST_SAMPLES = 100
PRIVATE = "flameherd-worker-"


@contextmanager
def tmpfs(place: Path, options: str) -> Iterator[Path]:
    """A file system of its own at a new directory."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(directory: Path) -> Path:
    """A file that takes what is left of a file system."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            return filler


def config(program: Running, output: Path) -> str:
    policy = {"name": "program", "selector": {"pids": [program.pid]}, "frequencyHz": FREQUENCY_HZ}
    return agent_config([policy], output)


class Frames:
    """What was exported of one program: how often each function was seen, by kind of frame."""

    def __init__(self, output: Path) -> None:
        self.samples = 0
        self.named: dict[str, Counter[str]] = {}
        self.unnamed: Counter[str] = Counter()
        for _resource, _scope, _head, stack, _attributes, value in read_json_lines(output):
            self.samples += value
            for _address, kind, _path, _ids, lines in stack:
                if lines:
                    self.named.setdefault(kind, Counter())[lines[-1][0]] += value
                else:
                    self.unnamed[kind] += value


def goes_on(it: Agent, output: Path) -> Frames:
    """Wait until enough samples were taken; stop the agent in order; what it exported."""
    before = it.samples()
    eventually(lambda: it.samples() - before >= LEAST_SAMPLES, 120)
    log = it.stop()
    assert it.process.returncode == 0, log
    assert "Traceback" not in log
    frames = Frames(output)
    assert frames.samples >= LEAST_SAMPLES
    assert frames.named["native"]["burn"] > 0.8 * frames.samples, frames.named
    return frames


@pytest.mark.parametrize(
    ("options", "prepare", "message"),
    [
        ("size=16k", lambda place: None, "No space left on device"),
        ("size=1m", fill, "No space left on device"),
        ("ro", lambda place: None, "Read-only file system"),
    ],
    ids=["small", "full", "read-only"],
)
def test_cache_directory_that_cannot_be_written(
    tmp_path: Path, options: str, prepare: Callable[[Path], object], message: str
) -> None:
    output = tmp_path / "profiles.json"
    with tmpfs(tmp_path / "disk", options) as disk, running("pie") as program:
        prepare(disk)
        with agent(tmp_path, config=config(program, output), cache=disk / "cache") as it:
            goes_on(it, output)
            log = it.log.read_text()
            private = f"{PRIVATE}{it.process.pid}-"
    assert log.count("the cache directory") == 1, "said once"
    assert f"cannot be used ({message})" in log
    assert f"cannot keep bytecode in {disk}" in log
    assert not list(Path("/dev/shm").glob(f"{private}*"))


def test_output_disk_that_is_full_for_a_while(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "size=1m") as disk, running("pie") as program:
        output = disk / "profiles.json"
        filler = fill(disk)
        with agent(tmp_path, config=config(program, output)) as it:
            state = eventually(
                lambda: (now := it.status()["endpoints"]["file"])["failing"] and now, 120
            )
            assert "No space left on device" in state["lastError"]
            filler.unlink()
            eventually(lambda: it.status()["endpoints"]["file"]["sentBatches"] > 2, 120)
            assert not [x for x in it.metrics() if x[0] == "flameherd_export_dropped_batches_total"]
            goes_on(it, output)


def test_relative_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker does not run in the agent's directory."""
    monkeypatch.chdir(tmp_path)
    client = WorkerClient(Path("cache"))
    try:
        exe = Path("/proc/self/exe").resolve()
        status = exe.stat()
        maps = Path("/proc/self/maps").read_text().splitlines()
        line = next(line for line in maps if line.endswith(str(exe)))
        start, _, end = line.split()[0].partition("-")
        device = (os.major(status.st_dev), os.minor(status.st_dev))
        client.submit(
            FileRequest(
                pid=Pid(os.getpid()),
                path=str(exe),
                device=device,
                inode=status.st_ino,
                start=int(start, 16),
                end=int(end, 16),
            )
        )
        (answer,) = eventually(client.poll)
        assert not answer.error
        assert Path(answer.table_path).is_absolute()
        assert Path(answer.table_path).is_relative_to(tmp_path / "cache")
    finally:
        client.close()


def without(*capabilities: str) -> list[str]:
    """The command line that runs another without capabilities."""
    dropped = ",".join(f"-{name.removeprefix('CAP_').lower()}" for name in capabilities)
    return ["setpriv", f"--bounding-set={dropped}"]


@pytest.mark.parametrize("missing", [("CAP_BPF",), ("CAP_PERFMON",), ("CAP_BPF", "CAP_PERFMON")])
def test_without_what_everything_needs(tmp_path: Path, missing: Sequence[str]) -> None:
    policy = tmp_path / "policy.yaml"
    with running("pie") as program:
        policy.write_text(config(program, tmp_path / "profiles.json"))
        command = [*without(*missing, "CAP_SYS_ADMIN"), *Agent.command(tmp_path, policy)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3, done.stderr
    assert f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("missing", "also"),
    [
        ("CAP_SYS_PTRACE", ("CAP_SYS_ADMIN",)),
        ("CAP_DAC_READ_SEARCH", ("CAP_DAC_OVERRIDE",)),
        ("CAP_CHECKPOINT_RESTORE", ("CAP_SYS_ADMIN",)),
    ],
)
def test_without_what_some_things_need(tmp_path: Path, missing: str, also: Sequence[str]) -> None:
    """The program has no more capabilities than the agent: it may be read without CAP_SYS_PTRACE."""
    through = without(missing, *also)
    output = tmp_path / "profiles.json"
    with (
        running("pie") as program,
        agent(tmp_path, config=config(program, output), through=through) as it,
    ):
        goes_on(it, output)
        log = it.log.read_text()
    assert log.count(f"{missing} is missing: ") == 1, log
    assert f"give {missing} (container: " in log


def kernel_names_need_cap_syslog() -> bool:
    """By kallsyms_show_value() of kernel/ksyms_common.c, for a process without CAP_SYSLOG."""
    restrict = int(Path("/proc/sys/kernel/kptr_restrict").read_text())
    paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    return restrict == 1 or (restrict == 0 and paranoid > 1)


@pytest.mark.skipif(
    not kernel_names_need_cap_syslog(),
    reason="kernel.kptr_restrict and kernel.perf_event_paranoid show addresses to all, or to none",
)
def test_kernel_addresses_that_are_hidden(tmp_path: Path) -> None:
    """What kernel.kptr_restrict hides is the same for all readers it hides it from: here, for want of
    CAP_SYSLOG."""
    output = tmp_path / "profiles.json"
    with (
        running("syscalls") as program,
        agent(tmp_path, config=config(program, output), through=without("CAP_SYSLOG")) as it,
    ):
        eventually(lambda: it.samples() >= LEAST_SAMPLES, 120)
        log = it.stop()
    assert log.count("kernel functions stay unnamed") == 1, log
    assert "CAP_SYSLOG" in log
    assert "kernel.kptr_restrict" in log
    frames = Frames(output)
    assert frames.unnamed["kernel"] > 0.5 * frames.samples
    assert not frames.named.get("kernel")
    assert frames.named["native"]["read_loop"] > 0


def test_no_tracefs(tmp_path: Path) -> None:
    hide = "".join(
        f"mount -t tmpfs -o ro none {place} && "
        for place in ("/sys/kernel/tracing", "/sys/kernel/debug")
        if Path(place).is_dir()
    )
    through = ["unshare", "--mount", "sh", "-c", f'{hide}exec "$@"', "sh"]
    output = tmp_path / "profiles.json"
    with (
        running("pie") as program,
        agent(tmp_path, config=config(program, output), through=through) as it,
    ):
        assert not list(Path(f"/proc/{it.process.pid}/root/sys/kernel/tracing").iterdir())
        goes_on(it, output)
