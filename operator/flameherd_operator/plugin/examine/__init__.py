"""What `doctor` looks at: each check reads a little and tells what it found.

installation   what Helm makes: kinds, namespaces, operator, rights
working        what the operator and the agents make of it
nodes          where an agent cannot run
"""

from enum import StrEnum

import msgspec


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """It works, but not as it should."""
    FAIL = "FAIL"
    UNKNOWN = "?"
    """The user may not look."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    level: Level
    message: str
    mend: str = ""
    """What to do."""


class Places(msgspec.Struct, frozen=True):
    """The two namespaces of an installation."""

    operator: str
    agents: str


def ok(message: str) -> Finding:
    return Finding(Level.OK, message)


def warn(message: str, mend: str) -> Finding:
    return Finding(Level.WARN, message, mend)


def fail(message: str, mend: str) -> Finding:
    return Finding(Level.FAIL, message, mend)
