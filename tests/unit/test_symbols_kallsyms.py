"""Kernel names: this kernel's own file line by line, then texts made for the purpose."""

import os
from pathlib import Path

import pytest
from flameherd_agent.errors import ElfError, EnvironmentProblem
from flameherd_agent.symbols.kallsyms import (
    KALLSYMS,
    MAX_FUNCTION_BYTES,
    KernelSymbols,
    build_kallsyms_index,
    index_name,
    parse,
)
from flameherd_agent.types import Address
from hypothesis import given
from hypothesis import strategies as st

TEXT = b"""\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _stext
ffffffff81000000 T _text
ffffffff81000040 t helper
ffffffff81000100 T __alias
ffffffff81000100 T read_it
ffffffff81000100 t local_alias
ffffffff81000200 W weak_one
ffffffff81000300 D data_here
not a line
ffffffff81000400 T _etext
ffffffff83000000 T freed_init_code
ffffffffc0001000 t mod_function\t[nf_tables]
ffffffffc0001100 b mod_data\t[nf_tables]
ffffffffc0901000 t bpf_prog_6deef7357e7b4530_count\t[bpf]
"""


def _build(text: bytes, tmp_path: Path) -> KernelSymbols:
    (tmp_path / "kallsyms").write_bytes(text)
    build_kallsyms_index(tmp_path / "index", tmp_path / "kallsyms")
    return KernelSymbols.open(tmp_path / "index")


def _name(symbols: KernelSymbols, address: int) -> str | None:
    line = symbols.lookup(Address(address))
    return None if line is None else line.function


def test_names_and_ranges(tmp_path: Path) -> None:
    symbols = _build(TEXT, tmp_path)
    assert _name(symbols, 0xFFFFFFFF81000050) == "helper"
    assert _name(symbols, 0xFFFFFFFF81000100) == "read_it"
    assert _name(symbols, 0xFFFFFFFF810001FF) == "read_it"
    assert _name(symbols, 0xFFFFFFFF810003FF) == "weak_one"
    assert _name(symbols, 0xFFFFFFFF81000400) is None  # _etext
    assert _name(symbols, 0xFFFFFFFF83000000) is None
    assert _name(symbols, 0xFFFFFFFFC0001010) == "mod_function [nf_tables]"
    bpf = 0xFFFFFFFFC0901000
    assert _name(symbols, bpf + 1) == "bpf_prog_6deef7357e7b4530_count [bpf]"
    assert _name(symbols, bpf + MAX_FUNCTION_BYTES) is None
    for address in (0, 1, 0x7FFF00000000, (1 << 64) - 1, 1 << 64):
        assert _name(symbols, address) is None


def test_hidden_addresses_are_told_apart_from_garbage(tmp_path: Path) -> None:
    hidden = b"".join(b"0" * 16 + line[16:] + b"\n" for line in TEXT.splitlines())
    with pytest.raises(EnvironmentProblem, match=r"CAP_SYSLOG.*kptr_restrict"):
        _build(hidden, tmp_path)
    assert not (tmp_path / "index").exists()


def test_an_unreadable_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="No such file"):
        build_kallsyms_index(tmp_path / "index", tmp_path / "absent")


def test_an_empty_file_has_no_names(tmp_path: Path) -> None:
    assert len(_build(b"", tmp_path)) == 0


def test_every_function_of_this_kernel(tmp_path: Path) -> None:
    try:
        build_kallsyms_index(tmp_path / "index")
    except EnvironmentProblem as problem:
        pytest.skip(str(problem))
    symbols = KernelSymbols.open(tmp_path / "index")
    lines = [line.split(maxsplit=2) for line in KALLSYMS.read_text().splitlines()]
    bounds = {name: int(address, 16) for address, _, name in lines if name in ("_stext", "_etext")}
    names: dict[int, set[str]] = {}
    for address, kind, name in lines:
        if kind in "tTwW" and bounds["_stext"] <= int(address, 16) < bounds["_etext"]:
            names.setdefault(int(address, 16), set()).add(name.replace("\t", " "))
    assert len(names) > 10_000
    for start, expected in names.items():
        assert _name(symbols, start) in expected


def test_the_index_name_changes_with_boot_and_modules(tmp_path: Path) -> None:
    boot, modules = tmp_path / "boot_id", tmp_path / "modules"
    boot.write_text("one")
    names = [index_name(boot, modules)]
    for text in ("a 10 2 - Live 0xf0\n", "a 10 2 - Live 0xf8\n", "b 10 0 - Live 0xf0\n"):
        modules.write_text(text)
        names.append(index_name(boot, modules))
    boot.write_text("two")
    names.append(index_name(boot, modules))
    assert len(set(names)) == len(names)
    modules.write_text("b 10 7 a, Live 0xf0\n")  # somebody uses it
    assert index_name(boot, modules) == names[-1]


@given(
    st.one_of(
        st.binary(max_size=400),
        st.lists(st.sampled_from([*TEXT.splitlines(True), b"\n", b"ffffffff81000000 T"])).map(
            b"".join
        ),
    )
)
def test_hostile_text_never_crashes(data: bytes) -> None:
    try:
        columns = parse(data)
    except EnvironmentProblem:
        return
    assert len(columns.starts) == len(columns.sizes) == len(columns.names)


@given(st.data())
def test_a_damaged_index_never_crashes(data: st.DataObject) -> None:
    from flameherd_agent.symbols import flat

    path = Path(f"/tmp/flameherd-test-{os.getpid()}")
    try:
        flat.write(path, parse(TEXT).sections())
        damaged = bytearray(path.read_bytes())
    finally:
        path.unlink(missing_ok=True)
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(damaged)))
    try:
        index = flat.FlatIndex(bytes(damaged[:cut]))
    except ElfError:
        return
    for address in (0, 0xFFFFFFFF81000050, (1 << 64) - 1):
        index.lookup(address)
    index.lookup_batch([0, 0xFFFFFFFF81000050, (1 << 64) - 1])


@pytest.mark.parametrize("digits", [b"-ffffff000000000", b"ffffffff_8100000", b"+fffffff81000000"])
def test_a_mark_of_the_text_whose_address_is_no_number_is_no_mark(digits: bytes) -> None:
    lines = digits + b" T _stext\nffffffff81000100 t f\nffffffff81000200 T _etext\n"
    assert 0xFFFFFFFF81000100 in parse(lines).starts.tolist()
