"""A snapshot of numbers → Prometheus text exposition format 0.0.4.

Counters live where they are counted (most of them in the kernel), so there is no registry and no
metric object: whoever is asked makes `Family` tuples, and this renders them. prometheus-client
would cost 15 MB of the agent's 60.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)

Kind = Literal["counter", "gauge"]
Labels = tuple[tuple[str, str], ...]


class Family(NamedTuple):
    """All samples of one metric."""

    name: str
    """With its unit in it: `_bytes`, `_seconds`; counters end in `_total`."""
    help: str
    kind: Kind
    samples: tuple[tuple[Labels, float], ...]


def counter(name: str, help_text: str, value: float | Mapping[Labels, float]) -> Family:
    """A number that only grows; `value` is one number, or numbers by labels."""
    if not name.endswith("_total"):
        raise ValueError(f"{name}: the name of a counter ends in _total")
    return Family(name, help_text, "counter", _samples(value))


def gauge(name: str, help_text: str, value: float | Mapping[Labels, float]) -> Family:
    """A number that goes up and down."""
    return Family(name, help_text, "gauge", _samples(value))


def labels(**pairs: str) -> Labels:
    """`labels(slot="a")` → the key of a sample."""
    return tuple(sorted(pairs.items()))


def render(families: Iterable[Family]) -> str:
    """The exposition;

    raises `ValueError` on names that Prometheus would refuse, and on what is there twice.
    """
    lines: list[str] = []
    seen: set[str] = set()
    for family in families:
        if not _NAME.fullmatch(family.name) or family.name in seen:
            raise ValueError(f"{family.name!r} is not a metric name, or there twice")
        seen.add(family.name)
        lines.append(f"# HELP {family.name} {_escape(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        if len(dict(family.samples)) != len(family.samples):
            raise ValueError(f"{family.name}: one set of labels is there twice")
        lines += [f"{family.name}{_labels(key)} {_number(value)}" for key, value in family.samples]
    return "".join(f"{line}\n" for line in lines)


def _samples(value: float | Mapping[Labels, float]) -> tuple[tuple[Labels, float], ...]:
    return tuple(value.items()) if isinstance(value, Mapping) else (((), value),)


def _labels(key: Labels) -> str:
    for name, _ in key:
        if not _LABEL.fullmatch(name):
            raise ValueError(f"{name!r} is not a label name")
    if not key:
        return ""
    return "{" + ",".join(f'{name}="{_escape_label(value)}"' for name, value in key) + "}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escape_label(text: str) -> str:
    return _escape(text).replace('"', '\\"')


def _number(value: float) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return repr(value)
