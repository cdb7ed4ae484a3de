"""Builds the container images of operator, agent and backend, by buildah and without a daemon.

    python -m tools.images                     all three: prints each image's archive
    python -m tools.images agent               one
    python -m tools.images --context DIR       only the build context, for another builder

Python packages come from uv.lock as wheels for the image's Python, chosen here; the page is built by `make ui`. What
an image is made of is hashed: an archive that is there already, in the cache outside the checkout, is not built again.
Needs root, and `buildah` and `debootstrap` of Debian: the base image is made here, under its usual name, not pulled.
"""

import argparse
import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ("operator", "agent", "backend")
SUITE = "trixie"
BASE = f"docker.io/library/debian:{SUITE}-slim"
PYTHON = "3.13"
"""Of that Debian release."""
PLATFORM = "x86_64-unknown-linux-gnu"
_SOURCES = {
    "operator": ("policy", "operator"),
    "agent": ("policy", "agent", "bpf"),
    "backend": ("policy", "backend/flameherd_backend", "backend/pyproject.toml"),
}
_WASTE = (
    *(f"usr/share/{name}" for name in ("doc", "man", "locale", "info", "lintian")),
    *("var/cache/apt", "var/lib/apt/lists", "var/log"),
)
_KEPT = 3
"""Archives of one target in the cache: the newest ones."""
_STORE_BYTES = 16 << 30
"""Layers in the store when a build begins: above that all go. A first build of all three makes about 8 GB."""


class ImageError(Exception):
    """An image cannot be built; the message says which command failed and how."""


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "flameherd" / "images"


def _project(target: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / target / "pyproject.toml").read_text())["project"]
    return found


def version() -> str:
    """Of the distributions, and so of the images."""
    return str(_project("agent")["version"])


def name_of(target: str) -> str:
    """As the chart names it."""
    return f"docker.io/flameherd/flameherd-{target}:{version()}"


def missing() -> list[str]:
    """What is not here."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    lacking = [tool for tool in ("buildah", "debootstrap") if shutil.which(tool, path=path) is None]
    return lacking + ([] if os.geteuid() == 0 else ["root rights"])


def _run(*command: str | Path, folder: Path = ROOT, timeout_s: int = 1200) -> str:
    search = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    result = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=os.environ | {"PATH": search, "BUILDAH_ISOLATION": "chroot", "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if result.returncode != 0:
        told = f"{result.stdout[-1500:]}\n{result.stderr[-2500:]}"
        raise ImageError(f"{' '.join(map(str, command))}: exit code {result.returncode}:\n{told}")
    return result.stdout


def buildah(*arguments: str | Path) -> str:
    """With a store of its own in the cache."""
    return _run("buildah", *_store(_driver()), *arguments)


def _store(driver: str) -> tuple[str | Path, ...]:
    root, run = cache() / f"storage-{driver}", cache() / f"run-{driver}"
    return ("--root", root, "--runroot", run, "--storage-driver", driver)


@functools.cache
def _driver() -> str:
    """How layers are kept: as overlays, or, where the file system cannot, as whole copies (ten times the disk)."""
    try:
        _run("buildah", *_store("overlay"), "images")
    except ImageError:
        return "vfs"
    return "overlay"


def _uv(*arguments: str | Path) -> str:
    return _run(Path(sys.executable).with_name("uv"), *arguments)


def make_context(folder: Path, targets: Iterable[str] = TARGETS) -> None:
    """What the Dockerfile copies: for each target the tree of /opt/flameherd. Raises `ImageError`."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "tools/image_root.py", folder)
    for target in targets:
        _site(target, folder / target)


def _site(target: str, folder: Path) -> None:
    if target == "backend" and not (ROOT / "backend/flameherd_backend/static/index.html").exists():
        raise ImageError("the page is not built: `make ui` builds it")
    shutil.rmtree(folder, ignore_errors=True)
    site = folder / f"lib/python{PYTHON}/site-packages"
    locked = ("--frozen", "--quiet", "--no-dev", "--no-emit-workspace")
    requirements = folder / "requirements.txt"
    folder.mkdir(parents=True)
    _uv("export", *locked, "--package", f"flameherd-{target}", "--output-file", requirements)
    of_image = ("--python-version", PYTHON, "--python-platform", PLATFORM)
    install = ("pip", "install", "--quiet", "--target", site, "--link-mode", "copy", *of_image)
    _uv(*install, "--only-binary", ":all:", "--requirements", requirements)
    _uv(*install, "--no-deps", ROOT / "policy", ROOT / target)
    requirements.unlink()
    shutil.rmtree(site / "bin", ignore_errors=True)
    for tests in [path for path in (site / "numpy").rglob("tests") if path.is_dir()]:
        shutil.rmtree(tests)  # a quarter of it
    for stub in site.rglob("*.pyi"):
        stub.unlink()
    (site / ".lock").unlink(missing_ok=True)
    # A virtual environment, made by hand: uv's would need the image's Python here.
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    scripts = folder / "bin"
    scripts.mkdir()
    (scripts / "python3").symlink_to("/usr/bin/python3")
    for name, entry in _project(target)["scripts"].items():
        module, _, function = entry.partition(":")
        script = scripts / name
        script.write_text(
            f"#!/opt/flameherd/bin/python3\nfrom {module} import {function}\n\n{function}()\n"
        )
        script.chmod(0o755)


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for found in sorted(path.rglob("*")):
        if found.is_file() and not {"__pycache__", "node_modules"} & set(found.parts):
            yield found


def _digest(parts: Sequence[Path | str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(part.encode() + b"\0")
            continue
        for file in _files(part):
            data = file.read_bytes()
            digest.update(f"{file.relative_to(ROOT)} {len(data)} ".encode())
            digest.update(data)
    return digest.hexdigest()[:16]


def base_image() -> str:
    """Debian's slim image under its usual name, made once. Returns its id."""
    present = _image_id(BASE)
    if present:
        return present
    with tempfile.TemporaryDirectory(dir=cache()) as work:
        tree = Path(work) / "root"
        _run("debootstrap", "--variant=minbase", SUITE, tree, mirror())
        for waste in _WASTE:
            shutil.rmtree(tree / waste, ignore_errors=True)
            (tree / waste).mkdir()
        (tree / "var/lib/apt/lists/partial").mkdir()
        container = buildah("from", "scratch").strip()
        buildah("copy", "--quiet", container, tree, "/")
        buildah("config", "--cmd", "bash", container)
        buildah("commit", "--quiet", "--rm", container, BASE)
    return _image_id(BASE)


def _image_id(name: str) -> str:
    try:
        return buildah("images", "--quiet", "--no-trunc", name).strip()
    except ImageError:
        return ""


def mirror() -> str:
    """The archive that this machine's apt uses."""
    for line in _run("apt-get", "indextargets", "--format", "$(REPO_URI)").split():
        if line.rstrip("/").endswith("/debian"):
            return line.rstrip("/")
    return "http://deb.debian.org/debian"


def archive_of(target: str) -> Path:
    """The image as an archive that `ctr images import`, `docker load` and `skopeo` read.

    Raises `ImageError`.
    """
    cache().mkdir(parents=True, exist_ok=True)
    parts: list[Path | str] = [version(), PYTHON, PLATFORM, target]
    parts += [ROOT / "Dockerfile", ROOT / "uv.lock", ROOT / "tools/image_root.py", Path(__file__)]
    parts += [ROOT / source for source in _SOURCES[target]]
    made = cache() / f"{target}-{_digest(parts)}.tar"
    if not made.exists():
        # Builds share one store; runs at the same time build once.
        with (cache() / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not made.exists():
                _bound_store()
                base_image()
                _build(target, made)
                _forget(target)
    made.touch()
    return made


def _build(target: str, made: Path) -> None:
    with tempfile.TemporaryDirectory(dir=cache()) as work:
        context, part = Path(work) / "context", Path(work) / "image.tar"
        make_context(context, [target])
        name = name_of(target)
        build = ("bud", "--pull-never", "--layers", "--target", target, "--tag", name)
        buildah(*build, "--file", ROOT / "Dockerfile", context)
        buildah("push", "--quiet", name, f"docker-archive:{part}:{name}")
        part.replace(made)


def _bound_store() -> None:
    """Layers stay, since the next build needs most of them; nothing tells which ones, so all go or none."""
    store = cache() / f"storage-{_driver()}"
    if int(_run("du", "-s", "--block-size=1", store).split()[0]) > _STORE_BYTES:
        buildah("rmi", "--all", "--force")


def _forget(target: str) -> None:
    """Old archives go."""
    archives = sorted(cache().glob(f"{target}-*.tar"), key=lambda path: path.stat().st_mtime)
    for old in archives[:-_KEPT]:
        old.unlink()


def main() -> int:
    parser = argparse.ArgumentParser("python -m tools.images", description=__doc__.split("\n")[0])
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="default: all")
    parser.add_argument("--context", type=Path, metavar="DIR", help="only the build context")
    arguments = parser.parse_args()
    targets = arguments.targets or TARGETS
    try:
        if arguments.context is not None:
            make_context(arguments.context, targets)
            return 0
        if lacking := missing():
            raise ImageError(f"building images needs {', '.join(lacking)}")
        for target in targets:
            print(archive_of(target), name_of(target))
    except ImageError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
