"""Builds programs that tests need from their Go modules, once, outside the checkout.

The folder of a program holds `go.mod`, `go.sum` and `main.go`, which pin and choose upstream code.
The binary is cached under a hash of these, of the Go version and of the linker's settings, so that
a change of any builds anew.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_FILES = ("go.mod", "go.sum", "main.go")


def go() -> str | None:
    """The Go tool, also where its archive puts it."""
    return shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")


def cache_dir() -> Path:
    """Where built programs stay between test runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flameherd"


def go_binary(
    name: str, source: Path, *, package: str = ".", settings: str = "", timeout_s: int = 2700
) -> Path:
    """The built program of folder `source`, by the name `name`.

    `package` is what is built when it is not the folder's own `main.go`: a program that its `go.mod`
    pins as a tool. `settings` go to the linker (`-X package.variable=value`). Raises `RuntimeError`
    with the build's output.
    """
    tool = go()
    if tool is None:
        raise RuntimeError("Go is not installed")
    env = os.environ | {"GOTOOLCHAIN": "local", "GOWORK": "off", "CGO_ENABLED": "0"}
    version = subprocess.run(
        [tool, "env", "GOVERSION"], env=env, capture_output=True, check=True, timeout=60
    ).stdout
    digest = hashlib.sha256(version)
    for file in _FILES:
        digest.update((source / file).read_bytes())
    digest.update(settings.encode())
    folder = cache_dir() / f"{name}-{digest.hexdigest()[:16]}"
    binary = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    # Test runs at the same time build once.
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.exists():
            with tempfile.TemporaryDirectory(dir=folder) as work:
                for file in _FILES:
                    shutil.copy(source / file, work)
                part = Path(work) / name
                build = ["nice", "-n", "5", tool, "build", "-mod=readonly", "-trimpath"]
                linker = f"-ldflags=-s -w {settings}".rstrip()
                result = subprocess.run(
                    [*build, linker, "-o", str(part), package],
                    cwd=work,
                    env=env | {"GOFLAGS": "-buildvcs=false"},
                    capture_output=True,
                    text=True,
                    timeout=timeout_s,
                    check=False,
                )
                if result.returncode != 0:
                    raise RuntimeError(f"{source} does not build:\n{result.stderr[-4000:]}")
                part.replace(binary)
    return binary
