"""The CPythons that can be had on this machine: what CPython's tests run on.

pyenv's versions where they are, the interpreter of the tests, and the system's. A version that is missing is a skip that says so.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

WANTED = ((3, 6), (3, 7), (3, 8), (3, 9), (3, 10), (3, 11), (3, 12), (3, 13), (3, 14))
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
_TELL = "import sys, sysconfig; print('%d.%d.%d' % sys.version_info[:3], sysconfig.get_paths()['include'])"


@dataclass(frozen=True)
class Python:
    """One interpreter."""

    executable: Path
    version: tuple[int, int, int]
    build: str
    """Where it comes from: pyenv, debian."""
    include: Path
    root: Path | None = None
    """Where it runs by chroot; its executable lies below."""

    @property
    def name(self) -> str:
        return f"{self.build}-{'.'.join(map(str, self.version))}"

    def command(self, program: Path) -> list[str]:
        """What runs a program that lies beside others which it imports."""
        if self.root is None:
            return [str(self.executable), str(program)]
        folder = self.root / "truth"
        shutil.copytree(program.parent, folder, dirs_exist_ok=True)
        return ["chroot", str(self.root), str(self.executable), f"/truth/{program.name}"]


@cache
def pythons() -> tuple[Python, ...]:
    """Every interpreter, by version."""
    places = [("pyenv", path / "bin" / "python3") for path in sorted(PYENV.glob("3.*"))]
    places.append(("debian", Path("/usr/bin/python3")))
    found = []
    for build, path in places:
        if not path.exists():
            continue
        answer = subprocess.run(
            [path, "-I", "-c", _TELL], capture_output=True, text=True, check=True, timeout=60
        ).stdout.split()
        major, minor, micro = (int(part) for part in answer[0].split("."))
        found.append(Python(path.resolve(), (major, minor, micro), build, Path(answer[1])))
    return tuple(sorted(found, key=lambda python: (python.version, python.build)))


def missing() -> list[str]:
    """Minor versions that are not on this machine."""
    have = {python.version[:2] for python in pythons()}
    return [f"{major}.{minor}" for major, minor in WANTED if (major, minor) not in have]


def own() -> Python:
    """The one that runs the tests."""
    return next(p for p in pythons() if p.executable == Path(sys.executable).resolve())
