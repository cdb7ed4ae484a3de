"""What the virtual machines are made of, as far as it needs no virtual machine."""

import re
from pathlib import Path

import pytest

from tests.kernels import images


def module(directory: Path, name: str, depends: str) -> Path:
    path = directory / f"{name}.ko"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF\0license=GPL\0depends=" + depends.encode() + b"\0retpoline=Y\0")
    return path


def test_modules_come_after_what_they_depend_on(tmp_path: Path) -> None:
    ring = module(tmp_path, "drivers/virtio/virtio_ring", "")
    core = module(tmp_path, "drivers/virtio/virtio", "")
    pci = module(tmp_path, "drivers/virtio/virtio_pci", "virtio,virtio_ring,virtio-modern")
    modern = module(tmp_path, "drivers/virtio/virtio_modern", "virtio")
    module(tmp_path, "sound/unwanted", "")
    assert images.module_order(tmp_path, ["virtio_pci", "ext4"]) == [core, ring, modern, pci]


def test_the_closure_of_a_distribution_has_what_it_imports() -> None:
    closure = images.dependency_closure("flameherd-agent")
    assert {"numpy", "grpcio", "opentelemetry-proto", "protobuf", "flameherd-policy"} <= set(
        closure
    )
    assert "flameherd-agent" not in closure
    assert "pytest" not in closure


@pytest.mark.parametrize(
    ("kernel", "package", "build"),
    [
        ("5.10", "linux-image-5.10.0-46-cloud-amd64", "46"),
        ("6.1", "linux-image-6.1.0-9-cloud-amd64", "9"),
        ("6.1", "linux-image-6.1.0-9-cloud-amd64-dbg", None),
        ("6.1", "linux-image-6.1.0-0.deb11.48-cloud-amd64", None),
        ("6.1", "linux-image-6.10.0-1-cloud-amd64", None),
    ],
)
def test_which_packages_are_a_kernel(kernel: str, package: str, build: str | None) -> None:
    match = re.fullmatch(images.KERNELS[kernel].package, package)
    assert (match.group(1) if match else None) == build
