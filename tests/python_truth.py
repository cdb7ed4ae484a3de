"""Judges the stacks of CPython's truth programs by what their `Truth:` lines say (see `programs/cpython/burning.py`).

A stack is right if its Python frames are the beginning of a chain, each but the last stopped at the chain's line, the
last somewhere in its function, and if native frames lie between exactly where the version puts them: from 3.11 on a
call from Python to Python has none, before it always has the evaluation function.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from flameherd_agent.model import Location, Sample
from flameherd_agent.types import FrameType

PROGRAMS = Path(__file__).parent / "programs" / "cpython"
_STEP = re.compile(r"([~?]?)([\w.<>]*)(?:@(\w+))?(?:\*(\d+))?")


@dataclass(frozen=True)
class Call:
    """One frame of a chain."""

    name: str
    """Qualified; "" = only native frames follow; "..." = frames of the standard library."""
    line: int
    """Where it is stopped; 0 = anywhere in the function."""
    through: str
    """"~": called by native code; "?": perhaps; "": by Python."""


@dataclass(frozen=True)
class PythonFrame:
    """A Python frame of a sampled stack."""

    name: str
    file: str
    line: int
    native_before: int
    """Native frames between it and the Python frame that is nearer to the root, or the root."""


@cache
def chains(program: str) -> tuple[tuple[Call, ...], ...]:
    """The right answers of a program."""
    text = (PROGRAMS / f"{program}.py").read_text()
    tags = {
        tag: number
        for number, line in enumerate(text.splitlines(), 1)
        if "# @" in line
        for tag in line.rpartition("# @")[2].split(",")
    }
    return tuple(
        tuple(_calls(line, tags)) for line in re.findall(r"^Truth: (.*)$", text, re.MULTILINE)
    )


def _calls(text: str, tags: dict[str, int]) -> Iterator[Call]:
    for part in text.split(" > "):
        if part == "...":
            yield Call("...", 0, "")
            continue
        found = _STEP.fullmatch(part)
        assert found, f"{part!r} is no step"
        native, name, tag, times = found.groups()
        for _ in range(int(times or 1)):
            yield Call(name, tags[tag] if tag else 0, native)


@cache
def functions(file: str) -> dict[str, tuple[int, int]]:
    """{name: (first line, last line)} of a program's functions, `<module>` and `<genexpr>` included."""
    path = PROGRAMS / file
    if file == "made.py":
        namespace: dict[str, object] = {}
        source = (PROGRAMS / "late.py").read_text()
        assignment = next(node for node in ast.parse(source).body if isinstance(node, ast.Assign))
        exec(compile(ast.Module([assignment], []), "late.py", "exec"), namespace)
        text = str(namespace["SOURCE"])
    else:
        text = path.read_text()
    tree = ast.parse(text)
    found = {"<module>": (0, len(text.splitlines()))}

    def visit(node: ast.AST, prefix: str, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                found[prefix + child.name] = (first, child.end_lineno or child.lineno)
                if isinstance(child, ast.ClassDef):
                    inner = f"{prefix}{child.name}."
            elif isinstance(child, ast.GeneratorExp):
                found[f"{name}.<locals>.<genexpr>"] = (
                    child.lineno,
                    child.end_lineno or child.lineno,
                )
            visit(child, inner, getattr(child, "name", name))

    visit(tree, "", "")
    return found


def python_frames(stack: Sequence[Location]) -> tuple[list[PythonFrame], int]:
    """(Python frames, native user frames at the leaf): root first."""
    found: list[PythonFrame] = []
    native = 0
    for location in reversed(stack):
        if location.kind is FrameType.KERNEL:
            continue
        if location.kind is not FrameType.CPYTHON:
            native += 1
            continue
        line = location.lines[0] if location.lines else None
        name, file, number = (line.function, line.file, line.line) if line else ("?", "", 0)
        found.append(PythonFrame(name, file.rpartition("/")[2], number, native))
        native = 0
    return found, native


def wrong(program: str, version: tuple[int, ...], sample: Sample) -> tuple[str, bool]:
    """(why a sample is wrong or "", whether it reached the end of a chain)."""
    if sample.truncated:
        return "truncated", False
    frames, leaf = python_frames(sample.stack)
    if not frames:
        return "no Python frame", False
    best = ("no chain", -1, False)
    for chain in chains(program):
        why, reached, full = _match(chain, frames, leaf, version)
        if (not why, reached, full) > (not best[0], best[1], best[2]):
            best = (why, reached, full)
    return best[0], best[2]


def _match(
    chain: Sequence[Call], frames: Sequence[PythonFrame], leaf: int, version: tuple[int, ...]
) -> tuple[str, int, bool]:
    """(why not or "", frames that fit, whether the chain's end was reached)."""
    step = 0
    own = {"burning.py", "made.py", *(path.name for path in PROGRAMS.glob("*.py"))}
    inlined = version >= (3, 11)
    through_library = False
    for at, frame in enumerate(frames):
        last = at == len(frames) - 1
        if step < len(chain) and chain[step].name == "...":
            if frame.file not in own:
                through_library = True
                continue
            step += 1
        if step >= len(chain) or not chain[step].name:
            return f"{frame} after the chain's end", at, False
        call = chain[step]
        name = call.name if inlined else call.name.rpartition(".")[2]
        if frame.name != name:
            return f"{frame} instead of {call}", at, False
        if at and not through_library and call.through != "?":
            between = call.through == "~" or not inlined
            if (frame.native_before > 0) != between:
                return f"{frame.native_before} native frames before {frame}", at, False
        through_library = False
        first, end = functions(frame.file).get(call.name, (0, 0))
        no_line = last and not frame.line  # clean-up code of the compiler's
        if not first <= frame.line <= end and not no_line:
            return f"{frame}: line not in {first}-{end}", at, False
        if not last and call.line and frame.line != call.line:
            return f"{frame}: line is not {call.line}", at, False
        step += 1
    ends_native = step < len(chain) and not chain[step].name and leaf > 0
    return "", len(frames), step == len(chain) or ends_native
