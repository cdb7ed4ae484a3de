"""Reads the API server.

By `kubectl get --raw`, so that context, login and proxy are exactly those of the kubectl that the
user has; in a pod without kubectl, as the pod's account.
"""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from flameherd_operator.errors import ApiFailure

Json = dict[str, Any]

_PAGE: Final = 500
_TIMEOUT_S: Final = 120
_CODES: Final = {"NotFound": 404, "Forbidden": 403, "Unauthorized": 401}
"""What kubectl calls a refusal → its HTTP status."""


class Reader(Protocol):
    """What commands need of a cluster. Everything raises `ApiFailure`."""

    def get(self, path: str) -> Json:
        """The answer's JSON."""

    def review(self, path: str, body: Mapping[str, Any]) -> Json:
        """Ask the API server a question that is a POST, and changes nothing."""

    def namespace(self) -> str:
        """The one that is meant where none is named."""


class Kubectl:
    """By kubectl, with its own options for context and user."""

    def __init__(self, options: Sequence[str] = (), program: str = "kubectl") -> None:
        self._command = [program, *options]
        if shutil.which(program) is None:
            raise ApiFailure(0, program, "is not on the PATH: install it, or name it by --kubectl")

    def get(self, path: str) -> Json:
        """The answer's JSON."""
        parsed: Json = json.loads(self._run(f"GET {path}", "get", "--raw", path))
        return parsed

    def review(self, path: str, body: Mapping[str, Any]) -> Json:
        """Ask a question that is a POST."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "question.json"
            file.write_text(json.dumps(body))
            answer = self._run(f"POST {path}", "create", "--raw", path, "-f", str(file))
        parsed: Json = json.loads(answer)
        return parsed

    def namespace(self) -> str:
        """The context's."""
        form = "jsonpath={.contexts[0].context.namespace}"
        found = self._run("config view", "config", "view", "--minify", "-o", form)
        return found.strip() or "default"

    def _run(self, what: str, *arguments: str) -> str:
        command = [*self._command, *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ApiFailure(0, what, f"kubectl: {error}") from error
        if done.returncode != 0:
            raise _failure(what, done.stderr)
        return done.stdout


def _failure(what: str, said: str) -> ApiFailure:
    """kubectl prints `Error from server (Forbidden): …`, and other errors as they are."""
    text = said.strip().splitlines()[-1] if said.strip() else "kubectl failed without a word"
    head, _, message = text.partition("): ")
    reason = head.removeprefix("Error from server (")
    if message and reason != head:
        return ApiFailure(_CODES.get(reason, 500), what, message)
    return ApiFailure(0, what, text.removeprefix("error: "))


class InCluster:
    """As the account of this pod, by the operator's client."""

    def __init__(self) -> None:
        # Only here: it imports the `kubernetes` package.
        from flameherd_operator.client import connect

        self._client = connect(None)

    def get(self, path: str) -> Json:
        """The answer's JSON."""
        return self._client.request("GET", path)

    def review(self, path: str, body: Mapping[str, Any]) -> Json:
        """Ask a question that is a POST."""
        return self._client.request("POST", path, body)

    def namespace(self) -> str:
        """The pod's own."""
        path = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
        return path.read_text().strip()


def items(reader: Reader, path: str, query: str = "") -> Iterator[Json]:
    """Every object of a list, page by page."""
    more = ""
    while True:
        page = reader.get(f"{path}?limit={_PAGE}{query and f'&{query}'}{more}")
        yield from page.get("items") or ()
        token = page.get("metadata", {}).get("continue")
        if not token:
            return
        more = f"&continue={token}"
