"""The kernel's names as the drain gets them, through a real worker."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flameherd_agent.types import Address
from flameherd_agent.worker import kernel_names
from flameherd_agent.worker.client import TABLES, WorkerClient
from flameherd_agent.worker.kernel_names import KernelNames

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="kallsyms shows zeros without root")
NOWHERE = Address(0xFFFFFFFFFFFFFFF0)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[WorkerClient]:
    worker = WorkerClient(tmp_path)
    yield worker
    worker.close()


def settle(client: WorkerClient) -> None:
    until = time.monotonic() + 60
    while client.pending:
        assert time.monotonic() < until
        client.poll()
        time.sleep(0.01)


def some_function() -> tuple[Address, str]:
    """The address and name of a function of the kernel's core."""
    with open("/proc/kallsyms") as lines:  # noqa: PTH123
        for line in lines:
            address, kind, name, *module = line.split()
            if kind == "T" and name == "vfs_read" and not module:
                return Address(int(address, 16)), name
    pytest.skip("kallsyms has no vfs_read")


def test_an_address_without_a_name_asks_for_a_new_index(
    client: WorkerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, name = some_function()
    names = KernelNames(client, tmp_path)
    assert names.lookup(address) is None
    settle(client)
    line = names.lookup(address)
    assert line is not None
    assert line.function == name
    (index,) = (tmp_path / TABLES).glob("*.kallsyms")
    before = index.stat().st_ino
    monkeypatch.setattr(kernel_names, "_RETRY_S", 0.0)
    names.refresh()
    assert not client.pending  # every name was found
    assert names.lookup(NOWHERE) is None
    names.refresh()
    settle(client)
    assert index.stat().st_ino != before
    assert names.lookup(address) == line


def test_a_new_index_is_not_asked_for_at_once(client: WorkerClient, tmp_path: Path) -> None:
    names = KernelNames(client, tmp_path)
    settle(client)
    assert names.lookup(NOWHERE) is None
    names.refresh()
    assert not client.pending
