"""Durations as text: `1m30s`, `250ms`, `100us`, `1d`.

The grammar is Go's `time.ParseDuration` without a sign, plus `d` for 24 hours, because Kubernetes'
`format: duration` lets `1d` through. Kept as whole nanoseconds: no rounding between file and
kernel.
"""

import re
from fractions import Fraction
from typing import Final, Self

_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # U+00B5
    "μs": 1_000,  # U+03BC
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
_WRITTEN: Final = ("d", "h", "m", "s", "ms", "us", "ns")
_TERM = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)(ns|us|µs|μs|ms|s|m|h|d)", re.ASCII)
_MAX_TEXT: Final = 64
MAX_NS: Final = 2**63 - 1


def parse_duration(text: object) -> int:
    """`1m30s` in nanoseconds; raises `ValueError` whose message names the text and the grammar."""
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not a duration in text such as 10s, 1m30s or 250ms")
    total = Fraction(0)
    position = 0
    while position < len(text) <= _MAX_TEXT:
        term = _TERM.match(text, position)
        if term is None:
            break
        total += Fraction(term[1]) * _UNITS[term[2]]
        position = term.end()
    if not text or position != len(text):
        raise ValueError(
            f"{text[:_MAX_TEXT]!r} is not a duration: numbers with units d, h, m, s, ms, us, ns, "
            "such as 1m30s"
        )
    if total.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of nanoseconds")
    return total.numerator


class Duration:
    """A span of time in whole nanoseconds, 0 … 2^63 - 1;

    immutable, ordered, written canonically by `str`.
    """

    __slots__ = ("_ns",)

    _ns: int

    def __init__(self, ns: int) -> None:
        if not 0 <= ns <= MAX_NS:
            raise ValueError(f"{ns} ns is not between 0 and {MAX_NS} ns (292 years)")
        self._ns = ns

    @property
    def ns(self) -> int:
        """Nanoseconds."""
        return self._ns

    @property
    def seconds(self) -> float:
        """Seconds, rounded to a float."""
        return self._ns / 1e9

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read `1m30s`; raises `ValueError` whose message names the text and the grammar."""
        return cls(parse_duration(text))

    def __str__(self) -> str:
        rest = self._ns
        terms = []
        for unit in _WRITTEN:
            count, rest = divmod(rest, _UNITS[unit])
            if count:
                terms.append(f"{count}{unit}")
        return "".join(terms) or "0s"

    def __repr__(self) -> str:
        return f"Duration.parse({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return self._ns == other._ns if isinstance(other, Duration) else NotImplemented

    def __lt__(self, other: "Duration") -> bool:
        return self._ns < other._ns

    def __le__(self, other: "Duration") -> bool:
        return self._ns <= other._ns

    def __hash__(self) -> int:
        return hash((Duration, self._ns))
