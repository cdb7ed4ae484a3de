"""Line tables against the interpreters themselves: what `dis` says of every instruction of their own modules."""

import json
import subprocess

import pytest
from flameherd_agent.interpreters.cpython.layouts import layout_of
from flameherd_agent.interpreters.cpython.lines import LineTable
from hypothesis import given
from hypothesis import strategies as st

from tests.pythons import Python, missing, pythons

KINDS = ("lnotab", "ranges", "locations")
_DUMP = """
import dis, json, sys, importlib, types
def codes(code):
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            for one in codes(const):
                yield one
found = []
for name in ("argparse", "dataclasses" if sys.version_info >= (3, 7) else "typing", "subprocess", "asyncio.events"):
    path = importlib.import_module(name).__file__
    with open(path, encoding="utf-8") as source:
        top = compile(source.read(), path, "exec")
    for code in codes(top):
        table = code.co_linetable if sys.version_info >= (3, 10) else code.co_lnotab
        if sys.version_info >= (3, 10):
            lines = [[a, b, line or 0] for a, b, line in code.co_lines()]
        else:
            starts = list(dis.findlinestarts(code)) + [(len(code.co_code), 0)]
            lines = [[a[0], b[0], a[1]] for a, b in zip(starts, starts[1:])]
        found.append([code.co_name, code.co_firstlineno, list(bytearray(table)), lines])
print(json.dumps(found))
"""


@pytest.mark.parametrize("python", pythons(), ids=lambda python: python.name)
def test_every_instruction_has_its_line(python: Python) -> None:
    layout = layout_of(python.version[:2])
    dumped = subprocess.run(
        [python.executable, "-I", "-c", _DUMP], capture_output=True, text=True, check=True
    ).stdout
    checked = 0
    for name, first, table, lines in json.loads(dumped):
        mine = LineTable(layout.lines, bytes(table), first)
        unit = 2 if layout.lines == "locations" else 1  # co_lines speaks of bytes
        for start, end, line in lines:
            for at in range(start, end, 2):
                assert mine.line(at // unit) == line, (name, at, first, table)
                checked += 1
    assert checked > 5_000


def test_versions_that_are_not_here() -> None:
    if missing():
        pytest.skip(f"not on this machine: CPython {', '.join(missing())}")


@given(st.sampled_from(KINDS), st.binary(max_size=300), st.integers(-3, 1 << 33))
def test_damaged_tables_end(kind: str, table: bytes, position: int) -> None:
    assert 0 <= LineTable(kind, table, 7).line(position) < 1 << 31


@pytest.mark.parametrize("kind", KINDS)
def test_before_the_first_instruction_and_without_a_table(kind: str) -> None:
    assert LineTable(kind, b"", 12).line(-1) == 12
    assert LineTable(kind, b"", 12).line(0) == 12
