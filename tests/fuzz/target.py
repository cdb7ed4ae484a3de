"""What a fuzz target is, and what all targets share.

A target runs one reader on one input. Any input must give a result that keeps the reader's promises
(checked by `must`), or the error that the reader declares; anything else is a finding. Several
parts in one input are divided by `SEPARATOR`, which libFuzzer gets as a word of its dictionary.
"""

import atexit
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SEPARATOR = b"|//|"


@dataclass(frozen=True)
class Target:
    """One reader under test."""

    name: str
    about: str
    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    """Good inputs to start from, made when asked for."""
    max_bytes: int
    words: tuple[bytes, ...] = ()
    """For libFuzzer's dictionary."""


class BrokenPromise(Exception):
    """A reader gave a result that it must not give."""


def must(holds: bool, promise: str) -> None:
    """Raises `BrokenPromise` unless the promise is kept."""
    if not holds:
        raise BrokenPromise(promise)


def parts_of(data: bytes, count: int) -> list[bytes]:
    """The input's parts, of which there are `count`: missing ones are empty."""
    parts = data.split(SEPARATOR, count - 1)
    return parts + [b""] * (count - len(parts))


def joined(*parts: bytes) -> bytes:
    """The input with these parts."""
    return SEPARATOR.join(parts)


@cache
def scratch() -> Path:
    """A directory of this process, in memory where there is /dev/shm; removed at its end."""
    shared = Path("/dev/shm")
    directory = tempfile.TemporaryDirectory(
        prefix="flameherd-fuzz-", dir=shared if shared.is_dir() else None
    )
    atexit.register(directory.cleanup)
    return Path(directory.name)
