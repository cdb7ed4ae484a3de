"""The names that an agent remembers: interned, bounded, and asked for again where there was none yet."""

from typing import Any, cast

import pytest
from flameherd_agent.kernel.abi import FrameKind
from flameherd_agent.pipeline import naming
from flameherd_agent.pipeline.naming import Namer
from flameherd_agent.types import Address, Line, Pid

BASE = 0xFFFFFFFF81000000


class KernelNames:
    """Every address has a name; counts how often one was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def lookup(self, address: Address) -> Line | None:
        self.asked.append(address)
        return Line(f"function_{address:x}")

    def shed(self) -> None:
        pass


class RawNames:
    """A perf map that the process still writes."""

    def __init__(self) -> None:
        self.known: dict[int, str] = {}

    def lookup(self, _pid: Pid, address: Address) -> Line | None:
        name = self.known.get(address)
        return None if name is None else Line(name)


def namer(kernel: KernelNames, raw: RawNames) -> Namer:
    """One that meets neither executables nor interpreters."""
    return Namer(cast(Any, None), kernel, raw, cast(Any, None))


def test_a_location_is_named_once_and_is_one_object() -> None:
    kernel = KernelNames()
    names = namer(kernel, RawNames())
    assert names.kernel(BASE) is names.kernel(BASE)
    assert kernel.asked == [BASE]


def test_what_is_in_use_outlives_what_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "CACHED_LOCATIONS", 4)
    kernel = KernelNames()
    names = namer(kernel, RawNames())
    hot = names.kernel(BASE)
    for number in range(1, 100):
        names.kernel(BASE + number)
        assert names.kernel(BASE) is hot
    assert kernel.asked.count(BASE) == 1
    names.kernel(BASE + 1)
    assert kernel.asked.count(BASE + 1) == 2  # forgotten, and asked for again


def test_jit_code_is_named_when_its_map_names_it() -> None:
    raw = RawNames()
    names = namer(KernelNames(), raw)
    word = (FrameKind.RAW << 60) | 0x7F0000001000
    assert names.user(word, Pid(1)).lines == ()
    raw.known[0x7F0000001000] = "Compiled.method"
    named = names.user(word, Pid(1))
    assert named.lines == (Line("Compiled.method"),)
    assert names.user(word, Pid(1)) is named
