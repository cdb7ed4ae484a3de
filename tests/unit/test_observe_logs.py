"""Log lines, and that one thing is said once."""

import io
import logging
import re
from collections.abc import Iterator

import pytest
from flameherd_agent.observe import logs
from flameherd_agent.observe.logs import MAX_KEYS, SUMMARY_SECONDS, Log, LogfmtHandler
from hypothesis import given
from hypothesis import strategies as st

PAIR = re.compile(r'([a-z_]+)=("(?:[^"\\]|\\.)*"|[^ "=]+)(?: |$)')


class Captured:
    """A handler on a string, with a clock that the test turns."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stream = io.StringIO()
        self.handler = LogfmtHandler(self.stream, clock=lambda: self.now)

    def lines(self) -> list[str]:
        """What was written since the last call, without the time."""
        text = self.stream.getvalue()
        self.stream.seek(0)
        self.stream.truncate()
        return [re.sub(r"^time=[0-9TZ:.-]+ ", "", line) for line in text.splitlines()]


@pytest.fixture
def captured() -> Iterator[Captured]:
    logger = logging.getLogger("flameherd")
    found = Captured()
    logger.addHandler(found.handler)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(found.handler)
    logger.setLevel(logging.NOTSET)


log = Log("test")


def test_a_line(captured: Captured) -> None:
    log.info(
        "two words",
        file="/usr/bin/x y",
        count=3,
        ratio=0.5,
        good=True,
        none="",
        error=OSError("no"),
    )
    log.debug("not shown")
    assert captured.lines() == [
        'level=info logger=test msg="two words" file="/usr/bin/x y" count=3 ratio=0.5 good=true '
        'none="" error="OSError: no"'
    ]


def test_the_time_is_utc_with_milliseconds(captured: Captured) -> None:
    log.warning("x")
    assert re.match(
        r"time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z level=warning ", captured.stream.getvalue()
    )


def test_a_hostile_value_stays_on_its_line(captured: Captured) -> None:
    log.error("x", comm='a"\nlevel=info msg=forged \x1b[31m', long="y" * 10_000)
    (line,) = captured.lines()
    assert "\x1b" not in line
    assert len(line) < 1200


@given(st.text(max_size=50))
def test_any_value_reads_back_as_one_pair(text: str) -> None:
    value = logs._value(text)
    assert PAIR.fullmatch(f"k={value}")
    assert "\n" not in value


def test_exceptions_carry_the_end_of_their_traceback(captured: Captured) -> None:
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        logging.getLogger("flameherd.other").exception("failed")
    (line,) = captured.lines()
    assert 'logger=other msg=failed error="RuntimeError: boom" traceback="Traceback' in line


def test_one_thing_is_said_once_and_repeats_are_counted(captured: Captured) -> None:
    for _ in range(5):
        log.once("k", "unreadable", file="a")
    assert captured.lines() == ["level=warning logger=test msg=unreadable file=a"]
    captured.now = SUMMARY_SECONDS
    log.once("k", "unreadable", file="b")
    assert captured.lines() == ["level=warning logger=test msg=unreadable file=b repeats=4"]
    log.once("k", "unreadable", file="c")
    assert captured.lines() == []


def test_other_keys_and_other_modules_are_other_things(captured: Captured) -> None:
    log.once("a", "x")
    log.once("b", "x")
    Log("else").once("a", "x")
    assert len(captured.lines()) == 3


def test_the_summary_tells_what_was_held_back(captured: Captured) -> None:
    log.once("k", "unreadable", file="a")
    log.once("k", "unreadable", file="b")
    captured.lines()
    captured.handler.summarise()
    assert captured.lines() == []
    captured.now = SUMMARY_SECONDS
    captured.handler.summarise()
    assert captured.lines() == ["level=warning logger=test msg=unreadable file=b repeats=1"]
    captured.handler.summarise(force=True)
    assert captured.lines() == []


def test_keys_are_bounded_and_none_is_lost_silently(captured: Captured) -> None:
    log.once("first", "x")
    log.once("first", "x")
    for number in range(MAX_KEYS):
        log.once(str(number), "y")
    assert captured.lines()[-1] == "level=warning logger=test msg=x repeats=1"
    assert len(captured.handler._keys) == MAX_KEYS


def test_set_up_takes_over_the_root(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    try:
        logs.set_up("warning", stream)
        logging.getLogger("grpc").warning("of a library")
        log.info("not shown")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert 'logger=grpc msg="of a library"' in stream.getvalue()
    assert "not shown" not in stream.getvalue()
