"""Runtimes of other Debian releases: unpacked from their packages, not installed, and run by chroot.

Stripped, optimised builds with another C library each, in a root of their own like a container's. Fetched once by apt
with the machine's own sources and kept in the cache outside the checkout.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

CACHE = Path.home() / ".cache" / "flameherd"
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_SECONDS = 600


class NoRootError(Exception):
    """The packages cannot be had; the message says why."""


def _sources() -> str:
    """The first Debian archive that this machine's apt knows."""
    apt = Path("/etc/apt")
    for path in (*sorted(apt.glob("sources.list.d/*")), apt / "sources.list"):
        if path.is_file():
            found = re.search(
                r"^(?:URIs:|deb(?: \[[^]]*\])?) *(\S+)", path.read_text(), re.MULTILINE
            )
            if found:
                return found[1]
    raise NoRootError("apt has no sources")


def root_of(place: str, suite: str, names: Iterable[str], shared: Iterable[str]) -> Path:
    """The root with the packages `names` of a release, and those of `shared` that they depend on.

    `place`: below the cache. Raises NoRootError.
    """
    root = CACHE / place
    if not root.exists():
        temporary = root.with_name(f".{root.name}.{os.getpid()}")
        temporary.mkdir(parents=True)
        try:
            _fetch(suite, list(names), set(shared), temporary)
            temporary.rename(root)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return root / "fs"


def _fetch(suite: str, names: list[str], shared: set[str], root: Path) -> None:
    apt, packages = root / "apt", root / "packages"
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True)
    packages.mkdir()
    (apt / "status").touch()
    (apt / "sources.list").write_text(f"deb [signed-by={_KEYS}] {_sources()} {suite} main\n")
    options = [
        f"-oDir::State={apt}/state", f"-oDir::State::status={apt}/status",
        f"-oDir::Cache={apt}/cache", f"-oDir::Etc::sourcelist={apt}/sources.list",
        "-oDir::Etc::sourceparts=/dev/null", "-oAcquire::Languages=none",
        "-oAPT::Sandbox::User=root",
    ]  # fmt: skip

    def run(*command: str) -> str:
        try:
            return subprocess.run(
                command, cwd=packages, check=True, capture_output=True, text=True, timeout=_SECONDS
            ).stdout
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise NoRootError(f"{suite}: {' '.join(command[-3:])}: {error}") from error

    run("apt-get", *options, "-qq", "update")
    depends = run("apt-cache", *options, "depends", "--recurse", "-i", *names).split()
    run("apt-get", *options, "-qq", "download", *names, *sorted(shared & set(depends)))
    for package in packages.glob("*.deb"):
        run("dpkg", "-x", str(package), str(root / "fs"))
    shutil.rmtree(apt)
    shutil.rmtree(packages)
    for name in ("lib", "lib64", "bin"):
        link = root / "fs" / name
        if not link.exists():
            link.symlink_to(f"usr/{name}")
