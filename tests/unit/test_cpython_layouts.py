"""The layouts' numbers against `offsetof` on the headers of the interpreters that are here."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from flameherd_agent.interpreters.base import NotSupported
from flameherd_agent.interpreters.cpython.layouts import (
    debug_fields,
    layout_of,
    thread_slots,
    told_by_process,
    versions,
)

from tests.pythons import Python, pythons

PROBE = Path(__file__).parents[1] / "programs" / "cpython" / "offsets.c"


@pytest.mark.parametrize("python", pythons(), ids=lambda python: python.name)
def test_offsets_are_those_of_the_headers(python: Python, tmp_path: Path) -> None:
    if not (python.include / "Python.h").exists():
        pytest.skip(f"{python.name} has no headers: {python.include}")
    program = tmp_path / "offsets"
    internal = python.include / "internal"
    subprocess.run(
        ["gcc", "-w", f"-I{python.include}", f"-I{internal}", str(PROBE), "-o", str(program)],
        check=True,
    )
    answer = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    wanted = {name: int(value) for name, value in (line.split() for line in answer.splitlines())}
    table = layout_of(python.version[:2]).table
    assert len(wanted) > 10
    assert {name: table.get(name) for name in wanted} == wanted


def test_every_version_has_a_row() -> None:
    """But 3.14, whose offsets come from the process."""
    assert versions()[0] == (3, 6)
    assert versions()[-1] == (3, 14)
    for version in versions()[:-1]:
        row = layout_of(version).row()
        assert row["frame_bytes"][0] <= 128
        assert row["code_bytes"][0] <= 128


def test_unknown_versions_are_refused() -> None:
    with pytest.raises(NotSupported, match=r"3\.99 has no layout"):
        layout_of((3, 99))


@pytest.mark.parametrize("version", [(3, 13), (3, 14)])
def test_offsets_of_a_process(version: tuple[int, int]) -> None:
    fields = debug_fields(version)
    numbers = np.arange(len(fields), dtype="<u8") * 8
    numbers[:3] = int.from_bytes(b"xdebugpy", "little"), version[0] << 24 | version[1] << 16, 0
    numbers[fields.index("code.name")] = numbers[fields.index("code.filename")] + 8
    layout = told_by_process(layout_of(version), numbers.tobytes())
    assert layout["frame.at"] == 8 * fields.index("frame.at")
    assert layout.get("text.compact")
    numbers[1] = 3 << 24 | 99 << 16
    with pytest.raises(NotSupported, match="of version"):
        told_by_process(layout_of(version), numbers.tobytes())
    numbers[0] = 0
    with pytest.raises(NotSupported, match="cookie"):
        told_by_process(layout_of(version), numbers.tobytes())


def test_large_keys_are_in_later_blocks() -> None:
    near, far = thread_slots(3)[0], thread_slots(35)[0]
    assert near.second is None
    assert far.second == 3 * 16 + 8
