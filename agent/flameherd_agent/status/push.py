"""Sends one report at a time to the operator, on a thread of its own.

TLS by the certificates that the operator handed to us, and by no others; the token and the
certificates are files that the kubelet renews, so they are read for each request. No proxy, no
redirect, one connection for each report: with thousands of agents an idle connection of each would
cost the operator more than the handshakes do.
"""

import http.client
import ssl
import threading
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
from flameherd_policy.report import MAX_ERROR, PATH, StatusDelta, write_report

from flameherd_agent.errors import UsageError
from flameherd_agent.status.reporter import Outcome

TIMEOUT_S: Final = 15.0
_MAX_ANSWER: Final = 4096
_MAX_RETRY_S: Final = 600.0


class _Answer(msgspec.Struct, rename="camel"):
    """The operator's, taken or not."""

    interval_seconds: float = 0.0
    reason: str = ""
    message: str = ""


class Pusher:
    """`send` a report, then look at `outcome` until it is there.

    `folder` holds `token` and `ca.crt`. Raises UsageError for a URL that cannot work.
    """

    def __init__(self, url: str, folder: Path) -> None:
        parts = urlsplit(url)
        if parts.scheme != "https" or not parts.hostname or parts.path not in ("", "/"):
            raise UsageError(f"--status-url {url}: write https://host[:port]")
        self._host = parts.hostname
        self._port = parts.port or 443
        self._folder = folder
        self._url = url
        self._wake = threading.Condition()
        self._report: StatusDelta | None = None
        self._outcome: Outcome | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def send(self, report: StatusDelta) -> None:
        """At once and without waiting; the one before must have had its outcome."""
        with self._wake:
            self._report, self._outcome = report, None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="status", daemon=True)
                self._thread.start()
            self._wake.notify()

    def outcome(self) -> Outcome | None:
        """What became of the report that was sent last, once."""
        with self._wake:
            outcome, self._outcome = self._outcome, None
            return outcome

    def close(self) -> None:
        """Nothing is sent any more; a request under way is left to itself."""
        with self._wake:
            self._closed = True
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                while self._report is None and not self._closed:
                    self._wake.wait()
                if self._closed:
                    return
                report, self._report = self._report, None
            assert report is not None
            outcome = self.post(write_report(report))
            with self._wake:
                self._outcome = outcome

    def post(self, body: bytes) -> Outcome:
        """One request. Whatever goes wrong is an outcome."""
        try:
            token = (self._folder / "token").read_text().strip()
            # The operator may not have made its certificate yet, nor the kubelet renewed the file.
            context = ssl.create_default_context(cafile=str(self._folder / "ca.crt"))
        except OSError as error:
            return self._failed(f"{type(error).__name__}: {error}")
        connection = http.client.HTTPSConnection(
            self._host, self._port, timeout=TIMEOUT_S, context=context
        )
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        try:
            connection.request("POST", PATH, body, headers)
            response = connection.getresponse()
            text = response.read(_MAX_ANSWER)
            retry = response.getheader("Retry-After") or ""
        except (OSError, http.client.HTTPException, ValueError) as error:
            return self._failed(f"{type(error).__name__}: {error}")
        finally:
            connection.close()
        try:
            answer = msgspec.json.decode(text, type=_Answer)
        except ValueError:
            answer = _Answer(message=f"an answer that is not JSON: {text[:80]!r}")
        if response.status == 200:
            return Outcome(True, interval_s=answer.interval_seconds)
        said = f"HTTP {response.status} {answer.reason}: {answer.message}"
        wait = float(retry) if retry.isascii() and retry.isdigit() else 0.0
        return self._failed(said, min(wait, _MAX_RETRY_S))

    def _failed(self, why: str, retry_s: float = 0.0) -> Outcome:
        return Outcome(False, f"{self._url}: {why}"[:MAX_ERROR], retry_s)
