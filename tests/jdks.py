"""The JDKs that can be had on this machine: what HotSpot's tests run on.

The system's, Temurin's, and those of other Debian releases in roots of their own (`debian_roots.py`; 110 to 250 MB each,
run by chroot in a mount namespace with /proc, which java's launcher needs). The truth programs are compiled once, for
the oldest; their C library uses nothing of libc.
"""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.debian_roots import CACHE, NoRootError, root_of

PROGRAMS = Path(__file__).parent / "programs" / "hotspot"
SYSTEM = Path("/usr/lib/jvm")
SUITES = (
    ("sid", "8"),
    ("bullseye", "11"),
    ("trixie", "21"),
    ("trixie", "25"),
    ("sid", "26"),
)
_SHARED = ("libc6", "zlib1g", "libgcc-s1", "libstdc++6", "libcrypt1")
_ENTER = 'mount --bind /proc "$0/proc" && root=$0 && exec chroot "$root" "$@"'


class NoJavacError(Exception):
    """The truth programs cannot be compiled; the message says why."""


@dataclass(frozen=True)
class Jdk:
    """One JVM."""

    java: Path
    version: int
    build: str
    """Where it comes from: debian, temurin, debian-SUITE."""
    root: Path | None = None
    """Where it runs by chroot; `java` lies below."""

    @property
    def name(self) -> str:
        return f"{self.build}-{self.version}"

    def command(self, program: str, *options: str, arguments: Sequence[str] = ()) -> list[str]:
        """What runs a truth program."""
        folder = classes()
        if self.root is None:
            library = f"{folder}/{_LIBRARY}"
            return [str(self.java), *options, "-cp", str(folder), program, library, *arguments]
        inside = Path("truth")
        target = self.root / inside / folder.name
        if not target.exists():
            shutil.copytree(folder, target)
        (self.root / "proc").mkdir(exist_ok=True)
        (self.root / "tmp").mkdir(exist_ok=True)
        place = f"/{inside}/{folder.name}"
        return [
            *("unshare", "--mount", "sh", "-c", _ENTER, str(self.root), str(self.java)),
            *options, "-cp", place, program, f"{place}/{_LIBRARY}",
            *arguments,
        ]  # fmt: skip


_LIBRARY = "libcallback.so"


def tool(name: str) -> Path:
    """A tool of an installed JDK that compiles for JDK 8. Raises NoJavacError."""
    for folder in ("java-*-openjdk-*", "*"):
        for path in sorted(SYSTEM.glob(f"{folder}/bin/{name}")):
            return path
    raise NoJavacError(f"no {name} below {SYSTEM}: install openjdk-17-jdk-headless")


@cache
def classes() -> Path:
    """The compiled truth programs: class files of JDK 8 and a C library. Raises NoJavacError."""
    javac = tool("javac")
    include = javac.parents[1] / "include"
    sources = sorted(PROGRAMS.glob("*.java"))
    text = b"".join(path.read_bytes() for path in (*sources, *sorted(PROGRAMS.glob("*.c"))))
    folder = CACHE / f"hotspot-programs-{hashlib.sha256(text).hexdigest()[:16]}"
    if folder.exists():
        return folder
    building = folder.with_name(f".{folder.name}.{os.getpid()}")
    building.mkdir(parents=True)
    try:
        subprocess.run(
            [javac, "--release", "8", "-Xlint:-options", "-d", building, *sources], check=True
        )
        subprocess.run(
            ["gcc", "-O1", "-shared", "-fPIC", "-nostdlib", f"-I{include}", f"-I{include}/linux",
             "-o", building / _LIBRARY, PROGRAMS / "callback.c"],
            check=True,
        )  # fmt: skip
        if not folder.exists():  # another run may have been quicker
            building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


@cache
def jdks() -> tuple[Jdk, ...]:
    """Those that are installed, by version."""
    found = []
    for home in sorted(SYSTEM.glob("*")):
        release = home / "release"
        if home.is_symlink() or not (home / "lib/server/libjvm.so").exists():
            continue
        version = re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', release.read_text())
        assert version, f"{release} tells no version"
        build = "temurin" if "temurin" in home.name else "debian"
        found.append(Jdk(home / "bin/java", int(version[1]), build))
    return tuple(sorted(found, key=lambda jdk: (jdk.version, jdk.build)))


@cache
def rooted(suite: str, version: str) -> Jdk:
    """The JDK of a Debian release. Raises NoRootError."""
    root = root_of(
        f"jdk-roots/{suite}-{version}", suite, [f"openjdk-{version}-jre-headless"], _SHARED
    )
    home = SYSTEM / f"java-{version}-openjdk-amd64"
    for java in (home / "bin/java", home / "jre/bin/java"):
        if (root / java.relative_to("/")).exists():
            return Jdk(java, int(version), f"debian-{suite}", root)
    raise NoRootError(f"{suite}: no java in {root}{home}")


def missing() -> list[str]:
    """Versions that are not installed."""
    have = {jdk.version for jdk in jdks()}
    return [f"{version}" for version in (8, 11, 17, 21, 25) if version not in have]
