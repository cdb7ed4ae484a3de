"""Builds the Go program `go-symbols/` in several link modes, cached by content and toolchain."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).parent / "go-symbols"
CACHE = Path(__file__).parents[2] / ".cache" / "programs"
GO = shutil.which("go") or "/usr/local/go/bin/go"


class Build(NamedTuple):
    """How a variant is linked."""

    cgo: bool
    arguments: tuple[str, ...]


BUILDS = {
    "cgo": Build(True, ()),
    "pie": Build(False, ("-buildmode=pie",)),
    "cgo-pie": Build(True, ("-buildmode=pie",)),
}


def go_available() -> bool:
    return Path(GO).exists()


def build(variant: str, *, stripped: bool = False) -> Path:
    """The program in one of `BUILDS`; stripped of symbols and DWARF by the linker if asked.

    A stripped build has the same code at the same addresses as its unstripped twin.
    """
    mode = BUILDS[variant]
    version = subprocess.run([GO, "version"], capture_output=True, check=True, timeout=60).stdout
    digest = hashlib.sha256(version)
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    digest.update(repr(mode).encode())
    name = f"go-symbols-{variant}{'-stripped' if stripped else ''}-{digest.hexdigest()[:16]}"
    path = CACHE / name
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        temporary = CACHE / f".{name}.{os.getpid()}"
        link = ("-ldflags=-s -w",) if stripped else ()
        command = [GO, "build", "-trimpath", "-p", "1", *mode.arguments, *link]
        environment = os.environ | {"CGO_ENABLED": str(int(mode.cgo)), "GOFLAGS": ""}
        subprocess.run(
            [*command, "-o", str(temporary), "."],
            cwd=SOURCES,
            env=environment,
            check=True,
            timeout=500,
        )
        temporary.replace(path)
    return path


def addr2line(program: Path, addresses: list[int]) -> list[tuple[str, str, int]]:
    """(function, file, line) by `go tool addr2line`: physical function, innermost line.

    Padding between functions has no line: "" and 0 (the tool and the runtime print "", "?", -1, 0).
    """
    text = "".join(f"{address:#x}\n" for address in addresses)
    answer = subprocess.run(
        [GO, "tool", "addr2line", str(program)],
        input=text, capture_output=True, text=True, check=True, timeout=300,
    ).stdout.splitlines()  # fmt: skip
    result = []
    for function, place in zip(answer[::2], answer[1::2], strict=True):
        file, _, line = place.rpartition(":")
        result.append((function, *_place(file, int(line))))
    return result


def _place(file: str, line: int) -> tuple[str, int]:
    return ("", 0) if file in ("", "?") or line < 0 else (file, line)


def symbol_addresses(program: Path) -> dict[str, int]:
    """Name → address by `go tool nm`."""
    lines = subprocess.run(
        [GO, "tool", "nm", str(program)], capture_output=True, text=True, check=True, timeout=300
    ).stdout.splitlines()
    fields = (line.split(maxsplit=2) for line in lines)
    return {f[2]: int(f[0], 16) for f in fields if len(f) == 3 and f[1] != "U"}


def own_frames(
    program: Path, anchor: int, addresses: list[int]
) -> list[list[tuple[str, str, int]]]:
    """What the running program's own runtime says: (function, file, line), innermost first."""
    text = "".join(f"{address - anchor:x}\n" for address in addresses)
    answer = subprocess.run(
        [str(program)], input=text, capture_output=True, text=True, check=True, timeout=300
    ).stdout
    chains: list[list[tuple[str, str, int]]] = []
    chain: list[tuple[str, str, int]] = []
    for line in answer.splitlines():
        if not line:
            chains.append(chain)
            chain = []
            continue
        function, file, number = line.split("\t")
        chain.append((function, *_place(file, int(number))))
    return chains
