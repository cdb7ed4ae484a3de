"""Giving memory back: what is dropped comes back from the file, what was written stays."""

import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest
from flameherd_agent.observe.memory import give_back

PAGES = 64
SIZE = PAGES * mmap.PAGESIZE
MAP_PRIVATE = 2

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


@pytest.fixture
def address(tmp_path: Path) -> Iterator[int]:
    """A private, writable mapping of a file whose pages each begin with their number."""
    path = tmp_path / "library.so"
    path.write_bytes(b"".join(bytes([n]) * mmap.PAGESIZE for n in range(PAGES)))
    with path.open("rb") as file:
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        place = libc.mmap(None, SIZE, protection, MAP_PRIVATE, file.fileno(), 0)
    yield place
    libc.munmap(place, SIZE)


def resident(address: int) -> int:
    """Resident bytes of the mapping that starts there."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.startswith(f"{address:x}-"):
            rss = next(line for line in lines if line.startswith("Rss:"))
            return int(rss.split()[1]) * 1024
    raise AssertionError(f"nothing is mapped at {address:x}")


def read_only(address: int) -> None:
    assert libc.mprotect(address, SIZE, mmap.PROT_READ) == 0


def touch(address: int) -> list[int]:
    """The first byte of each page."""
    return [ctypes.c_ubyte.from_address(address + n * mmap.PAGESIZE).value for n in range(PAGES)]


def test_clean_pages_go_and_come_back(address: int) -> None:
    read_only(address)
    assert touch(address) == list(range(PAGES))
    assert resident(address) == SIZE
    assert give_back() >= SIZE
    assert resident(address) == 0
    assert touch(address) == list(range(PAGES))


def test_what_was_written_stays(address: int) -> None:
    """Like relocations, which the linker writes before it takes the right to write away."""
    ctypes.memset(address, 0xEE, 1)
    read_only(address)
    touch(address)
    give_back()
    assert resident(address) == SIZE
    assert touch(address) == [0xEE, *range(1, PAGES)]


def test_writable_mappings_stay(address: int) -> None:
    touch(address)
    give_back()
    assert resident(address) == SIZE
