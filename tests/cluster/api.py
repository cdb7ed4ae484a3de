"""The API server as tests see it: plain HTTP and JSON, so that no client library is trusted."""

import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Json = dict[str, Any]
T = TypeVar("T")

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

GROUP = "/apis/flameherd.dev/v1alpha1"


class Refused(Exception):
    """The API server answered with an error; `status` is its own account of it."""

    def __init__(self, code: int, status: Json) -> None:
        self.code = code
        self.status = status
        super().__init__(f"{code}: {status.get('message', status)}")

    @property
    def causes(self) -> list[tuple[str, str]]:
        """(field, message) of each thing that was wrong with an object."""
        causes = self.status.get("details", {}).get("causes", [])
        return [(cause.get("field", ""), cause.get("message", "")) for cause in causes]


class Api:
    """One user of one API server. `impersonate` makes another user of it."""

    def __init__(self, url: str, ca: Path, token: str, as_user: str = "", as_groups: str = ""):
        self.url, self.ca, self.token = url, ca, token
        self._context = ssl.create_default_context(cafile=str(ca))
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        if as_user:
            self._headers |= {"Impersonate-User": as_user}
        if as_groups:
            self._headers |= {"Impersonate-Group": as_groups}

    def impersonate(self, user: str, group: str = "") -> "Api":
        return Api(self.url, self.ca, self.token, user, group)

    def request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        kind: str = "application/json",
        **query: str,
    ) -> Json:
        """The answer's JSON; raises `Refused`."""
        target = f"{self.url}{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers | {"Content-Type": kind}
        request = urllib.request.Request(target, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60, context=self._context) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            text = error.read()
            try:
                status = json.loads(text)
            except ValueError:
                status = {"message": text.decode(errors="replace")}
            raise Refused(error.code, status) from None
        try:
            parsed: Json = json.loads(text)
        except ValueError:  # /readyz and the like
            return {"text": text.decode()}
        return parsed

    def get(self, path: str, **query: str) -> Json:
        return self.request("GET", path, None, **query)

    def find(self, path: str) -> Json | None:
        """Like `get`; None where there is nothing."""
        try:
            return self.get(path)
        except Refused as error:
            if error.code == 404:
                return None
            raise

    def items(self, path: str, **query: str) -> list[Json]:
        found: list[Json] = self.get(path, **query)["items"]
        return found

    def create(self, path: str, body: Json, **query: str) -> Json:
        return self.request("POST", path, body, **query)

    def merge(self, path: str, body: Json, **query: str) -> Json:
        return self.request("PATCH", path, body, kind=MERGE_PATCH, **query)

    def apply(self, path: str, body: Json, manager: str = "tests") -> Json:
        """Server-side apply."""
        return self.request(
            "PATCH", path, body, kind=APPLY_PATCH, fieldManager=manager, force="true"
        )

    def delete(self, path: str, **query: str) -> Json:
        return self.request("DELETE", path, None, **query)

    def namespace(self, name: str, labels: dict[str, str] | None = None) -> None:
        """Make sure that it is there."""
        meta: Json = {"name": name} | ({"labels": labels} if labels else {})
        self.apply(
            f"/api/v1/namespaces/{name}",
            {"apiVersion": "v1", "kind": "Namespace", "metadata": meta},
        )


def eventually(look: Callable[[], T], what: str, timeout_s: float = 120) -> T:
    """The first true answer of `look`; fails with the last one."""
    deadline = time.monotonic() + timeout_s
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}; last seen: {seen!r}")
        time.sleep(0.1)
