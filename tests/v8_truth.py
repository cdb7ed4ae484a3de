"""Judges the stacks of V8's truth programs by what their `Truth:` lines say (see `programs/v8/burning.js`).

A stack is right if it goes down to the root, and its functions, those that were inlined included, are the beginning of
a chain: each but the last stopped at the chain's line, the last somewhere in its function.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from flameherd_agent.model import Location, Sample
from flameherd_agent.types import FrameType

PROGRAMS = Path(__file__).parent / "programs" / "v8"
_STEP = re.compile(r"([~?]?)([\w.()]+)(?:@([\w|]+))?(?:\*(\d*))?")
_FUNCTION = re.compile(r"^( *)[^\"]*?\bfunction\*? (\w+)\(")
_MODULE = "(anonymous)"
_ROOTS = ("_start", "start_thread", "clone3", "__clone3", "clone", "thread_start")
_MOST = 1_000


@dataclass(frozen=True)
class Call:
    """One step of a chain."""

    name: str
    """"..." = functions of Node.js."""
    lines: frozenset[int]
    """Where it is stopped; empty = anywhere in the function."""
    least: int = 1
    most: int = 1
    native: bool = False
    """Called by native code."""
    own: bool = True
    """False: a function of V8's own, which may be missing."""


@dataclass(frozen=True)
class Frame:
    """A function of a sampled stack."""

    name: str
    file: str
    line: int
    native_before: int
    """Native frames between it and the function that is nearer to the root."""

    @property
    def library(self) -> bool:
        """Of Node.js or of V8 itself."""
        return self.file.startswith("node:") or not (self.file or self.line)


@cache
def _tags(program: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for path in (PROGRAMS / f"{program}.js", PROGRAMS / "loaded.js"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for tag in re.findall(r"// @(\w+)", line):
                found[tag] = number
    # In texts within the program.
    found |= {"script1": 2, "evaluated": 2}
    return found


@cache
def chains(program: str) -> tuple[tuple[Call, ...], ...]:
    """The right answers of a program."""
    text = (PROGRAMS / f"{program}.js").read_text()
    tags = _tags(program)
    return tuple(
        tuple(_calls(line, tags)) for line in re.findall(r"^// Truth: (.*)$", text, re.MULTILINE)
    )


def _calls(text: str, tags: dict[str, int]) -> Iterator[Call]:
    for part in text.split(" > "):
        if part == "...":
            yield Call("...", frozenset(), 0, _MOST)
            continue
        found = _STEP.fullmatch(part)
        assert found, f"{part!r} is no step"
        mark, name, stops, times = found.groups()
        lines = frozenset(tags[tag] for tag in stops.split("|")) if stops else frozenset()
        least, most = (
            (1, 1) if times is None else (0, _MOST) if not times else (int(times), int(times))
        )
        name = _MODULE if name in ("(module)", "(script)") else name
        if mark == "?":
            yield Call(name, lines, 0, 1, own=False)
        else:
            yield Call(name, lines, least, most, mark == "~")


@cache
def functions(program: str) -> dict[str, tuple[int, int]]:
    """{name: (first line, last line)} of what a program declares."""
    found = {_MODULE: (1, 10_000), "evaluated": (1, 3), "anonymous": (1, 4)}
    for file in ("burning", "loaded", program):
        lines = (PROGRAMS / f"{file}.js").read_text().splitlines()
        for number, line in enumerate(lines, 1):
            match = _FUNCTION.match(line)
            if match:
                rest = enumerate(lines[number:], number + 1)
                end = next(at for at, text in rest if text.startswith(match[1] + "}"))
                found[match[2]] = number, end
    return found


def frames_of(stack: Sequence[Location]) -> tuple[list[Frame], str]:
    """(functions of JavaScript, the outermost native function): root first."""
    found: list[Frame] = []
    native, root = 0, ""
    for location in reversed(stack):
        if location.kind is FrameType.KERNEL:
            continue
        if location.kind is not FrameType.V8JS:
            if not found and not native:
                root = location.lines[0].function if location.lines else ""
            native += 1
            continue
        lines = location.lines or (None,)
        for line in reversed(lines):
            name, file, number = (line.function, line.file, line.line) if line else ("?", "", 0)
            file = file if file.startswith("node:") else file.rpartition("/")[2]
            found.append(Frame(name, file, number, native))
            native = 0
    return found, root


def wrong(program: str, sample: Sample, by_line: bool = True) -> tuple[str, bool]:
    """(why a sample is wrong or "", whether it reached the end of a chain).

    Without `by_line` functions may be stopped anywhere in their lines.
    """
    if sample.truncated:
        return "truncated", False
    frames, root = frames_of(sample.stack)
    if root not in _ROOTS:
        return f"the root is {root!r}", False
    # What V8 and Node.js do besides: collecting, compiling, the event loop.
    if not any(not frame.library for frame in frames):
        return "", False
    best = ("no chain", -1, False)
    for chain in chains(program):
        why, reached, full = _match(chain, frames, functions(program), by_line)
        if (not why, reached, full) > (not best[0], best[1], best[2]):
            best = (why, reached, full)
    return best[0], best[2]


def _match(
    chain: Sequence[Call],
    frames: Sequence[Frame],
    known: dict[str, tuple[int, int]],
    by_line: bool,
) -> tuple[str, int, bool]:
    """(why not or "", frames that fit, whether the chain's end was reached)."""
    step = count = 0
    skipped = False
    for at, frame in enumerate(frames):
        last = at == len(frames) - 1
        while step < len(chain):
            call = chain[step]
            fits = frame.library if call.name == "..." else frame.name == call.name
            fits &= call.name == "..." or frame.library != call.own or last
            stopped = last or not by_line or not call.lines or frame.line in call.lines
            if fits and (stopped or count >= call.least) and count < call.most:
                if stopped:
                    break
            elif fits and count < call.most:
                return f"{frame}: line is not {sorted(call.lines)}", at, False
            if count < call.least:
                return f"{frame} instead of {call.name}", at, False
            step, count = step + 1, 0
            skipped = skipped or call.name == "..."
        else:
            # Behind the chain's end: what V8's own functions do for the last one.
            if frame.library:
                continue
            return f"{frame} after the chain's end", at, False
        call = chain[step]
        if call.native and not frame.native_before:
            return f"no native frame before {frame}", at, False
        if call.name != "..." and call.own:
            first, end = known.get(frame.name, (1, 10_000))
            if not first <= frame.line <= end and not (last and not frame.line):
                return f"{frame}: line not in {first}-{end}", at, False
        count += 1
    return "", len(frames), step >= len(chain) - 1
