"""CPythons of other Debian releases: unpacked from their packages, not installed, and run by chroot.

Stripped, optimised builds with another C library each, in a root of their own like a container's. Some 30 MB a
release, fetched once by apt with the machine's own sources and kept in the cache outside the checkout.
"""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.pythons import Python

CACHE = Path.home() / ".cache" / "flameherd" / "python-roots"
SUITES = (("bullseye", "3.9"), ("trixie", "3.13"), ("sid", "3.14"))
_SHARED = (
    "libc6",
    "zlib1g",
    "libexpat1",
    "libffi6",
    "libffi7",
    "libffi8",
    "libcrypt1",
    "libgcc-s1",
)
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_SECONDS = 300


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


def _fetch(suite: str, version: str, root: Path) -> None:
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
    names = [
        f"python{version}-minimal",
        f"libpython{version}-minimal",
        f"libpython{version}-stdlib",
    ]
    depends = run("apt-cache", *options, "depends", "--recurse", "-i", *names).split()
    run("apt-get", *options, "-qq", "download", *names, *sorted(set(_SHARED) & set(depends)))
    for package in packages.glob("*.deb"):
        run("dpkg", "-x", str(package), str(root / "fs"))
    shutil.rmtree(apt)
    shutil.rmtree(packages)
    for name in ("lib", "lib64", "bin"):
        link = root / "fs" / name
        if not link.exists():
            link.symlink_to(f"usr/{name}")


@cache
def rooted(suite: str, version: str) -> Python:
    """The CPython of a release. Raises NoRootError."""
    root = CACHE / f"{suite}-{version}"
    if not root.exists():
        temporary = root.with_name(f".{root.name}.{os.getpid()}")
        temporary.mkdir(parents=True)
        try:
            _fetch(suite, version, temporary)
            temporary.rename(root)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    executable = Path(f"/usr/bin/python{version}")
    tell = "import sys; print(*sys.version_info[:3])"
    answer = subprocess.run(
        ["chroot", root / "fs", executable, "-I", "-c", tell],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout.split()  # fmt: skip
    major, minor, micro = (int(part) for part in answer)
    return Python(executable, (major, minor, micro), f"debian-{suite}", Path("/"), root / "fs")
