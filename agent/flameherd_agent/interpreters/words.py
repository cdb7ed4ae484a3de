"""Frame words of a user stack, frame by frame: most kinds have one word, an interpreter's have two.

Pure functions on the words of `fh_stack_record`.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from flameherd_agent.kernel.abi import FrameKind

TWO_WORDS: Final = frozenset((FrameKind.CPYTHON, FrameKind.HOTSPOT, FrameKind.V8))
_KIND_SHIFT: Final = 60
ADDRESS_MASK: Final = (1 << 56) - 1


def frames(words: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first word, second word or 0) of each frame."""
    at = 0
    while at < len(words):
        first = words[at]
        if first >> _KIND_SHIFT in TWO_WORDS and at + 1 < len(words):
            yield first, words[at + 1]
            at += 2
        else:
            yield first, 0
            at += 1


def interpreted(words: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The frames of interpreters."""
    return ((first, second) for first, second in frames(words) if first >> 60 in TWO_WORDS)


def align(words: tuple[int, ...]) -> tuple[int, ...]:
    """Put each frame at its own evaluation where the leaf's evaluation had none.

    Up to CPython 3.9 nothing ties a frame to the call of the evaluation function that runs it but the order of both,
    from the leaf on. A call that has just begun or is about to return has no frame: then every frame was found one
    call too early, and the outermost call found none (a frame with address 0). There are as many calls that have none
    at the leaf as there are at the root, and those at the leaf are the ones that come first.
    """
    listed = list(frames(words))
    places = [at for at, (first, _) in enumerate(listed) if first >> 60 in TWO_WORDS]
    found = [listed[at] for at in places if listed[at][0] & ADDRESS_MASK]
    missing = len(places) - len(found)
    if not missing:
        return words
    shifted: dict[int, tuple[int, int] | None] = dict.fromkeys(places[:missing])
    shifted |= dict(zip(places[missing:], found, strict=True))
    result: list[int] = []
    for at, frame in enumerate(listed):
        placed = shifted.get(at, frame)
        if placed is not None:
            result += placed if placed[0] >> _KIND_SHIFT in TWO_WORDS else placed[:1]
    return tuple(result)
