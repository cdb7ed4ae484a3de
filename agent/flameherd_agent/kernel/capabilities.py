"""Which capabilities this process has, and what is lost without one.

Names and bits: Linux `include/uapi/linux/capability.h`. `docs/security.md` says what each serves.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from flameherd_agent.errors import EnvironmentProblem

BITS: Final = {
    "CAP_DAC_OVERRIDE": 1,
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_RESOURCE": 24,
    "CAP_SYSLOG": 34,
    "CAP_PERFMON": 38,
    "CAP_BPF": 39,
    "CAP_CHECKPOINT_RESTORE": 40,
}

NEEDED: Final = ("CAP_BPF", "CAP_PERFMON")

_INCLUDED_IN: Final = {
    "CAP_BPF": "CAP_SYS_ADMIN",
    "CAP_PERFMON": "CAP_SYS_ADMIN",
    "CAP_CHECKPOINT_RESTORE": "CAP_SYS_ADMIN",
    "CAP_DAC_READ_SEARCH": "CAP_DAC_OVERRIDE",
}

LOST: Final = {
    "CAP_SYS_PTRACE": "stacks of other users' processes and of containers are cut short or stay unnamed",
    "CAP_DAC_READ_SEARCH": "executables that only their owner may read stay without tables and names",
    "CAP_CHECKPOINT_RESTORE": "code that was deleted or replaced while it runs stays without tables and names",
}
"""Capability → what is lost without it while the rest goes on. CAP_SYSLOG is told of by who reads kallsyms."""


def effective(status: str) -> frozenset[str]:
    """The names of CapEff in the text of a /proc/PID/status, as far as they matter here."""
    found = re.search(r"^CapEff:\s+([0-9a-f]+)$", status, re.MULTILINE)
    bits = int(found[1], 16) if found else 0
    return frozenset(name for name, bit in BITS.items() if bits >> bit & 1)


def lacking(names: Iterable[str], have: frozenset[str] | None = None) -> list[str]:
    """Those of `names` that this process (or one that has `have`) lacks, also by way of a wider one."""
    if have is None:
        have = effective(Path("/proc/self/status").read_text())
    return [name for name in names if name not in have and _INCLUDED_IN.get(name, name) not in have]


def how_to_give(names: Iterable[str]) -> str:
    """What to do, as the end of a message."""
    text = " and ".join(names)
    return f"give {text} (container: securityContext.capabilities.add), or run as root"


def require() -> None:
    """Raises EnvironmentProblem that names what is missing of the capabilities without which nothing works."""
    missing = lacking(NEEDED)
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise EnvironmentProblem(
            f"cannot load eBPF programs: {' and '.join(missing)} {are} missing: {how_to_give(missing)}; "
            "`flameherd doctor` tells more"
        )
