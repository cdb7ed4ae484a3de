"""Builds and calls `bpf/lib` in user space (host.c), with the sanitizers' checks compiled in as traps."""

import ctypes
import hashlib
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from flameherd_agent.kernel.abi import Limit, Outcome, Registers
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    ROOT / "tests/unwinder/host.c",
    ROOT / "bpf/abi.h",
    ROOT / "bpf/lib/unwind.h",
    ROOT / "bpf/lib/unwind_types.h",
)


class _Input(ctypes.Structure):
    _fields_ = (
        ("mappings", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
        ("rules", ctypes.c_void_p),
        ("words", ctypes.c_void_p),
        ("stack", ctypes.c_char_p),
        ("stack_at", ctypes.c_uint64),
        ("mapping_count", ctypes.c_uint32),
        ("table_count", ctypes.c_uint32),
        ("rule_count", ctypes.c_uint32),
        ("pair_count", ctypes.c_uint32),
        ("stack_bytes", ctypes.c_uint32),
    )


@cache
def library() -> ctypes.CDLL:
    """The compiled harness, rebuilt when a source changes. Undefined behaviour traps."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()[:16]
    target = ROOT / ".cache" / f"unwinder-{digest}.so"
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        subprocess.run(
            [
                "gcc", "-g", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-Wno-unused-function",
                "-fsanitize=undefined", "-fsanitize-undefined-trap-on-error",
                "-fno-sanitize=alignment", "-o", str(target), str(SOURCES[0]),
            ],
            check=True,
        )  # fmt: skip
    return ctypes.CDLL(str(target))


def unwind(
    mappings: NDArray[Any],
    tables: NDArray[Any],
    rules: NDArray[Any],
    words: NDArray[Any],
    registers: dict[str, int],
    stack_at: int,
    stack: bytes,
) -> tuple[list[int], Outcome]:
    """Frame words, leaf first, and the outcome, by the C unwinder. `words`: a slab, of dtype Words."""
    record = np.zeros(1, Registers)
    for name, value in registers.items():
        record[name] = value
    arrays = [np.ascontiguousarray(array) for array in (mappings, tables, rules, words)]
    given = _Input(
        *(array.ctypes.data for array in arrays),
        stack,
        stack_at,
        *(len(array) for array in arrays),
        len(stack),
    )
    frames = np.zeros(int(Limit.MAX_USER_FRAMES), np.uint64)
    result = library().unwind(
        ctypes.byref(given),
        ctypes.c_void_p(record.ctypes.data),
        ctypes.c_void_p(frames.ctypes.data),
    )
    return [int(word) for word in frames[: result & 0xFFFF]], Outcome(result >> 16)
