"""What the API server checks itself: rules in CEL, as data beside the fields that they are about.

`decode` checks in Python what these check in CEL, so that a mistake is refused when it is applied
and again by whoever reads it. What one regular expression can say is written once, by `text`: the
expressions keep to what Python's `re` and Go's RE2 read alike. A custom resource belongs to a
tenant, so a rule may ask for more than `decode` does; never for less, unless CEL cannot say it.

A message ends what the API server begins with, `spec.x: Invalid value: "y":`, and tells the mend.
"""

import re
from typing import Any, Final, NamedTuple

NO_NUL: Final = r"[^\x00]*"


class Rule(NamedTuple):
    """One CEL expression over `self`, and what the author is told when it is false."""

    cel: str
    message: str

    def of_keys(self) -> "Rule":
        """The same for every key of a map: a schema says nothing about keys."""
        inner = re.sub(r"\bself\b", "key", self.cel)
        return Rule(f"self.all(key, {inner})", f"one of the keys {self.message}")


def matches(pattern: str, message: str) -> Rule:
    """The whole of a text must match."""
    # A raw string of CEL: no escapes, so it must not hold its own quote.
    if "'" in pattern:
        raise ValueError(f"{pattern!r} holds a quote and cannot be written in CEL")
    return Rule(f"self.matches(r'^(?:{pattern})$')", message)


def text(pattern: str, message: str, *more: Rule) -> dict[str, Any]:
    """`extra` of a text field: `decode`'s check and CEL's rules from one regular expression."""
    compiled = re.compile(pattern, re.ASCII)

    def check(value: str) -> str | None:
        return None if compiled.fullmatch(value) else f"{value!r} {message}"

    return {"check": check, "cel": (matches(pattern, message), *more)}
