"""Tables as kubectl prints them, and JSON. Pure."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

_GAP: Final = "   "
NOTHING: Final = "-"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns, left-aligned; an empty cell is `-`. Lines without space at their ends."""
    lines = [list(header), *([cell or NOTHING for cell in row] for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(header))]
    return "\n".join(
        _GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def as_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def amount(number: float, unit: str = "") -> str:
    """Two or three digits: `1.2k`, `35M`."""
    for scale, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= scale:
            return f"{number / scale:.3g}{suffix}{unit}"
    return f"{number:.3g}{unit}"


def cpus(number: float) -> str:
    """An amount of CPU as Kubernetes writes it: `5m`, `120u`."""
    if number >= 1:
        return f"{number * 1e3:.0f}m"
    if number >= 0.001:
        return f"{number * 1e3:.3g}m"
    return f"{number * 1e6:.3g}u"


def count(number: int, what: str) -> str:
    """`1 pod`, `2 pods`."""
    return f"{number} {what}{'' if number == 1 else 's'}"
