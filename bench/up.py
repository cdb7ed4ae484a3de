"""How soon `flameherd up` (`make up`) shows this machine's stacks: `python -m bench.up [--repeat 3]`.

A newcomer's way: the example's policy, a store and a cache that are not there yet (eBPF programs are compiled), and
a browser on the address that is printed. Then again with the cache, as on every other day. Prints, from the start of the
process on: until the address is there; until the API has named stacks of a program (not of the kernel alone);
until the flame graph is painted in a Chromium tab that was opened on the address. Exits with 1 if a median is over
15 s. Needs root, and an otherwise idle machine.
"""

import argparse
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, sync_playwright

from tests.backend.running import request
from tests.browser.conftest import CHROMIUM, FLAGS
from tests.browser.watched import WIDE
from tests.programs.running import running

BUDGET_S = 15.0
LIMIT_MS = 180_000
ROOT = Path(__file__).parents[1]


class Shown(NamedTuple):
    """Seconds from the start of the process on."""

    address: float
    stacks: float
    painted: float


def free_port() -> int:
    """For the moment."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


def named(url: str) -> bool:
    """Whether a function of a program has a name."""
    answer = request(f"{url}/api/v1/functions?type=cpu").json()
    frames, text = answer.get("frames", {}), answer.get("strings", [])
    pairs = zip(frames.get("name", []), frames.get("kind", []), strict=True)
    return any(text[kind] not in ("", "kernel") and "+0x" not in text[name] for name, kind in pairs)


def once(folder: Path, cache: Path, browser: Browser) -> Shown:
    """One start."""
    port = free_port()
    policy = (ROOT / "examples" / "host-with-page.yaml").read_text(encoding="utf-8")
    config = folder / "policy.yaml"
    config.write_text(policy.replace("127.0.0.1:4317", f"127.0.0.1:{port}"))
    command = [
        str(Path(sys.executable).with_name("flameherd")), "up", "--config", str(config), "--lock", str(folder / "lock"),
        "--cache", str(cache), "--store", str(folder / "store"), "--page", "127.0.0.1:0", "--otlp", f"127.0.0.1:{port}",
    ]  # fmt: skip
    begun = time.monotonic()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        address = time.monotonic() - begun
        if not url:
            raise SystemExit((folder / "log").read_text())
        page = browser.new_page(viewport=WIDE)  # type: ignore[arg-type]
        page.goto(url)
        while not named(url):
            time.sleep(0.1)
        stacks = time.monotonic() - begun
        page.wait_for_selector(".flame-scroller", timeout=LIMIT_MS)
        painted = time.monotonic() - begun
        page.close()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        if process.stdout is not None:
            process.stdout.close()
    return Shown(address, stacks, painted)


def main() -> int:
    """1 if a budget is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    over = False
    with (
        tempfile.TemporaryDirectory(prefix="flameherd-bench-") as name,
        sync_playwright() as playwright,
        running("periodic"),
    ):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for fresh in (True, False):
            starts = []
            for number in range(options.repeat):
                folder = Path(name) / f"{fresh}-{number}"
                folder.mkdir()
                cache = Path(name) / "cache"
                if fresh:
                    shutil.rmtree(cache, ignore_errors=True)
                starts.append(once(folder, cache, browser))
            medians = Shown(*(statistics.median(times) for times in zip(*starts, strict=True)))
            worst = max(start.painted for start in starts)
            over |= medians.painted > BUDGET_S
            print(
                f"{'nothing cached' if fresh else 'cached':<16} address {medians.address:5.1f} s   stacks {medians.stacks:5.1f} s"
                f"   painted {medians.painted:5.1f} s (worst {worst:.1f}; budget {BUDGET_S:.0f})",
                flush=True,
            )
        browser.close()
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
