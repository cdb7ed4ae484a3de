"""Reads the API server.

Through `kubectl proxy` on a socket of our own, so that context, login and proxy are exactly those of
the kubectl that the user has, and a question costs no new process; in a pod without kubectl, as the
pod's account.
"""

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from flameherd_operator.errors import ApiFailure

Json = dict[str, Any]

_PAGE: Final = 500
_TIMEOUT_S: Final = 120
_MAX_MESSAGE: Final = 500


class Reader(Protocol):
    """What commands need of a cluster. Everything raises `ApiFailure`."""

    def get(self, path: str) -> Json:
        """The answer's JSON."""

    def review(self, path: str, body: Mapping[str, Any]) -> Json:
        """Ask the API server a question that is a POST, and changes nothing."""

    def namespace(self) -> str:
        """The one that is meant where none is named."""

    def close(self) -> None:
        """Nothing is asked any more."""


class Kubectl:
    """By kubectl, with its own options for context and user."""

    def __init__(self, options: Sequence[str] = (), program: str = "kubectl") -> None:
        self._command = [program, *options]
        self._open = contextlib.ExitStack()
        self._proxy: _Connection | None = None
        if shutil.which(program) is None:
            raise ApiFailure(0, program, "is not on the PATH: install it, or name it by --kubectl")

    def get(self, path: str) -> Json:
        """The answer's JSON."""
        return self._ask("GET", path, None)

    def review(self, path: str, body: Mapping[str, Any]) -> Json:
        """Ask a question that is a POST."""
        return self._ask("POST", path, json.dumps(body))

    def namespace(self) -> str:
        """The context's."""
        form = "jsonpath={.contexts[0].context.namespace}"
        command = [*self._command, "config", "view", "--minify", "-o", form]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ApiFailure(0, "kubectl config view", str(error)) from error
        if done.returncode != 0:
            raise ApiFailure(0, "kubectl config view", _last_line(done.stderr))
        return done.stdout.strip() or "default"

    def close(self) -> None:
        """End the proxy."""
        self._proxy = None
        self._open.close()

    def _ask(self, method: str, path: str, body: str | None) -> Json:
        what = f"{method} {path}"
        if self._proxy is None:
            self._proxy = self._start()
        try:
            self._proxy.request(method, path, body, {"Content-Type": "application/json"})
            answer = self._proxy.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ApiFailure(0, what, f"no answer by way of kubectl proxy: {error}") from error
        if not 200 <= answer.status <= 299:
            raise ApiFailure(answer.status, what, _message(data))
        parsed: Json = json.loads(data)
        return parsed

    def _start(self) -> "_Connection":
        # Only this user can enter the folder, and so reach the cluster by the socket.
        folder = self._open.enter_context(tempfile.TemporaryDirectory(prefix="kubectl-flameherd-"))
        path = str(Path(folder) / "proxy")
        try:
            child = subprocess.Popen(
                [*self._command, "proxy", f"--unix-socket={path}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        except OSError as error:
            raise ApiFailure(0, "kubectl proxy", str(error)) from error
        self._open.callback(_end, child)
        assert child.stdout is not None
        assert child.stderr is not None
        if not child.stdout.readline():  # it tells when it serves; without a word it has ended
            raise ApiFailure(0, "kubectl proxy", _last_line(child.stderr.read()))
        connection = _Connection(path)
        self._open.callback(connection.close)
        return connection


class _Connection(http.client.HTTPConnection):
    """HTTP on a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Called by the base class when there is no connection."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(self._path)


def _end(child: "subprocess.Popen[str]") -> None:
    child.terminate()
    child.communicate(timeout=_TIMEOUT_S)


def _message(data: bytes) -> str:
    """The API server's own words, or kubectl's."""
    try:
        parsed = json.loads(data)
    except ValueError:
        parsed = None
    text = parsed.get("message") if isinstance(parsed, dict) else None
    return str(text or data.decode(errors="replace").strip())[:_MAX_MESSAGE]


def _last_line(said: str) -> str:
    lines = said.strip().splitlines() or ["kubectl failed without a word"]
    return lines[-1].removeprefix("error: ")


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

    def close(self) -> None:
        """Nothing to end."""


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
