"""The status server's certificate → what keeps it and what hands it to agents. Pure.

The Secret holds the key and is mounted nowhere: it is in the agents' namespace because all that we
make is there, owned by the agents' account. The ConfigMap holds what agents trust.
"""

import base64
from typing import Any

from flameherd_operator.observed import Serving
from flameherd_operator.settings import STATUS_SECRET, STATUS_TRUST, TRUST_KEY


def serving_bodies(serving: Serving | None) -> list[tuple[str, str, dict[str, Any]]]:
    """(kind, name, body); nothing where agents do not report."""
    if serving is None:
        return []
    data = {name: base64.b64encode(pem).decode() for name, pem in sorted(serving.pems.items())}
    return [
        ("Secret", STATUS_SECRET, {"type": "Opaque", "data": data}),
        ("ConfigMap", STATUS_TRUST, {"data": {TRUST_KEY: serving.trust}}),
    ]
