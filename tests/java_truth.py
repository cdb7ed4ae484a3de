"""Judges the stacks of HotSpot's truth programs by what their `Truth:` lines say (see `programs/hotspot/Burning.java`).

A stack is right if its Java frames are the beginning of a chain, each but the last stopped at the chain's line, the last
somewhere in its method, and if native frames lie between exactly where the chain says so. Which lines a method has is
asked of `javap`. Stubs that HotSpot generates may lie anywhere.
"""

import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache

from flameherd_agent.model import Location, Sample
from flameherd_agent.types import FrameType

from tests import runtime_truth
from tests.jdks import PROGRAMS, classes, tool

_STEP = re.compile(r"(~?)([\w.$<>*]+?)(?:@(\w+|\*))?(?:\*(\d+))?")
ANYWHERE = -1


@dataclass(frozen=True)
class Call:
    """One frame of a chain."""

    name: str
    """Class and method, by glob; "..." = any frames of the JDK."""
    line: int
    """Where it is stopped; ANYWHERE."""
    native: bool
    """Called by native code."""


@dataclass(frozen=True)
class JavaFrame:
    """A Java frame of a sampled stack."""

    name: str
    file: str
    line: int
    native_before: int
    """Native frames between it and the Java frame that is nearer to the root, or the root."""
    ahead: bool = False
    """Inlined into the compiled code that the leaf is in: what that is on the way to, if the JVM notes no more."""


@cache
def chains(program: str) -> tuple[tuple[Call, ...], ...]:
    """The right answers of a program."""
    tags: dict[str, int] = {}
    for source in (program, "Made"):
        for number, line in enumerate((PROGRAMS / f"{source}.java").read_text().splitlines(), 1):
            if "// @" in line:
                tags[line.rpartition("// @")[2]] = number
    text = (PROGRAMS / f"{program}.java").read_text()
    lines = re.findall(r"^ \* Truth: (.*)$", text, re.MULTILINE)
    return tuple(tuple(_calls(line, tags)) for line in lines)


def _calls(text: str, tags: dict[str, int]) -> Iterator[Call]:
    for part in text.split(" > "):
        if part in ("...", "~..."):
            yield Call("...", ANYWHERE, False)
            continue
        found = _STEP.fullmatch(part)
        assert found, f"{part!r} is no step"
        native, name, tag, times = found.groups()
        line = ANYWHERE if tag in (None, "*") else tags[tag]
        for number in range(int(times or 1)):
            yield Call(name, line, bool(native) and number == 0)


@cache
def methods() -> dict[str, tuple[int, int]]:
    """{class.method: (first line, last line)} of the programs, by javap."""
    files = sorted(classes().glob("*.class"))
    text = subprocess.run(
        [tool("javap"), "-l", "-p", *files], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, tuple[int, int]] = {}
    owner = name = ""
    for line in text.splitlines():
        if declared := re.match(r"(?:\w+ )*(?:class|interface) ([\w.$]+)", line):
            owner = declared[1]
        elif line.startswith("  static {}"):
            name = f"{owner}.<clinit>"
        elif method := re.match(r"  [\w.$<>?,\[\]\s]*?([\w.$]+)\(.*\)", line):
            called = method[1]
            name = f"{owner}.{'<init>' if called == owner else called}"
        elif entry := re.match(r"\s+line (\d+): \d+", line):
            number = int(entry[1])
            first, last = found.get(name, (number, number))
            found[name] = (min(first, number), max(last, number))
    return found


@cache
def own_classes() -> frozenset[str]:
    """Names of the programs' classes."""
    return frozenset(path.stem for path in classes().glob("*.class"))


def java_frames(stack: Sequence[Location]) -> list[JavaFrame]:
    """Root first."""
    found: list[JavaFrame] = []
    native = 0
    leaf = next((location for location in stack if location.kind is not FrameType.KERNEL), None)
    for location in reversed(stack):
        if location.kind is FrameType.NATIVE:
            native += 1
        if location.kind is not FrameType.JVM:
            continue
        if not location.lines:
            found.append(JavaFrame("?", "", 0, native))
            native = 0
        for line in reversed(location.lines):
            if "." not in line.function or " " in line.function:
                continue  # a stub
            ahead = location is leaf and len(location.lines) > 1
            found.append(JavaFrame(line.function, line.file, line.line, native, ahead))
            native = 0
    return found


def _is_own(frame: JavaFrame) -> bool:
    owner = frame.name.rpartition(".")[0]
    return owner in own_classes() or "$$Lambda" in owner or owner.startswith("Many$Of")


def wrong(program: str, sample: Sample, noted: bool = True) -> tuple[str, bool]:
    """(why a sample is wrong or "", whether it reached the end of a chain).

    `noted`: the JVM notes the methods at every instruction, so that inlined ones are exact at the leaf too.
    """
    if sample.truncated:
        return "truncated", False
    frames = java_frames(sample.stack)
    if not frames:
        return "no Java frame", False
    best = ("no chain", -1, False)
    for chain in chains(program):
        why, reached, full = _match(chain, frames)
        behind = (
            not reached or frames[reached - 1].ahead
        )  # the physical method itself must be right
        if why and not noted and frames[reached].ahead and (behind or "line is not" in why):
            why = ""
        if (not why, reached, full) > (not best[0], best[1], best[2]):
            best = (why, reached, full)
    return best[0], best[2]


def _match(chain: Sequence[Call], frames: Sequence[JavaFrame]) -> tuple[str, int, bool]:
    """(why not or "", frames that fit, whether the chain's end was reached)."""
    step = 0
    through_jdk = False
    for at, frame in enumerate(frames):
        last = at == len(frames) - 1
        if step < len(chain) and chain[step].name == "...":
            if not _is_own(frame):
                through_jdk = True
                continue
            step += 1
        if step >= len(chain):
            return f"{frame} after the chain's end", at, False
        call = chain[step]
        if not fnmatchcase(frame.name, call.name):
            return f"{frame} instead of {call}", at, False
        if at and not through_jdk and (frame.native_before > 0) != call.native:
            return f"{frame.native_before} native frames before {frame}", at, False
        through_jdk = False
        if call.line != ANYWHERE or last:
            first, end = methods().get(frame.name, (0, 0))
            if not first <= frame.line <= end:
                return f"{frame}: line not in {first}-{end}", at, False
            if not last and frame.line != call.line:
                return f"{frame}: line is not {call.line}", at, False
        step += 1
    return "", len(frames), step >= len(chain) - (chain[-1].name == "...")


@dataclass
class Verdict(runtime_truth.Verdict):
    """And of the threads that they come from."""

    own: int = 0
    """Samples of the JVM's own threads, which run no Java: they are not judged."""
    threads: set[int] = field(default_factory=set)

    def describe(self) -> str:
        return f"{self.own} of the JVM, {len(self.threads)} threads; {super().describe()}"


def judge(program: str, samples: Iterable[Sample], noted: bool = True) -> Verdict:
    """Judge a program's samples, but for those of threads that never showed one of its methods."""
    verdict = Verdict()
    by_thread: dict[int, list[Sample]] = {}
    for sample in samples:
        thread = int(dict(sample.attributes)["thread.id"])
        by_thread.setdefault(thread, []).append(sample)
    for thread, found in by_thread.items():
        if not any(_is_own(frame) for sample in found for frame in java_frames(sample.stack)):
            verdict.own += sum(sample.value for sample in found)
            continue
        verdict.threads.add(thread)
        for sample in found:
            verdict.add(sample, *wrong(program, sample, noted))
    return verdict
