"""Frame words of two words each, and frames that were found one evaluation too early."""

from flameherd_agent.interpreters.words import align, frames, interpreted
from flameherd_agent.kernel.abi import FrameKind

NATIVE = FrameKind.NATIVE << 60
PYTHON = FrameKind.CPYTHON << 60
LOOKS_LIKE_PYTHON = PYTHON | 7
"""As a second word it is data."""


def test_second_words_are_not_frames() -> None:
    words = (NATIVE | 1, PYTHON | 0x10, LOOKS_LIKE_PYTHON, NATIVE | 2)
    assert list(frames(words)) == [
        (NATIVE | 1, 0),
        (PYTHON | 0x10, LOOKS_LIKE_PYTHON),
        (NATIVE | 2, 0),
    ]
    assert list(interpreted(words)) == [(PYTHON | 0x10, LOOKS_LIKE_PYTHON)]


def test_a_cut_frame_stays_what_it_is() -> None:
    assert list(frames((PYTHON | 0x10,))) == [(PYTHON | 0x10, 0)]


def test_whole_stacks_are_left_alone() -> None:
    words = (PYTHON | 0x10, 1, NATIVE | 1, PYTHON | 0x20, 2, NATIVE | 1)
    assert align(words) is words


def test_frames_move_to_their_own_evaluation() -> None:
    """The leaf's evaluation had no frame yet: the outermost one seemed to have none."""
    leaf, eval_1, eval_2, eval_3 = NATIVE | 9, NATIVE | 1, NATIVE | 2, NATIVE | 3
    found = (leaf, PYTHON | 0x10, 11, eval_1, PYTHON | 0x20, 22, eval_2, PYTHON, 0, eval_3)
    right = (leaf, eval_1, PYTHON | 0x10, 11, eval_2, PYTHON | 0x20, 22, eval_3)
    assert align(found) == right


def test_an_evaluation_without_any_frame_is_native() -> None:
    assert align((NATIVE | 9, PYTHON, 0, NATIVE | 1)) == (NATIVE | 9, NATIVE | 1)
