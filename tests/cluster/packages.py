"""What a node needs besides Kubernetes itself: containerd, runc, CNI plugins and nft, unpacked from their
Debian packages, not installed. Some 200 MB, fetched once by apt with lists of its own, cached outside the
checkout under a hash of the packages' names.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.go_build import cache_dir
from tests.kernels.images import KEYRING, mirrors

SUITE = "bookworm"
"""The suite of the machine that tests run on: the programs use its C library."""
PACKAGES = (
    "containerd",
    "runc",
    "libseccomp2",
    "containernetworking-plugins",
    "nftables",
    "libnftables1",
    "libnftnl11",
    "libmnl0",
    "libedit2",
    "libbsd0",
    "libmd0",
    "libjansson4",
    "libxtables12",
    "iproute2",
    "libbpf1",
    "libelf1",
    "libcap2",
    "libdb5.3",
)
_SECONDS = 300


@dataclass(frozen=True)
class Unpacked:
    """A tree of packages."""

    root: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """By which its programs, and those that call them, find them and their libraries."""
        folders = (self.root / name for name in ("usr/sbin", "sbin", "usr/bin", "bin"))
        path = ":".join((*map(str, folders), os.environ.get("PATH", os.defpath), "/usr/sbin:/sbin"))
        libraries = [str(found) for found in sorted(self.root.glob("**/*-linux-gnu"))]
        return {"PATH": path, "LD_LIBRARY_PATH": ":".join(libraries)}

    @property
    def cni(self) -> Path:
        return self.root / "usr/lib/cni"


def _run(*command: str | Path, folder: Path) -> None:
    result = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command[-3:]))}: {result.stderr[-2000:]}")


def unpacked() -> Unpacked:
    """The packages' tree. Raises `RuntimeError` with apt's words."""
    key = hashlib.sha256(" ".join((SUITE, *PACKAGES)).encode()).hexdigest()[:16]
    target = cache_dir() / f"node-packages-{key}"
    if target.exists():
        return Unpacked(target)
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir()) as work:
        apt, packages, root = (Path(work) / name for name in ("apt", "packages", "root"))
        for folder in (apt / "lists/partial", apt / "cache/archives/partial", packages, root):
            folder.mkdir(parents=True)
        archive, security = mirrors()
        (apt / "sources.list").write_text(
            f"deb [signed-by={KEYRING}] {archive} {SUITE} main\n"
            f"deb [signed-by={KEYRING}] {security} {SUITE}-security main\n"
        )
        options = [
            f"-oDir::State::lists={apt}/lists",
            f"-oDir::Cache={apt}/cache",
            f"-oDir::Etc::sourcelist={apt}/sources.list",
            "-oDir::Etc::sourceparts=/dev/null",
            "-oAcquire::Languages=none",
            "-oAPT::Sandbox::User=root",
        ]
        _run("apt-get", *options, "-qq", "update", folder=packages)
        _run("apt-get", *options, "-qq", "download", *PACKAGES, folder=packages)
        for package in packages.glob("*.deb"):
            _run("dpkg-deb", "-x", package, root, folder=packages)
        try:
            root.rename(target)
        except OSError:
            if not target.exists():  # another run was faster
                raise
            shutil.rmtree(root)
    return Unpacked(target)
