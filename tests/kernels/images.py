"""Kernels and disk images of the virtual machines, made once and cached outside the checkout.

What a machine boots from:

    kernel        `vmlinuz` and modules of a Debian package, fetched by apt with lists of its own:
                  the machine's own configuration is read for its mirror and is never changed
    initramfs     busybox, `guest/init` and the few modules that lead to a root file system
    root          Debian 12, minbase, with Python and bcc: one ext4 image for every kernel
    dependencies  the Python packages that `flameherd-agent` needs, as installed beside the tests
    checkout      bpf/, agent/, policy/ and what the guest runs of tests/: made for every machine

Each cached file carries a hash of what it was made from in its name, is made under another name
and then renamed, so that an interrupted or concurrent run leaves nothing half done. Kernels are
kept under the version asked for: remove the cache directory to get newer builds of them. Making
the root image needs root rights, as debootstrap does.
"""

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
GUEST = Path(__file__).resolve().parent / "guest"
CANONICAL_MIRROR = "http://deb.debian.org"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
ROOT_SUITE = "bookworm"
ROOT_PACKAGES = ("python3", "python3-bpfcc")
MODULES = ("virtio_pci", "virtio_blk", "virtio_console", "overlay")
BUSYBOX = Path("/bin/busybox")


class ImageError(Exception):
    """An image cannot be made; the message says which command failed and how."""


@dataclass(frozen=True, slots=True)
class Platform:
    """What differs between the processor architectures of guests."""

    debian: str  # architecture in Debian's names
    qemu: str
    machine: tuple[str, ...]  # emulator options
    console: str


# Without AVX2: as QEMU 7.2 emulates it, numpy's argsort gives wrong orders.
AMD64 = Platform("amd64", "qemu-system-x86_64", ("-accel", "tcg", "-cpu", "max,-avx2"), "ttyS0")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of the matrix: the newest build of `package` in these suites."""

    name: str
    suites: tuple[str, ...]  # in Debian's archive and its security archive
    package: str  # regular expression with one group, the build number


KERNELS = {
    "5.10": Kernel(
        "5.10", ("bullseye", "bullseye-security"), r"linux-image-5\.10\.0-(\d+)-cloud-amd64"
    ),
    "6.1": Kernel(
        "6.1", ("bookworm", "bookworm-security"), r"linux-image-6\.1\.0-(\d+)-cloud-amd64"
    ),
}


@dataclass(frozen=True, slots=True)
class BootFiles:
    """Paths of what the emulator loads."""

    vmlinuz: Path
    initramfs: Path
    package: str


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    path = Path(base) / "flameherd" / "kernels"
    path.mkdir(parents=True, exist_ok=True)
    return path


def missing_tools(platform: Platform = AMD64) -> list[str]:
    """What is not here: names of programs, or the right to be root."""
    programs = (platform.qemu, "debootstrap", "mkfs.ext4", "cpio", "apt-get", "dpkg-deb")
    search = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    missing = [name for name in programs if shutil.which(name, path=search) is None]
    if not BUSYBOX.exists():
        missing.append("busybox-static")
    if os.geteuid() != 0:
        missing.append("root rights (for debootstrap)")
    return missing


def _run(command: Sequence[str | Path], cwd: Path | None = None, stdin: bytes = b"") -> str:
    """Standard output of a command; its standard error is in the exception when it fails."""
    environment = os.environ | {
        "PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin",
        "LC_ALL": "C",
    }
    done = subprocess.run(
        list(command), cwd=cwd, input=stdin, env=environment, capture_output=True, check=False
    )
    if done.returncode != 0:
        raise ImageError(
            f"{' '.join(map(str, command))}: exit code {done.returncode}: "
            f"{done.stderr.decode(errors='replace')[-2000:]}"
        )
    return done.stdout.decode(errors="replace")


@contextmanager
def _scratch() -> Iterator[Path]:
    """A directory on the cache's file system that is removed afterwards."""
    with tempfile.TemporaryDirectory(dir=cache_directory(), prefix="making-") as name:
        yield Path(name)


def _key(*parts: bytes | str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()[:16]


def mirrors() -> tuple[str, str]:
    """URIs of Debian's archive and security archive.

    The machine's own where its apt has them, else the canonical ones.
    """
    listed = _run(["apt-get", "indextargets", "--format", "$(REPO_URI)"]).split()
    found = {uri.rstrip("/").rpartition("/")[2]: uri.rstrip("/") for uri in listed}
    return (
        found.get("debian", f"{CANONICAL_MIRROR}/debian"),
        found.get("debian-security", f"{CANONICAL_MIRROR}/debian-security"),
    )


def _fetch_package(kernel: Kernel, directory: Path) -> Path:
    """Downloads the kernel's newest package into `directory`; apt's lists go there too."""
    archive, security = mirrors()
    sources = directory / "sources.list"
    release, security_release = kernel.suites
    sources.write_text(
        f"deb [signed-by={KEYRING}] {archive} {release} main\n"
        f"deb [signed-by={KEYRING}] {security} {security_release} main\n"
    )
    (directory / "lists" / "partial").mkdir(parents=True)
    (directory / "cache").mkdir()
    options = [
        item
        for option in (
            f"Dir::Etc::sourcelist={sources}",
            "Dir::Etc::sourceparts=/dev/null",
            f"Dir::State::lists={directory / 'lists'}",
            f"Dir::Cache={directory / 'cache'}",
            "APT::Sandbox::User=root",
            "Acquire::Languages=none",
        )
        for item in ("-o", option)
    ]
    _run(["apt-get", *options, "update"])
    builds = {}
    for name in _run(["apt-cache", *options, "pkgnames", "linux-image-"]).split():
        if match := re.fullmatch(kernel.package, name):
            builds[int(match.group(1))] = name
    if not builds:
        raise ImageError(f"no package {kernel.package} in the suites {', '.join(kernel.suites)}")
    _run(["apt-get", *options, "download", builds[max(builds)]], cwd=directory)
    return next(directory.glob("*.deb"))


def module_order(directory: Path, wanted: Sequence[str]) -> list[Path]:
    """Module files below `directory` in loading order: `wanted` and what they depend on.

    By their `.modinfo`, since modules.dep is made when a package is installed. A module that is not
    there is built into the kernel.
    """
    files = {path.stem.replace("-", "_"): path for path in directory.rglob("*.ko")}
    order: list[Path] = []

    def visit(name: str) -> None:
        path = files.get(name.replace("-", "_"))
        if path is None or path in order:
            return
        declared = re.search(rb"\0depends=([^\0]*)\0", path.read_bytes())
        for dependency in (declared.group(1).decode() if declared else "").split(","):
            visit(dependency)
        order.append(path)

    for name in wanted:
        visit(name)
    return order


def _make_initramfs(modules: Sequence[Path], target: Path) -> None:
    with _scratch() as root:
        for name in (
            "bin",
            "modules",
            "proc",
            "sys",
            "dev",
            "newroot",
            "lower",
            "upper",
            "checkout",
        ):
            (root / name).mkdir()
        shutil.copy(BUSYBOX, root / "bin" / "busybox")
        for number, module in enumerate(modules):
            shutil.copy(module, root / "modules" / f"{number:02}-{module.name}")
        shutil.copy(GUEST / "init", root / "init")
        (root / "init").chmod(0o755)
        names = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
        making = target.with_suffix(".part")
        _run(
            ["cpio", "--quiet", "-o", "-H", "newc", "-R", "0:0", "-O", making],
            cwd=root,
            stdin="\n".join(names).encode(),
        )
        making.rename(target)


def kernel_files(kernel: Kernel) -> BootFiles:
    """Kernel and initramfs; fetched by apt the first time."""
    home = cache_directory() / f"linux-{kernel.name}"
    if not home.exists():
        with _scratch() as directory:
            package = _fetch_package(kernel, directory)
            _run(["dpkg-deb", "-x", package, directory / "tree"])
            kept = directory / "kept"
            shutil.copytree(directory / "tree" / "lib" / "modules", kept / "modules")
            shutil.copy(next((directory / "tree" / "boot").glob("vmlinuz-*")), kept / "vmlinuz")
            (kept / "package").write_text(package.name.removesuffix(".deb"))
            kept.rename(home)
    modules = module_order(home / "modules", MODULES)
    key = _key(
        (GUEST / "init").read_bytes(),
        BUSYBOX.read_bytes(),
        *(path.read_bytes() for path in modules),
    )
    initramfs = home / f"initramfs-{key}.cpio"
    if not initramfs.exists():
        _make_initramfs(modules, initramfs)
    return BootFiles(home / "vmlinuz", initramfs, (home / "package").read_text())


def _ext4(tree: Path, target: Path, label: str, spare_mib: int = 16) -> None:
    """An ext4 image of `tree` that kernels from 5.10 on mount; no journal: it is only read."""
    used = sum(
        4096 + (path.lstat().st_size + 4095) // 4096 * 4096
        for path in tree.rglob("*")
        if not path.is_symlink()
    )
    making = target.with_suffix(".part")
    making.unlink(missing_ok=True)
    with making.open("wb") as image:
        image.truncate(used * 105 // 100 + (spare_mib << 20))
    features = "^has_journal,^orphan_file,^metadata_csum_seed"
    _run(["mkfs.ext4", "-q", "-F", "-L", label, "-m", "0", "-O", features, "-d", tree, making])
    making.rename(target)


def _cached(name: str, key: str, make: Callable[[Path, Path], None]) -> Path:
    """The cached image `name`-`key`; `make(empty directory, target)` makes it."""
    target = cache_directory() / f"{name}-{key}.ext4"
    if not target.exists():
        with _scratch() as directory:
            make(directory, target)
    return target


def root_image(platform: Platform = AMD64) -> Path:
    """Debian 12 with Python and bcc (about 600 MB; half a minute the first time)."""

    def make(directory: Path, target: Path) -> None:
        tree = directory / "root"
        _run(
            [
                "debootstrap",
                "--variant=minbase",
                f"--arch={platform.debian}",
                f"--include={','.join(ROOT_PACKAGES)}",
                ROOT_SUITE,
                tree,
                mirrors()[0],
            ]
        )
        for waste in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "dev"):
            shutil.rmtree(tree / waste)
            (tree / waste).mkdir()
        _ext4(tree, target, "root")

    return _cached("root", _key("1", platform.debian, ROOT_SUITE, *ROOT_PACKAGES), make)


def dependency_closure(distribution: str) -> dict[str, importlib.metadata.Distribution]:
    """The installed distributions that one needs, without itself and without extras."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = [distribution]
    while waiting:
        for requirement in importlib.metadata.distribution(waiting.pop()).requires or []:
            name = re.split(r"[\s<>=!~;\[(]", requirement, maxsplit=1)[0]
            canonical = re.sub(r"[-_.]+", "-", name).lower()
            if canonical in found or re.search(r"\bextra\s*==", requirement):
                continue
            try:
                found[canonical] = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue  # for another platform or Python version
            waiting.append(name)
    return found


def dependencies_image() -> Path:
    """The agent's Python packages as installed beside the tests; not ours, and no test suites."""
    packages = dependency_closure("flameherd-agent")
    ours = [name for name in packages if name.startswith("flameherd-")]
    for name in ours:
        del packages[name]

    def make(directory: Path, target: Path) -> None:
        tree = directory / "site"
        tree.mkdir()
        for package in packages.values():
            for file in package.files or []:
                source = Path(str(file.locate()))
                if ".." in file.parts or "tests" in file.parts or file.suffix == ".pyc":
                    continue
                destination = tree / file
                destination.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, destination)
        _run(["/usr/bin/python3", "-m", "compileall", "-q", tree])
        _ext4(tree, target, "site")

    versions = (f"{name}={package.version}" for name, package in sorted(packages.items()))
    return _cached("site", _key("1", *versions), make)


def write_checkout_image(target: Path, extra: dict[str, Path]) -> None:
    """The working tree's own files, and `extra` files by their name in the image.

    An extra file replaces one of the working tree of the same name.
    """
    with _scratch() as directory:
        tree = directory / "checkout"
        ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
        for name in ("bpf", "agent", "policy", "tests/kernels/guest", "tests/programs"):
            shutil.copytree(CHECKOUT / name, tree / name, ignore=ignore)
        for source in CHECKOUT.glob("tests/*.py"):
            shutil.copy(source, tree / "tests")
        for name, source in extra.items():
            destination = tree / name
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, destination)
        (tree / "site").mkdir()
        _ext4(tree, target, "checkout")
