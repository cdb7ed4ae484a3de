"""One operator at a time: a Lease in the operator's own namespace.

Two replicas wait for it; the one that has it works, and ends when it loses it. A Lease counts as
abandoned when it has not changed for its duration by our own clock: clocks of two nodes are never
compared. Who writes late is refused by the API server, because each write names the version that
it has read.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from flameherd_operator.client import Client
from flameherd_operator.errors import ApiFailure, LeaseLost

logger = logging.getLogger(__name__)

NAME: Final = "flameherd-operator"
_RENEWALS: Final = 5
"""Tries to renew within one duration."""


class Lease:
    """`acquire` it, then `keep` it; `release` it in the end."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        identity: str,
        duration_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._identity = identity
        self._duration_s = duration_s
        self._clock = clock
        self._seen: tuple[object, float] = (None, 0.0)
        """resourceVersion of another's Lease, and since when it is that one."""
        self._renewed_at = float("-inf")

    async def acquire(self) -> None:
        """Returns when the Lease is ours."""
        told = False
        while not await asyncio.to_thread(self.attempt):
            if not told and self._seen[0] is not None:
                logger.info("waiting: another operator holds the Lease %s", NAME)
                told = True
            await asyncio.sleep(self._duration_s / _RENEWALS)
        logger.info("holding the Lease %s as %s", NAME, self._identity)

    async def keep(self) -> None:
        """Renews until cancelled; raises `LeaseLost`."""
        while True:
            await asyncio.sleep(self._duration_s / _RENEWALS)
            if not await asyncio.to_thread(self.attempt):
                # Silence for less than the duration: nobody can have taken it yet.
                if self._clock() - self._renewed_at >= self._duration_s * (1 - 1 / _RENEWALS):
                    raise LeaseLost(f"the Lease {NAME} could not be renewed in time")
                if self._seen[0] is not None:
                    raise LeaseLost(f"another operator has taken the Lease {NAME}")

    def attempt(self) -> bool:
        """Take or renew it; True if it is ours now. Blocks."""
        asked_at = self._clock()
        try:
            held = self._write(asked_at)
        except ApiFailure as error:
            # Also a refusal passes: an API server that has just begun knows no rights yet.
            expected = error.code in (0, 404, 409) or error.code >= 500
            logger.log(logging.DEBUG if expected else logging.WARNING, "Lease: %s", error)
            return False
        if held:
            self._seen = (None, 0.0)
            self._renewed_at = asked_at
        return held

    def release(self) -> None:
        """Let another one have it at once. Blocks."""
        try:
            found = self._client.request("GET", f"{self._path}/{NAME}")
            if found["spec"].get("holderIdentity") == self._identity:
                found["spec"]["holderIdentity"] = ""
                self._client.request("PUT", f"{self._path}/{NAME}", found)
        except ApiFailure as error:
            logger.warning("the Lease was not released, so that it has to expire: %s", error)

    def _write(self, now: float) -> bool:
        try:
            found = self._client.request("GET", f"{self._path}/{NAME}")
        except ApiFailure as error:
            if error.code != 404:
                raise
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": NAME},
                "spec": self._spec({}),
            }
            self._client.request("POST", self._path, body)
            return True
        spec: dict[str, Any] = found.get("spec") or {}
        holder = spec.get("holderIdentity")
        if holder not in (None, "", self._identity):
            version = found["metadata"]["resourceVersion"]
            if self._seen[0] != version:
                self._seen = (version, now)
            if now - self._seen[1] < float(spec.get("leaseDurationSeconds") or 0):
                return False
        self._client.request("PUT", f"{self._path}/{NAME}", found | {"spec": self._spec(spec)})
        return True

    def _spec(self, before: dict[str, Any]) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = before.get("holderIdentity") == self._identity
        transitions = int(before.get("leaseTransitions") or 0)
        return before | {
            "holderIdentity": self._identity,
            # Whole seconds, and never less than what we count on ourselves.
            "leaseDurationSeconds": max(1, -int(-self._duration_s // 1)),
            "acquireTime": before.get("acquireTime") if mine else now,
            "renewTime": now,
            "leaseTransitions": transitions if mine else transitions + 1,
        }
