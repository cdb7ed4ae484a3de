"""Starts truth programs and leaves nothing behind: no process, cgroup, mount or file.

Every program runs in a session of its own, so that what it forked ends with it.
"""

import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.programs.build import build

READY_SECONDS = 20


@dataclass
class Running:
    """A truth program that has said "ready"."""

    name: str
    pid: int
    """In the initial pid namespace."""
    process: subprocess.Popen[str]
    executable: Path

    def family(self) -> list[int]:
        """The process and what it has forked, as far as it lives."""
        found = [self.pid]
        for pid in found:
            with suppress(FileNotFoundError, ProcessLookupError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    found += map(int, (task / "children").read_text().split())
        return found

    def cpu_seconds(self) -> float:
        """User and system time of the family, reaped children included (proc(5))."""
        ticks = 0
        for pid in self.family():
            with suppress(FileNotFoundError, ProcessLookupError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def cpu_ns_by_thread(self) -> dict[int, int]:
        """{tid: nanoseconds on a CPU} of its living threads (schedstat's first field)."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return {int(t.name): int((t / "schedstat").read_text().split()[0]) for t in tasks}

    def stop(self) -> dict[str, int]:
        """End it by SIGTERM; the numbers that it prints last, by name (`cpu_ns`, …)."""
        self.process.send_signal(signal.SIGTERM)
        text, _ = self.process.communicate(timeout=READY_SECONDS)
        return {key: int(value) for key, value in (line.split() for line in text.splitlines())}


def alive(pid: int) -> bool:
    """Does a process live? One that is dead but not reaped does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def _wait_ready(process: subprocess.Popen[str]) -> None:
    """Returns when the program has written its "ready" line."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(READY_SECONDS):
            raise TimeoutError(f"{process.args!r} did not get ready in {READY_SECONDS} s")
    line = process.stdout.readline()
    if not line.startswith("ready"):
        raise RuntimeError(f"{process.args!r} said {line!r}, exit code {process.poll()}")


@contextmanager
def _session(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """The process and everything in its session are gone afterwards."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        _wait_ready(process)
        yield process
    finally:
        with suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(READY_SECONDS)
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def running(
    program: str, *arguments: str, executable: Path | None = None, name: str = ""
) -> Iterator[Running]:
    """Runs a built program (or a copy of it) until the block ends."""
    path = executable or build(program)
    if program == "plugins":
        arguments = tuple(str(path.with_name(f"plugin_{x}.so")) for x in "ab")
    with _session([str(path), *arguments]) as process:
        yield Running(name or program, process.pid, process, path)


@contextmanager
def running_command(command: Sequence[str], name: str) -> Iterator[Running]:
    """Runs a command that says "ready" until the block ends."""
    with _session(command) as process:
        yield Running(name, process.pid, process, Path(command[0]))


@contextmanager
def running_deleted(program: str, name: str) -> Iterator[Running]:
    """Runs a copy of a program whose file is deleted as soon as it runs."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copy2(build(program), Path(folder, program)))
        with running(program, executable=copy, name=name) as process:
            copy.unlink()
            yield process


def _libraries(program: Path) -> list[Path]:
    """The files that the dynamic linker would map, it itself included."""
    answer = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    words = (word for line in answer.splitlines() for word in line.split())
    return [Path(word) for word in words if word.startswith("/")]


def _container_config(bundle: Path, cgroup: str) -> dict[str, object]:
    """Own pid, mount, ipc and uts namespaces, no capability, read-only root."""
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 1000, "gid": 1000},
            "args": ["/app/program"],
            "cwd": "/",
            "env": ["PATH=/"],
            "noNewPrivileges": True,
        },
        "root": {"path": str(bundle / "rootfs"), "readonly": True},
        "hostname": "truth",
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
        "linux": {
            "cgroupsPath": cgroup,
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")],
        },
    }


@contextmanager
def running_in_container(program: str, name: str) -> Iterator[Running]:
    """Runs a program in a runc container with its own root, libraries and pid namespace."""
    container = f"flameherd-truth-{os.getpid()}-{name}"
    source = build(program)
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder)
        bundle.chmod(0o755)
        root = bundle / "rootfs"
        for file, place in [(source, Path("/app/program")), *((x, x) for x in _libraries(source))]:
            target = root / place.relative_to("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)
        (root / "proc").mkdir()
        config = _container_config(bundle, f"/{container}")
        (bundle / "config.json").write_text(json.dumps(config))
        runc = ["runc", "--root", str(bundle / "state")]
        try:
            with _session([*runc, "run", "--bundle", folder, container]) as process:
                state = subprocess.run(
                    [*runc, "state", container], capture_output=True, text=True, check=True
                )
                yield Running(name, int(json.loads(state.stdout)["pid"]), process, source)
                subprocess.run([*runc, "kill", container, "KILL"], check=True)
                process.wait(READY_SECONDS)
        finally:
            subprocess.run(
                [*runc, "delete", "--force", container], check=False, capture_output=True
            )
            _remove_cgroups(container)


def _remove_cgroups(container: str) -> None:
    """runc removes them too, unless it was killed."""
    for hierarchy in Path("/sys/fs/cgroup").iterdir():
        left = hierarchy / container
        for _ in range(50):
            if not left.is_dir():
                break
            try:
                left.rmdir()
            except OSError:  # a killed process of it is not reaped yet
                time.sleep(0.1)
