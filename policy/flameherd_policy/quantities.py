"""Kubernetes quantities: `5m`, `0.5`, `64Mi`, `1e3`.

The grammar is that of apimachinery's `resource.Quantity`: a decimal number and one suffix of
n, u, m, k, M, G, T, P, E, of Ki, Mi, Gi, Ti, Pi, Ei, or a decimal exponent. The text is kept, since
it goes back to Kubernetes as it came; the value is exact.
"""

import re
from fractions import Fraction
from typing import Final, Self

_SUFFIXES: Final[dict[str, Fraction]] = {
    "": Fraction(1),
    **{s: Fraction(1, 1000**n) for n, s in enumerate("mun", 1)},
    **{s: Fraction(1000**n) for n, s in enumerate("kMGTPE", 1)},
    **{f"{s}i": Fraction(1024**n) for n, s in enumerate("KMGTPE", 1)},
}
_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30}))(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,2}))?",
    re.ASCII,
)


class Quantity:
    """An amount of CPU or memory; immutable, compared by value, written as it was read."""

    __slots__ = ("_text", "_value")

    _text: str
    _value: Fraction

    def __init__(self, text: str, value: Fraction) -> None:
        self._text = text
        self._value = value

    @property
    def value(self) -> Fraction:
        """The exact value in base units: CPUs or bytes."""
        return self._value

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read `5m`, or a bare number of a YAML file;

        raises `ValueError` that names text and grammar.
        """
        if isinstance(text, int | float) and not isinstance(text, bool):
            text = str(text)
        found = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ValueError(
                f"{text!r} is not a quantity: a number with a suffix such as 5m, 0.5, 64Mi or 1G"
            )
        scale = Fraction(10) ** int(found[3]) if found[3] else _SUFFIXES[found[2] or ""]
        return cls(found[0], Fraction(found[1].rstrip(".")) * scale)

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Quantity.parse({self._text!r})"

    def __eq__(self, other: object) -> bool:
        return self._value == other._value if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: "Quantity") -> bool:
        return self._value < other._value

    def __le__(self, other: "Quantity") -> bool:
        return self._value <= other._value

    def __hash__(self) -> int:
        return hash((Quantity, self._value))
