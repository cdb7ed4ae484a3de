"""The oracle itself: what it must accept and what it must not let pass."""

from flameherd_agent.model import FrameType, Line, Location, Mapping, Sample
from hypothesis import given
from hypothesis import strategies as st

from tests.truth import START, Chain, Frame, Truth, fn, judge, lib, match, match_truncated

CHAIN = Chain((*START, fn("main"), *(fn(f"level_{n}") for n in range(1, 21)), fn("burn")))
ROOT = [Frame("_start", "program"), Frame("__libc_start_main", "libc.so.6"), Frame("", "libc.so.6")]


def stack(levels: int) -> list[Frame]:
    own = ["main", *(f"level_{n}" for n in range(1, levels + 1))]
    return [*ROOT, *(Frame(name, "program") for name in own)]


def test_every_prefix_from_main_on_is_right() -> None:
    for levels in range(21):
        assert match(CHAIN, stack(levels)).why == ""
    assert match(CHAIN, [*stack(20), Frame("burn", "program")]).reached == len(CHAIN.steps)


def test_helpers_may_lie_at_the_leaf_only() -> None:
    assert match(CHAIN, [*stack(3), Frame("memcpy", "libc.so.6")]).why == ""
    assert match(CHAIN, [*stack(3), Frame("", "program")]).why == ""  # a PLT stub
    wrong = [*stack(3), Frame("memcpy", "libc.so.6"), Frame("level_4", "program")]
    assert match(CHAIN, wrong).why == "level_4@program instead of level_4"


@given(st.integers(0, 23))
def test_one_missing_frame_is_noticed(gap: int) -> None:
    """Whichever it is, but for one of libc's two, which have no names to tell them apart."""
    whole = stack(20)
    cut = whole[:gap] + whole[gap + 1 :]
    allowed = gap in (1, 2) or gap == len(whole) - 1
    assert (match(CHAIN, cut).why == "") == allowed


@given(st.integers(0, 23))
def test_one_frame_too_many_is_noticed(place: int) -> None:
    doubled = stack(20)
    doubled.insert(place, doubled[place])
    assert match(CHAIN, doubled).why != ""


def test_a_stack_that_does_not_reach_the_root_is_wrong() -> None:
    assert match(CHAIN, stack(20)[3:]).why != ""
    assert match(CHAIN, []).why == "the leaf instead of _start"


def test_a_truncated_stack_must_have_no_gap() -> None:
    whole = stack(20)
    assert match_truncated(CHAIN, whole[8:]).why == ""
    assert match_truncated(CHAIN, whole[8:12] + whole[13:]).why != ""
    assert match_truncated(CHAIN, []).why == "no user frames"


def test_a_repeated_function_is_counted() -> None:
    chain = Chain((fn("main"), fn("recurse", 3), fn("burn")))
    frames = [Frame("main", "p"), *[Frame("recurse", "p")] * 3, Frame("burn", "p")]
    assert match(chain, frames).why == ""
    assert match(chain, frames[:2] + frames[3:]).why != ""
    assert match(chain, frames[:2]).why == ""  # on its way down


def test_libraries_are_counted_within_bounds() -> None:
    chain = Chain((fn("main"), lib("libc.so*", 1, 2), fn("cmp")))
    qsort = Frame("", "libc.so.6")
    for count, right in [(0, False), (1, True), (2, True), (3, False)]:
        frames = [Frame("main", "p"), *[qsort] * count, Frame("cmp", "p")]
        assert (match(chain, frames).why == "") == right


def sample(names: list[str], *, truncated: bool = False, value: int = 1) -> Sample:
    """A sample of a program without libc; names are root first."""
    file = Mapping("/app/program")
    locations = [
        Location(FrameType.NATIVE, number, file, (Line(name),)) for number, name in enumerate(names)
    ]
    return Sample(
        tuple(reversed(locations)), (("process.pid", 7), ("thread.id", 8)), value, truncated
    )


def test_lost_samples_count_against_a_program() -> None:
    truth = Truth((Chain((fn("main"), fn("burn"))),))
    result = judge(
        "program",
        truth,
        [
            sample(["main", "burn"], value=97),
            sample(["burn"], value=1),
            sample(["main", "burn"], truncated=True, value=1),
        ],
        lost=1,
    )
    assert (result.samples, result.right, result.full, result.truncated) == (99, 97, 97, 1)
    assert result.share() == 0.97
    assert [why for why, _ in result.wrong] == ["burn@program instead of main", "truncated"]
    assert (result.pids, result.threads) == ({7}, {8})


def test_inline_frames_are_spelled_out() -> None:
    file = Mapping("/app/program")
    leaf = Location(FrameType.GO, 1, file, (Line("inlined"), Line("outer")))
    main = Location(FrameType.GO, 0, file, (Line("main"),))
    truth = Truth((Chain((fn("main"), fn("outer"), fn("inlined"))),))
    assert judge("program", truth, [Sample((leaf, main), (), 1)]).full == 1
