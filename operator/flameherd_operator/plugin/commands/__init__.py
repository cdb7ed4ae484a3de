"""One module a command: `add` its options, `run` it.

`run` gives an `Answer`: what `-o json` prints, what a human reads, and the exit status. What goes
wrong is an `ApiFailure` or a `PolicyError`; `cli` shows both.
"""

from typing import Any

import msgspec


class Answer(msgspec.Struct, frozen=True):
    """Of a command."""

    data: Any
    """Plain data."""
    text: str
    notes: tuple[str, ...] = ()
    """What could not be looked at; for standard error."""
    exit_code: int = 0
