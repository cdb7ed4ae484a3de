"""Logs in logfmt on stderr, that say one thing once.

    time=2026-11-21T04:38:33.123Z level=warning logger=worker msg="a file is unreadable"
    file=/usr/bin/x

Built on the standard library's logging, so that what libraries log comes out the same way. A record
with a key (`Log.once`) is written the first time; repeats within ten minutes are counted, and the
next record with that key, or `LogfmtHandler.summarise`, says how many there were.
"""

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, TextIO

SUMMARY_SECONDS: Final = 600.0
MAX_KEYS: Final = 1024
"""Keys that are remembered; the one that was quiet longest is forgotten first."""
_ROOT: Final = "flameherd"
_MAX_VALUE: Final = 1024
_MAX_TRACEBACK: Final = 16384
_PLAIN: Final = frozenset(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:@%+,#*[](){}<>"
)


class Log:
    """What a module writes to: `log = Log("worker")`, then `log.warning("it died", code=9)`."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"{_ROOT}.{name}")

    def debug(self, message: str, /, **fields: object) -> None:
        self._write(logging.DEBUG, message, fields)

    def info(self, message: str, /, **fields: object) -> None:
        self._write(logging.INFO, message, fields)

    def warning(self, message: str, /, **fields: object) -> None:
        self._write(logging.WARNING, message, fields)

    def error(self, message: str, /, **fields: object) -> None:
        self._write(logging.ERROR, message, fields)

    def once(
        self, key: str, message: str, /, *, level: int = logging.WARNING, **fields: object
    ) -> None:
        """Write it at most once in ten minutes for this `key`;

        repeats are counted and told later.
        """
        self._write(level, message, fields, key)

    def _write(
        self, level: int, message: str, fields: Mapping[str, object], key: str | None = None
    ) -> None:
        if self._logger.isEnabledFor(level):
            extra = {
                "fields": fields,
                "once_key": None if key is None else (self._logger.name, key),
            }
            self._logger.log(level, "%s", message, extra=extra)


class _Repeats:
    """A key that was written: the record, when, and how often it came again since."""

    def __init__(self, record: logging.LogRecord, written: float) -> None:
        self.record = record
        self.written = written
        self.count = 0


class LogfmtHandler(logging.StreamHandler[TextIO]):
    """Writes records as logfmt; holds repeats back."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._keys: OrderedDict[tuple[str, str], _Repeats] = OrderedDict()

    def emit(self, record: logging.LogRecord) -> None:
        key: tuple[str, str] | None = getattr(record, "once_key", None)
        if key is None:
            super().emit(record)
            return
        known = self._keys.pop(key, None)
        now = self._clock()
        if known is not None and now - known.written < SUMMARY_SECONDS:
            known.count += 1
            known.record = record
            self._keys[key] = known
            return
        self._keys[key] = _Repeats(record, now)
        if known is not None and known.count:
            record.repeats = known.count
        super().emit(record)
        if len(self._keys) > MAX_KEYS:
            _, forgotten = self._keys.popitem(last=False)
            self._tell(forgotten, now)

    def summarise(self, *, force: bool = False) -> None:
        """Tell of the repeats of keys that were written over ten minutes ago (`force`:

        of all). Call it now and then.
        """
        self.acquire()
        try:
            now = self._clock()
            for known in list(self._keys.values()):
                if force or now - known.written >= SUMMARY_SECONDS:
                    self._tell(known, now)
        finally:
            self.release()

    def _tell(self, known: _Repeats, now: float) -> None:
        if known.count:
            known.record.repeats = known.count
            super().emit(known.record)
            known.count = 0
            known.written = now

    def format(self, record: logging.LogRecord) -> str:
        milliseconds = int(record.created * 1000)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1000))
        pairs: dict[str, object] = {
            "time": f"{stamp}.{milliseconds % 1000:03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name.removeprefix("flameherd_agent.").removeprefix(f"{_ROOT}."),
            "msg": record.getMessage(),
        }
        pairs |= getattr(record, "fields", {})
        repeats = getattr(record, "repeats", 0)
        if repeats:
            pairs["repeats"] = repeats
        if record.exc_info and record.exc_info[1] is not None:
            pairs["error"] = record.exc_info[1]
        line = " ".join(f"{key}={_value(value)}" for key, value in pairs.items())
        if record.exc_info and record.exc_info[1] is not None:
            trace = logging.Formatter().formatException(record.exc_info)
            line += f" traceback={json.dumps(trace[-_MAX_TRACEBACK:])}"
        return line


def set_up(level: str, stream: TextIO) -> LogfmtHandler:
    """Send all logs of this process to `stream` from `level` (debug, info, warning, error) on.

    Replaces what was set up before; returns the handler, whose `summarise` the caller calls now and
    then.
    """
    handler = LogfmtHandler(stream)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    return handler


def _value(value: object) -> str:
    """One value on one line: plain, or in quotes as JSON has them."""
    if isinstance(value, BaseException):
        text = f"{type(value).__name__}: {value}"
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = str(value)
    text = text if len(text) <= _MAX_VALUE else text[:_MAX_VALUE] + "…"
    return text if text and _PLAIN.issuperset(text) else json.dumps(text)
