"""Builds the truth programs into `.cache/programs`, keyed by their sources, flags and compiler.

A built program costs one hash of its sources. What it is not: a build system; there are no
dependencies between programs, and nothing is ever removed from the cache but by `make clean`.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent
CACHE = SOURCES.parents[1] / ".cache" / "programs"

C_FLAGS = (
    "-O2",
    "-fomit-frame-pointer",
    "-g0",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-function",
)
BUILD_SECONDS = 300
"""Limit for one compiler run; Go's first run compiles its standard library."""


class MissingToolError(Exception):
    """A compiler is not on this machine: the program's tests are skipped with this message."""


@dataclass(frozen=True)
class Recipe:
    """How one program is made: `commands(out)` are argument lists, run in `SOURCES`."""

    tool: str
    sources: tuple[str, ...]
    commands: Callable[[Path], list[list[str]]]
    levels: int = 0
    """Write `levels.inc` with this many levels into `out` first."""
    environment: dict[str, str] = field(default_factory=dict)


def _c(name: str, *flags: str, levels: int = 0) -> Recipe:
    """One C source, one executable. `flags` come after the house flags."""

    def commands(out: Path) -> list[list[str]]:
        include = [f'-DLEVELS="{out}/levels.inc"'] if levels else []
        return [["gcc", *C_FLAGS, *include, f"{name}.c", "-o", f"{out}/program", *flags]]

    return Recipe("gcc", ("truth.h", f"{name}.c"), commands, levels)


def _cpp(out: Path) -> list[list[str]]:
    shared = ["g++", *C_FLAGS, "-shared", "-fPIC", "-fno-semantic-interposition"]
    link = [f"-L{out}", "-ltruthcpp", "-Wl,-rpath,$ORIGIN"]
    return [
        [*shared, "cpp_lib.cc", "-o", f"{out}/libtruthcpp.so"],
        ["g++", *C_FLAGS, "cpp_main.cc", "-o", f"{out}/program", *link],
    ]


def _plugins(out: Path) -> list[list[str]]:
    shared = ["gcc", *C_FLAGS, "-shared", "-fPIC", "plugin.c"]
    return [
        ["gcc", *C_FLAGS, "plugin_main.c", "-o", f"{out}/program"],
        *([*shared, f"-DPREFIX={x}", "-o", f"{out}/plugin_{x}.so"] for x in "ab"),
    ]


def _nocfi(out: Path) -> list[list[str]]:
    bare = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-omit-frame-pointer"]
    return [
        ["gcc", *C_FLAGS, *bare, "-c", "nocfi_middle.c", "-o", f"{out}/middle.o"],
        ["gcc", *C_FLAGS, "nocfi_main.c", f"{out}/middle.o", "-o", f"{out}/program"],
    ]


def _rust(out: Path) -> list[list[str]]:
    flags = ["--edition", "2021", "-C", "opt-level=3", "-C", "panic=unwind"]
    return [["rustc", *flags, "truth_rust.rs", "-o", f"{out}/program"]]


def _go(package: str, *flags: str) -> Recipe:
    sources = tuple(
        str(path.relative_to(SOURCES))
        for path in sorted((SOURCES / "go" / package).iterdir())
        if path.suffix in {".go", ".c", ".mod"}
    )

    def commands(out: Path) -> list[list[str]]:
        return [["go", "build", "-C", f"go/{package}", "-o", f"{out}/program", *flags, "."]]

    cgo = "1" if package == "callback" else "0"
    return Recipe("go", sources, commands, environment={"CGO_ENABLED": cgo})


RECIPES: dict[str, Recipe] = {
    "qsort": _c("qsort", levels=60),
    "cpp": Recipe("g++", ("truth.h", "cpp_main.cc", "cpp_lib.cc"), _cpp),
    "signals": _c("signals"),
    "static": _c("basic", "-static"),
    "pie": _c("basic", "-fPIE", "-pie"),
    "nopie": _c("basic", "-fno-pie", "-no-pie"),
    "plugins": Recipe("gcc", ("truth.h", "plugin_main.c", "plugin.c"), _plugins),
    "vfork": _c("vfork"),
    "prefork": _c("prefork"),
    "vdso": _c("vdso"),
    "syscalls": _c("syscalls"),
    "rust": Recipe("rustc", ("truth_rust.rs",), _rust),
    "go_stripped": _go("chain", "-ldflags=-s -w"),
    "go_pie": _go("chain", "-buildmode=pie"),
    "go_cgo": _go("callback"),
    "deep250": _c("deep", levels=250),
    "deep500": _c("deep", levels=500),
    "deep1000": _c("deep", levels=1000),
    "threads": _c("threads", "-pthread"),
    "nocfi": Recipe("gcc", ("truth.h", "nocfi_main.c", "nocfi_middle.c"), _nocfi),
    "hog": _c("hog"),
    "periodic": _c("periodic"),
    "random_sleeper": _c("random_sleeper"),
    "two_threads": _c("two_threads", "-pthread"),
    "execstorm": _c("execstorm"),
    "tiny": _c("tiny"),
    "forker": _c("forker"),
    "map_load": _c("map_load"),
}


def require(tool: str) -> None:
    """Raises MissingToolError if a command is not installed."""
    if shutil.which(tool) is None:
        raise MissingToolError(f"{tool} is not installed")


@cache
def _version(tool: str) -> str:
    """First line of `tool --version`.

    Raises:
        MissingToolError: it is not installed.
    """
    require(tool)
    argument = "version" if tool == "go" else "--version"
    answer = subprocess.run([tool, argument], capture_output=True, text=True, check=True)
    return answer.stdout.splitlines()[0]


def _levels(count: int) -> str:
    """Deepest level first, so that every function is defined before it is called."""
    lines = [f"BOTTOM({count})", *(f"LEVEL({n}, {n + 1})" for n in range(count - 1, 0, -1))]
    return "\n".join(lines) + "\n"


@cache
def build(name: str) -> Path:
    """Path of the built program `name`; its file name is `name`, libraries lie beside it.

    Raises:
        MissingToolError: its compiler is not on this machine.
        subprocess.CalledProcessError: it does not compile; the compiler's words are on stderr.
    """
    recipe = RECIPES[name]
    key = hashlib.sha256(repr((_version(recipe.tool), recipe.levels)).encode())
    key.update(repr((recipe.commands(Path("OUT")), sorted(recipe.environment.items()))).encode())
    for source in recipe.sources:
        key.update((SOURCES / source).read_bytes())
    folder = CACHE / f"{name}-{key.hexdigest()[:16]}"
    if not (folder / name).exists():
        _run(recipe, folder, name)
    return folder / name


def _run(recipe: Recipe, folder: Path, name: str) -> None:
    """Builds beside `folder` and renames, so that a second run at the same time does no harm."""
    out = folder.with_name(f"{folder.name}.{os.getpid()}")
    out.mkdir(parents=True)
    try:
        if recipe.levels:
            (out / "levels.inc").write_text(_levels(recipe.levels))
        for command in recipe.commands(out):
            subprocess.run(
                command,
                cwd=SOURCES,
                env=os.environ | {"GOTOOLCHAIN": "local"} | recipe.environment,
                timeout=BUILD_SECONDS,
                check=True,
            )
        (out / "program").rename(out / name)
        if not folder.exists():
            out.rename(folder)
    finally:
        shutil.rmtree(out, ignore_errors=True)
