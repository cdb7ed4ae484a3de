"""`flameherd unwind-table`: prints how an executable is unwound, address by address."""

import argparse
import inspect
import sys
from pathlib import Path
from typing import TextIO

import numpy as np

from flameherd_agent.elf.open import open_path
from flameherd_agent.elf.reader import EM_AARCH64, ElfFile
from flameherd_agent.errors import UsageError
from flameherd_agent.kernel.abi import CfaKind, FpKind
from flameherd_agent.unwind.table import UnwindTable
from flameherd_agent.worker.tables import full_table

Text = tuple[str, str, str]
"""CFA, frame pointer, return address of a rule."""

_X86_NAMES = [
    "rax",
    "rdx",
    "rcx",
    "rbx",
    "rsi",
    "rdi",
    "rbp",
    "rsp",
    "r8",
    "r9",
    "r10",
    "r11",
    "r12",
    "r13",
    "r14",
    "r15",
]


def register(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the command's arguments."""
    parser = subparsers.add_parser(
        "unwind-table",
        help="print the unwind table of an executable",
        description=inspect.cleandoc(run.__doc__ or ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, help="a program or shared library")
    parser.add_argument(
        "--pc", type=_address, help="print the row of this address only (as in `nm`; 0x… or hex)"
    )
    parser.set_defaults(run=run)


def _address(text: str) -> int:
    return int(text, 16)


def run(args: argparse.Namespace) -> int:
    """Print the unwind table of an executable: a line for each stretch of equal rules.

    Columns: the addresses [from, to) as in the file, how the caller's stack pointer (CFA), its
    frame pointer (fp) and the return address (ra) are found. "c-16" means saved at CFA - 16, "u"
    unchanged, a register's name that it is there. CFA "none" means no information there, "end" the outermost frame, "signal" a signal
    frame.
    """
    opened = open_path(args.file)
    try:
        elf = ElfFile.open(opened.fd)
    finally:
        opened.close()
    table, problem = full_table(elf)
    if problem:
        sys.stderr.write(f"{args.file}: {problem}\n")
    if not len(table):
        raise UsageError(f"{args.file} has no unwind information")
    texts = [describe(rule, elf.machine) for rule in table.rule_table]
    if args.pc is None:
        _print_all(table, texts, sys.stdout)
        return 0
    row = table.row(args.pc)
    if not 0 <= row < len(table) - 1:
        raise UsageError(f"{args.pc:#x} is outside the code that {args.file} describes")
    _print_row(table, texts, row, sys.stdout)
    return 0


def describe(rule: np.void, machine: int) -> Text:
    """A RULE_DTYPE scalar in `readelf`'s words."""
    cfa, fp, ra, offset, fp_offset, extra = rule.tolist()
    sp_name, fp_name = ("sp", "x29") if machine == EM_AARCH64 else ("rsp", "rbp")
    kind = CfaKind(cfa)
    if kind in (CfaKind.NONE, CfaKind.END, CfaKind.SIGNAL):
        return kind.name.lower(), "", ""
    by_sp = kind in (CfaKind.SP, CfaKind.SP_DEREF, CfaKind.SP_RA_REGISTER)
    base = sp_name if by_sp else fp_name
    text = f"{base}{offset:+d}"
    if kind in (CfaKind.SP_DEREF, CfaKind.FP_DEREF):
        text = f"*({text})" + (f"{extra:+d}" if extra else "")
    elif kind == CfaKind.PLT:
        text = f"{sp_name}+8+((pc&15)>={offset})*{extra}"
    elif kind == CfaKind.REGISTER:
        name = f"x{extra}" if machine == EM_AARCH64 else _X86_NAMES[extra]
        text = f"{name}{offset:+d}"
    saved = {FpKind.SAME: "u", FpKind.CFA: "c", FpKind.FP: f"*{fp_name}", FpKind.SP: f"*{sp_name}"}
    fp_text = saved[FpKind(fp)] + (f"{fp_offset:+d}" if fp != FpKind.SAME else "")
    in_register = kind == CfaKind.SP_RA_REGISTER
    return text, fp_text, _X86_NAMES[extra] if in_register else f"c{ra:+d}"


def _print_all(table: UnwindTable, texts: list[Text], out: TextIO) -> None:
    out.write(f"{'from':16} {'to':16} {'CFA':26} {'fp':10} ra\n")
    for row in range(len(table) - 1):
        _print_row(table, texts, row, out)
    known = int(np.count_nonzero(table.rules))
    out.write(f"{len(table)} rows, {known} with a rule, {len(table.rule_table) - 1} rules\n")


def _print_row(table: UnwindTable, texts: list[Text], row: int, out: TextIO) -> None:
    begin = table.base + int(table.pcs[row])
    end = table.base + int(table.pcs[row + 1]) if row + 1 < len(table) else begin
    cfa, fp, ra = texts[int(table.rules[row])]
    out.write(f"{begin:016x} {end:016x} {cfa:26} {fp:10} {ra}".rstrip() + "\n")
