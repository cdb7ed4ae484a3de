"""Builds the OpenTelemetry Collector that export tests send to, once, outside the checkout.

It is the upstream collector from its Go modules (`src/go.mod` pins them), with an OTLP receiver
and a file exporter. The binary is cached under a hash of its sources and of the Go version, so
a change of either builds anew. A cold build, downloads included, takes about two minutes on two
cores.

    python -m tests.collector.build        prints the binary's path
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parent / "src"
_FILES = ("go.mod", "go.sum", "main.go")
_TIMEOUT_S = 1200


def go() -> str | None:
    """The Go tool, also where its archive puts it."""
    return shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")


def cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flameherd"


def collector_binary() -> Path:
    """The path of the built collector. Raises `RuntimeError` with the build's output."""
    tool = go()
    if tool is None:
        raise RuntimeError("Go is not installed")
    env = os.environ | {"GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0"}
    version = subprocess.run(
        [tool, "env", "GOVERSION"], env=env, capture_output=True, check=True, timeout=60
    ).stdout
    digest = hashlib.sha256(version)
    for name in _FILES:
        digest.update((SOURCE / name).read_bytes())
    folder = cache_dir() / f"collector-{digest.hexdigest()[:16]}"
    binary = folder / "collector"
    folder.mkdir(parents=True, exist_ok=True)
    # Test runs at the same time build once.
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():
            with tempfile.TemporaryDirectory(dir=folder) as work:
                for name in _FILES:
                    shutil.copy(SOURCE / name, work)
                part = Path(work) / "collector"
                command = [tool, "build", "-mod=readonly", "-trimpath", "-ldflags=-s -w", "-o"]
                result = subprocess.run(
                    ["nice", "-n", "5", *command, str(part), "."],
                    cwd=work,
                    env=env | {"GOFLAGS": "-buildvcs=false"},
                    capture_output=True,
                    text=True,
                    timeout=_TIMEOUT_S,
                    check=False,
                )
                if result.returncode != 0:
                    raise RuntimeError(f"the collector does not build:\n{result.stderr[-4000:]}")
                part.replace(binary)
    return binary


if __name__ == "__main__":
    print(collector_binary())
