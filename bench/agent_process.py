"""`flameherd agent` as a process to be measured: what it says of itself, and what the kernel says of it."""

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.memory_group import MemoryGroup

START_S = 30.0
STOP_S = 20.0


class CannotMeasureError(Exception):
    """The agent did not start, or did not end an interval: says what it logged."""


@dataclass
class Agent:
    """A running agent and the address that it serves on."""

    process: subprocess.Popen[bytes]
    address: str
    log: Path

    def get(self, page: str) -> str:
        """The text of `/metrics` or `/status`. Raises OSError when the agent is gone."""
        with urllib.request.urlopen(f"{self.address}/{page}", timeout=10) as answer:
            text: bytes = answer.read()
        return text.decode()

    def family(self) -> list[int]:
        """The agent first, then its living children."""
        found = [self.process.pid]
        for pid in found:
            with suppress(FileNotFoundError, ProcessLookupError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    found += map(int, (task / "children").read_text().split())
        return found

    def cpu_seconds(self) -> tuple[float, float]:
        """(its own, its children's living or reaped): user and system time.

        Its own is that of its living threads, in nanoseconds (schedstat); that of the children has
        steps of 10 ms (proc(5), 14th to 17th field of stat).
        """
        own = 0.0
        children = 0
        for pid in self.family():
            with suppress(FileNotFoundError, ProcessLookupError):
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                user, system, reaped_user, reaped_system = map(int, stat[11:15])
                children += reaped_user + reaped_system
                if pid == self.process.pid:
                    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
                    own = sum(int(task.read_text().split()[0]) for task in tasks) / 1e9
                else:
                    children += user + system
        return own, children / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> dict[str, float]:
    """Vm* and Rss* lines of /proc/PID/status in MB (10^6 bytes); empty if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    found = re.findall(r"^((?:Vm|Rss)\w+):\s+(\d+) kB$", text, re.MULTILINE)
    return {name: int(kib) * 1024 / 1e6 for name, kib in found}


@contextmanager
def running_agent(folder: Path, config: str, group: MemoryGroup | None) -> Iterator[Agent]:
    """An agent with configuration, cache, lock and log in `folder`; it has ended afterwards."""
    folder.mkdir(exist_ok=True)
    file, log = folder / "config.yaml", folder / "log"
    file.write_text(config)
    # In the group from its first page on.
    command = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group.processes)] if group else []
    command += [str(Path(sys.executable).with_name("flameherd")), "agent", "--config", str(file)]
    command += ["--cache", str(folder / "cache"), "--lock", str(folder / "lock")]
    command += ["--listen", "127.0.0.1:0"]
    # Bytecode of our own modules is part of an installation.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=environment,
        )
    try:
        yield Agent(process, _address(process, log), log)
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        if found := re.search(r"(http://\S+)/status$", log.read_text(), re.MULTILINE):
            return found.group(1)
        time.sleep(0.02)
    raise CannotMeasureError(f"the agent did not start:\n{log.read_text()[-2000:]}")
