"""Images that tests run on a node: `pause`, programs whose stacks are known, and an OpenTelemetry Collector.

Flameherd's own are built by `tools.images`, which these share their base and their store with.
"""

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.node_settings import PAUSE
from tests.collector.build import collector_binary
from tests.programs.build import build
from tools import images

SOURCE = Path(__file__).parent / "images"
LOAD = "registry.local/load:1"
COLLECTOR = "registry.local/collector:1"
PROGRAMS = ("hog", "qsort")
_NAMES = {"pause": PAUSE, "load": LOAD, "collector": COLLECTOR}


def missing() -> str:
    """Why no image can be built here; empty if all is there."""
    lacking = images.missing() + ([] if shutil.which("gcc") else ["gcc"])
    return f"images need {', '.join(lacking)}" if lacking else ""


def test_images() -> list[Path]:
    """Archives of all three. Raises `tools.images.ImageError`."""
    programs = {f"programs/{name}": build(name) for name in PROGRAMS}
    return [
        _archive("pause", {"pause": _pause()}),
        _archive("load", programs),
        _archive("collector", {"collector": collector_binary()}),
    ]


def own_images(*targets: str) -> list[Path]:
    """Archives of Flameherd's own. Raises `tools.images.ImageError`."""
    return [images.archive_of(target) for target in targets or images.TARGETS]


def _pause() -> Path:
    source = SOURCE / "pause.c"
    key = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    binary = images.cache() / f"pause-{key}"
    if not binary.exists():
        images.cache().mkdir(parents=True, exist_ok=True)
        part = binary.with_suffix(".part")
        command = ["gcc", "-static", "-Os", "-s", str(source), "-o", str(part)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        part.rename(binary)
    return binary


def _archive(target: str, files: Mapping[str, Path]) -> Path:
    """`files`: where they are in the build context → what they are."""
    images.cache().mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256((SOURCE / "Dockerfile").read_bytes())
    for name, path in files.items():
        digest.update(name.encode() + path.read_bytes())
    made = images.cache() / f"test-{target}-{digest.hexdigest()[:16]}.tar"
    if made.exists():
        return made
    with (
        (images.cache() / "lock").open("w") as lock,
        tempfile.TemporaryDirectory(dir=images.cache()) as work,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        images.base_image()
        context, part = Path(work) / "context", Path(work) / "image.tar"
        for name, path in files.items():
            (context / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, context / name)
        name = _NAMES[target]
        build_it = ("bud", "--pull-never", "--target", target, "--tag", name)
        images.buildah(*build_it, "--file", SOURCE / "Dockerfile", context)
        images.buildah("push", "--quiet", name, f"docker-archive:{part}:{name}")
        part.replace(made)
    return made
