"""Every test below boots virtual machines, but for those of what needs none (`test_images.py`)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernels.images import KERNELS, missing_tools
from tests.kernels.machine import Machine
from tests.programs.build import build

PROGRAMS = ("qsort", "syscalls", "hog")


def boot(kernel: str, cgroup: str) -> Machine:
    """A machine with the truth programs in `/flameherd/programs`, not yet started."""
    if missing := missing_tools():
        pytest.skip(f"virtual machines need {', '.join(missing)}")
    files: dict[str, Path] = {f"programs/{name}": build(name) for name in PROGRAMS}
    return Machine(kernel, files=files, cgroup=cgroup)


@pytest.fixture(scope="module", params=KERNELS)
def vm(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Each kernel of the matrix in turn, on the unified cgroup hierarchy."""
    with boot(request.param, "v2") as machine:
        yield machine


@pytest.fixture(scope="module", params=KERNELS)
def vm_cgroup_v1(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Each kernel with one hierarchy for each controller."""
    with boot(request.param, "v1") as machine:
        yield machine
