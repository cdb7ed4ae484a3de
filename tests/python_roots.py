"""CPythons of other Debian releases, in roots of their own (`debian_roots.py`): some 30 MB a release."""

import subprocess
from functools import cache
from pathlib import Path

from tests.debian_roots import root_of
from tests.pythons import Python

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


@cache
def rooted(suite: str, version: str) -> Python:
    """The CPython of a release. Raises NoRootError."""
    names = [
        f"python{version}-minimal",
        f"libpython{version}-minimal",
        f"libpython{version}-stdlib",
    ]
    root = root_of(f"python-roots/{suite}-{version}", suite, names, _SHARED)
    executable = Path(f"/usr/bin/python{version}")
    tell = "import sys; print(*sys.version_info[:3])"
    answer = subprocess.run(
        ["chroot", root, executable, "-I", "-c", tell],
        capture_output=True, text=True, check=True, timeout=60,
    ).stdout.split()  # fmt: skip
    major, minor, micro = (int(part) for part in answer)
    return Python(executable, (major, minor, micro), f"debian-{suite}", Path("/"), root)
