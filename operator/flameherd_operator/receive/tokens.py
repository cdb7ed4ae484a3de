"""Whose request it is: an agent's token → its node, by the API server's TokenReview.

The API server signs into the token of a pod which node the pod is on, so that an agent can only
speak for its own node. A token is asked about once in ten minutes, not at every report: a pod that
is deleted may be believed for so long, which lets it say what it could have said before.

What a token claims is looked at first, without trust, so that nobody can make us ask the API server
about what it would refuse anyway.
"""

import asyncio
import base64
import binascii
import hashlib
import json
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from flameherd_policy.report import AUDIENCE

from flameherd_operator.errors import ApiFailure

REMEMBERED_S: Final = 600.0
REFUSED_S: Final = 30.0
MAX_TOKEN: Final = 8192
MAX_REMEMBERED: Final = 40_000
"""A token of each node, and its successor."""
_ASKING: Final = 8
"""Reviews at one time."""
_NODE: Final = "authentication.kubernetes.io/node-name"
"""Extra of a user whose token is bound to a pod: Kubernetes 1.30 or newer."""

Review = Callable[[str], Mapping[str, Any]]
"""A token → `status` of its TokenReview. Blocks; raises `ApiFailure`."""


class Denied(Exception):
    """This request is not taken. `code` is the HTTP status."""

    def __init__(self, code: int, reason: str, message: str, retry_s: int = 0) -> None:
        self.code = code
        self.reason = reason
        self.retry_s = retry_s
        super().__init__(message)


class _Known(msgspec.Struct):
    until: float
    node: str
    denied: str
    """Why it is refused; "" = it is good."""


class Tokens:
    """`node_of` a token. For one event loop."""

    def __init__(
        self,
        review: Review,
        account: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._review = review
        self._account = account
        self._clock = clock
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._asking = asyncio.Semaphore(_ASKING)
        self.reviews = 0

    async def node_of(self, token: str) -> str:
        """Raises `Denied`."""
        now = self._clock()
        expires = self._claimed(token, now)
        key = hashlib.sha256(token.encode()).digest()
        known = self._known.get(key)
        if known is None or now >= known.until:
            known = await self._ask(token, expires)
            self._known[key] = known
            self._known.move_to_end(key)
            while len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        if known.denied:
            raise Denied(401, "Unauthorized", known.denied)
        return known.node

    def _claimed(self, token: str, now: float) -> float:
        """When it ends, by its own words; raises `Denied` if these words cannot be an agent's."""
        if len(token) > MAX_TOKEN or token.count(".") != 2:
            raise Denied(401, "Unauthorized", "this is not a token of a ServiceAccount")
        middle = token.split(".")[1]
        try:
            claims = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
            audiences, subject, expires = claims["aud"], claims["sub"], float(claims["exp"])
        except (binascii.Error, ValueError, KeyError, TypeError) as error:
            raise Denied(401, "Unauthorized", "this is not a token of a ServiceAccount") from error
        if not isinstance(audiences, list) or AUDIENCE not in audiences:
            said = f"the token is not for {AUDIENCE}: mount one with that audience"
            raise Denied(401, "WrongAudience", said)
        if subject != self._account:
            raise Denied(403, "WrongAccount", f"only {self._account} reports")
        if now >= expires:
            raise Denied(401, "Expired", "the token has expired: read its file again")
        return expires

    async def _ask(self, token: str, expires: float) -> _Known:
        async with self._asking:
            self.reviews += 1
            try:
                status = await asyncio.to_thread(self._review, token)
            except ApiFailure as error:
                said = f"the token cannot be checked now: {error}"
                raise Denied(503, "ReviewFailed", said, retry_s=10) from error
        now = self._clock()
        user = status.get("user") or {}
        nodes = list((user.get("extra") or {}).get(_NODE) or ())
        denied = ""
        if not status.get("authenticated") or AUDIENCE not in (status.get("audiences") or ()):
            denied = f"the API server refuses the token: {status.get('error') or 'no reason given'}"
        elif user.get("username") != self._account:
            denied = f"only {self._account} reports"
        elif len(nodes) != 1:
            denied = (
                "the token names no node: it must be bound to a pod, and Kubernetes must be 1.30 "
                "or newer"
            )
        if denied:
            return _Known(now + REFUSED_S, "", denied)
        # Spread out, so that tokens of one moment are not asked about in one moment for ever.
        spread = REMEMBERED_S * random.uniform(0.8, 1.2)  # noqa: S311
        return _Known(min(expires, now + spread), str(nodes[0]), "")
