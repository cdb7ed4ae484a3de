"""Files of endpoints → the agents' one Secret. Pure.

Every node gets it, since any pod may run anywhere: what an endpoint needs, every node can read. A
gateway in the cluster avoids that.
"""

import base64
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from flameherd_operator.render.slots import Slot

MAX_SECRET_BYTES: Final = 900_000
"""Of the 1 MiB that a Secret may hold."""


class Credentials(msgspec.Struct, frozen=True):
    """The Secret's body, and the slots whose files did not fit."""

    body: dict[str, Any]
    left_out: frozenset[str]

    def __repr__(self) -> str:
        """Without the body: it is credentials."""
        return f"Credentials({len(self.body['data'])} files)"


def credentials(slots: Sequence[Slot]) -> Credentials:
    """All files, equal ones once, as far as they fit; slots are in order of precedence."""
    files: dict[str, bytes] = {}
    left_out = set()
    size = 0
    for slot in slots:
        new = {name: data for name, data in slot.files.items() if name not in files}
        more = sum(len(name) + len(data) for name, data in new.items())
        if size + more > MAX_SECRET_BYTES:
            left_out.add(slot.slot.name)
            continue
        files |= new
        size += more
    data = {name: base64.b64encode(data).decode("ascii") for name, data in sorted(files.items())}
    return Credentials({"type": "Opaque", "data": data}, frozenset(left_out))
