"""Judges stacks by what the sampled programs are known to do.

A truth program runs through a known chain of its own functions (`tests/programs`), so that every
sample has a right answer: a prefix of that chain from the root on, with nothing missing between,
and at the leaf whatever helps it along (libc, the PLT, the kernel). `match` is that oracle; `judge`
applies it to the samples of one program; `describe` prints what went wrong, to be mended.

Frames of stripped libraries have no names: a step through libc is matched by its mapping alone, and
the number of its frames has bounds instead of names.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import NamedTuple

from flameherd_agent.model import Location, ResourceProfiles, Sample
from flameherd_agent.types import FrameType

MAX_LEAF_FRAMES = 24
"""Frames of helpers above the chain; libgcc's unwinder during a throw is the deepest."""


class Frame(NamedTuple):
    """One function of a stack as the oracle sees it."""

    name: str
    """Demangled; "" = unnamed."""
    file: str
    """Base name of the mapping; "" = none."""
    kernel: bool = False

    def __str__(self) -> str:
        return (self.name or "?") + (f"@{self.file}" if self.file else "")


class Step(NamedTuple):
    """`least` to `most` frames in a row. Patterns are globs joined by `|`; `[` is not special."""

    name: str
    file: str = "*"
    least: int = 1
    most: int = 1

    def fits(self, frame: Frame) -> bool:
        return _fits(self.name, frame.name) and _fits(self.file, frame.file)


def _fits(patterns: str, text: str) -> bool:
    return any(fnmatchcase(text, glob.replace("[", "[[]")) for glob in patterns.split("|"))


def fn(name: str, times: int = 1) -> Step:
    """`times` frames of a function of the program itself."""
    return Step(name, "*", times, times)


def lib(file: str, least: int, most: int) -> Step:
    """Frames of a library, named or not."""
    return Step("*", file, least, most)


LIBC = "libc.so*"
START = (fn("_start"), lib(LIBC, 1, 2))
"""Below `main` of a dynamic glibc program: _start, __libc_start_main, __libc_start_call_main."""
THREAD_START = (lib(LIBC, 1, 2),)
"""Below a thread's function: clone3, start_thread."""
HELPERS = (Step("*", "libc.so*|ld-linux*|*vdso*"), Step("*@plt"), Step("burn|burn(*"))
"""What may lie at the leaf of every chain."""


@dataclass(frozen=True)
class Chain:
    """One right answer, root first."""

    steps: tuple[Step, ...]
    least: int = 0
    """Steps that every sample must have; 0: up to `main`, or the first if there is none."""
    helpers: tuple[Step, ...] = HELPERS
    whole: bool = True
    """False: too deep for the agent; a truncated sample must be a gapless suffix of the chain."""

    def required(self) -> int:
        names = [step.name for step in self.steps]
        return self.least or (names.index("main") + 1 if "main" in names else 1)


class Verdict(NamedTuple):
    """`reached`: steps matched. `why`: "" if right."""

    reached: int
    why: str


def match(chain: Chain, frames: Sequence[Frame], first_step: int = 0) -> Verdict:
    """Is this user stack (root first) a prefix of the chain, with helpers on top?

    With `first_step` it begins there instead of at the root.
    """
    at = 0
    step_number = first_step
    for step in chain.steps[first_step:]:
        count = 0
        while count < step.most and at < len(frames) and step.fits(frames[at]):
            at += 1
            count += 1
        if count < step.least:
            if at < len(frames) and count:
                return Verdict(step_number, f"{count} × {step.name} before {frames[at]}")
            break
        step_number += 1
    if not first_step and step_number < chain.required():
        found = str(frames[at]) if at < len(frames) else "the leaf"
        return Verdict(step_number, f"{found} instead of {chain.steps[step_number].name}")
    rest = frames[at:]
    if len(rest) > MAX_LEAF_FRAMES:
        return Verdict(step_number, f"{len(rest)} frames above the chain, first {rest[0]}")
    for position, frame in enumerate(rest):
        own_plt = frame.name == "" and position == len(rest) - 1 and frame.file != ""
        if not own_plt and not any(helper.fits(frame) for helper in chain.helpers):
            wanted = chain.steps[step_number].name if step_number < len(chain.steps) else "the leaf"
            return Verdict(step_number, f"{frame} instead of {wanted}")
    return Verdict(step_number, "")


def match_truncated(chain: Chain, frames: Sequence[Frame]) -> Verdict:
    """Is this truncated stack a gapless suffix of the chain?"""
    if not frames:
        return Verdict(0, "no user frames")
    for number, step in enumerate(chain.steps):
        if step.fits(frames[0]) and number:
            return match(chain, frames, number)
    return Verdict(0, f"{frames[0]} is not in the chain")


def frames_of(stack: Iterable[Location]) -> list[Frame]:
    """Root first, inline frames spelled out."""
    frames = []
    for location in stack:  # leaf first; lines innermost first
        file = location.mapping.path.rpartition("/")[2] if location.mapping else ""
        kernel = location.kind is FrameType.KERNEL
        if location.kind is FrameType.CPYTHON and location.lines:
            line = location.lines[0]
            file = f"{line.file.rpartition('/')[2]}:{line.line}"
        names = [line.function for line in location.lines] or [""]
        frames += [Frame(name, file, kernel) for name in names]
    frames.reverse()
    return frames


@dataclass(frozen=True)
class Truth:
    """Every right answer of one program."""

    chains: tuple[Chain, ...]
    share: float = 0.999
    """Of all samples, this share must be right."""
    full: float = 0.5
    """At least this share must reach the last step of a chain: else nothing was tested."""
    kernel: float = 0.0
    """At least this share must have kernel frames over the user's."""
    kernel_only: tuple[str, ...] = ()
    """Kernel functions, by glob, where a stack without user frames is right: exec, exit."""


EXACT_SAMPLES = 10_000
"""From so many samples on, a share of 99.9 % is judged exactly: the full length has them."""
FORGIVEN = 8
"""Wrong stacks that a shorter run may have: a thousand samples cannot tell 99.9 % from 99.5 %."""


@dataclass
class Judgement:
    """What became of one program's samples."""

    name: str
    samples: int = 0
    right: int = 0
    full: int = 0
    truncated: int = 0
    with_kernel: int = 0
    reached: Counter[int] = field(default_factory=Counter)
    """{index of the chain: samples that reached its last step}"""
    threads: set[int] = field(default_factory=set)
    pids: set[int] = field(default_factory=set)
    wrong: Counter[tuple[str, str]] = field(default_factory=Counter)
    """{(why, the stack): samples}"""
    expected: float = 0.0
    """CPU time used × rate, by the kernel's accounting."""
    lost: int = 0
    """Its part of the samples that are in no profile, by CPU time used."""

    def share(self) -> float:
        total = self.samples + self.lost
        return self.right / total if total else 0.0

    def check(self, truth: Truth, least_samples: int) -> None:
        """Raises AssertionError with the table's row and the wrong stacks."""
        text = describe([self])
        assert self.samples >= least_samples, f"too few samples\n{text}"
        total = self.samples + self.lost
        allowed = (1 - truth.share) * total
        if total < EXACT_SAMPLES:
            allowed = max(allowed, FORGIVEN)
        assert total - self.right <= allowed, f"want {truth.share:.2%}\n{text}"
        assert self.full >= truth.full * self.samples, f"the chain's end is rare\n{text}"
        assert self.with_kernel >= truth.kernel * self.samples, f"kernel frames are rare\n{text}"


def judge_sample(truth: Truth, sample: Sample) -> tuple[str, int, bool]:
    """(why it is wrong or "", index of the chain it fits, whether it reached that chain's end)."""
    frames = frames_of(sample.stack)
    user = [frame for frame in frames if not frame.kernel]
    if not user:
        right = any(fnmatchcase(f.name, glob) for f in frames for glob in truth.kernel_only)
        return ("" if right else "no user frames"), 0, False
    best = Verdict(-1, "no chain")
    best_index = 0
    for index, chain in enumerate(truth.chains):
        if sample.truncated:
            cut = Verdict(0, "truncated")
            verdict = cut if chain.whole else match_truncated(chain, user)
        else:
            verdict = match(chain, user)
        if (verdict.why == "", verdict.reached) > (best.why == "", best.reached):
            best, best_index = verdict, index
    full = best.why == "" and best.reached == len(truth.chains[best_index].steps)
    return best.why, best_index, full


def judge(name: str, truth: Truth, samples: Iterable[Sample], lost: int = 0) -> Judgement:
    """Judge all samples of one program."""
    result = Judgement(name, lost=lost)
    for sample in samples:
        attributes = dict(sample.attributes)
        why, chain, full = judge_sample(truth, sample)
        result.samples += sample.value
        result.truncated += sample.value * sample.truncated
        kinds = {location.kind is FrameType.KERNEL for location in sample.stack}
        result.with_kernel += sample.value * (kinds == {True, False})
        result.threads.add(int(attributes.get("thread.id", 0)))
        result.pids.add(int(attributes.get("process.pid", 0)))
        if why:
            result.wrong[why, render(frames_of(sample.stack))] += sample.value
            continue
        result.right += sample.value
        if full:
            result.full += sample.value
            result.reached[chain] += sample.value
    return result


def samples_by_pid(profiles: Iterable[ResourceProfiles]) -> dict[int, list[Sample]]:
    """{pid in the initial namespace: its samples}"""
    found: dict[int, list[Sample]] = {}
    for resource in profiles:
        for profile in resource.profiles:
            for sample in profile.samples:
                pid = int(dict(sample.attributes).get("process.pid", 0))
                found.setdefault(pid, []).append(sample)
    return found


def render(frames: Sequence[Frame]) -> str:
    """Root first; the middle of a long stack is left out."""
    texts = [str(frame) for frame in frames]
    if len(texts) > 24:
        texts = [*texts[:12], f"… {len(texts) - 20} more …", *texts[-8:]]
    return ";".join(texts)


def describe(judgements: Iterable[Judgement], examples: int = 3) -> str:
    """A table with one row a program, and below each the commonest wrong stacks."""
    heads = ("program", "samples", "expected", "right", "full", "cut", "kernel", "lost")
    lines = ["{:<14} {:>8} {:>8} {:>9} {:>7} {:>6} {:>7} {:>5}".format(*heads)]
    for one in judgements:
        total = max(1, one.samples)
        lines.append(
            f"{one.name:<14} {one.samples:>8} {one.expected:>8.0f} {one.share():>9.3%}"
            f" {one.full / total:>7.1%} {one.truncated:>6} {one.with_kernel / total:>7.1%}"
            f" {one.lost:>5}"
        )
        for (why, stack), count in one.wrong.most_common(examples):
            lines.append(f"    {count} × {why}: {stack}")
    return "\n".join(lines)
