"""Which namespaces a signed-in person may see, as the cluster's own authorization says (SubjectAccessReview).

    verb get, resource profiles.flameherd.dev, in a namespace

There is no such object: the right to `get` it in a namespace is the right to see profiles of that namespace, and the
right to get it in all namespaces is the right to see everything, programs outside Kubernetes included. A
RoleBinding to a role with it is all that a team needs.

The API server is asked for each (person, namespace) and its answers are kept for a short while, so that taking
a right away works within a minute. No answer is no right: the request fails, and says why.
The pod's service account must be allowed to create subjectaccessreviews; its token is read anew for each
question, since kubelets renew it.
"""

import http.client
import json
import logging
import os
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from flameherd_backend.access import Identity, Namespaces
from flameherd_backend.errors import AccessUnknown, EnvironmentProblem

log = logging.getLogger(__name__)

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PATH: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_RIGHT: Final = {"group": "flameherd.dev", "resource": "profiles", "verb": "get"}
_ALLOWED_S: Final = 60.0
_DENIED_S: Final = 10.0
_TIMEOUT_S: Final = 5.0
_MOST_REMEMBERED: Final = 20_000
_AT_ONCE: Final = 8
_STRIPES: Final = 64
_MAX_ANSWER: Final = 1 << 20
_MAX_TOKEN: Final = 1 << 16

Question = tuple[str, tuple[str, ...], str]
"""User, groups, namespace; "" = all namespaces."""


class ApiServer:
    """Asks one API server. `ask` may be called from several threads; connections are kept for the next ones."""

    def __init__(self, host: str, port: int, account: Path) -> None:
        self._host, self._port, self._account = host, port, account
        self._idle: list[http.client.HTTPSConnection] = []
        self._lock = threading.Lock()

    @classmethod
    def of_pod(cls, account: Path = SERVICE_ACCOUNT) -> "ApiServer":
        """That of the cluster which this process runs in. Raises `EnvironmentProblem` outside of one."""
        host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not port.isdigit():
            raise EnvironmentProblem(
                "--kubernetes-access: this is no pod (KUBERNETES_SERVICE_HOST is not set)"
            )
        for name in ("token", "ca.crt"):
            if not os.access(account / name, os.R_OK):
                raise EnvironmentProblem(
                    f"--kubernetes-access: {account / name} cannot be read; the pod needs "
                    "automountServiceAccountToken: true"
                )
        return cls(host, int(port), account)

    def ask(self, question: Question) -> bool:
        """Whether that person may. Raises `AccessUnknown`."""
        user, groups, namespace = question
        attributes = {**_RIGHT, **({"namespace": namespace} if namespace else {})}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "groups": list(groups), "resourceAttributes": attributes},
        }
        where = f"the API server at {self._host}:{self._port}"
        try:
            status, answer = self._post(json.dumps(review).encode())
        except (OSError, http.client.HTTPException) as error:
            raise AccessUnknown(f"{where}: {error or type(error).__name__}") from error
        if status != http.HTTPStatus.CREATED:
            raise AccessUnknown(
                f"{where} answered {status}: {answer[:200].decode('utf-8', 'replace')}"
            )
        try:
            decided: Any = json.loads(answer)["status"]
            return decided.get("allowed") is True and decided.get("denied") is not True
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise AccessUnknown(f"{where} answered with something else") from error

    def _post(self, body: bytes) -> tuple[int, bytes]:
        """One request; a connection that was kept may have been closed meanwhile, a new one has no excuse."""
        with (self._account / "token").open(encoding="ascii") as file:
            token = file.read(_MAX_TOKEN).strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        while True:
            with self._lock:
                kept = self._idle.pop() if self._idle else None
            connection = kept or self._connect()
            try:
                connection.request("POST", _PATH, body, headers)
                response = connection.getresponse()
                answer = response.read(_MAX_ANSWER)
            except (OSError, http.client.HTTPException):
                connection.close()
                if kept is None:
                    raise
                continue
            with self._lock:
                self._idle.append(connection)
            return response.status, answer

    def close(self) -> None:
        """Ends the connections."""
        with self._lock:
            while self._idle:
                self._idle.pop().close()

    def _connect(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=_TIMEOUT_S, context=context
        )


class Reviews:
    """Remembers answers for a while; `visible` is what `Access` asks."""

    def __init__(
        self, ask: Callable[[Question], bool], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._now = now
        self._known: OrderedDict[Question, tuple[float, bool]] = OrderedDict()
        self._lock = threading.Lock()
        # A page asks several things at once: the second waits for what the first is told.
        self._stripes = [threading.Lock() for _ in range(_STRIPES)]
        self._threads = ThreadPoolExecutor(_AT_ONCE, "review")

    def visible(self, person: Identity, stored: frozenset[str]) -> Namespaces:
        """Those of `stored` that the person may see; None = all. Raises `AccessUnknown`."""
        user, groups = person.name, tuple(sorted(set(person.groups or ())))
        with self._stripes[hash((user, groups)) % _STRIPES]:
            if self._answers([(user, groups, "")])[0]:
                return None
            # Programs outside Kubernetes belong to no namespace: only who may see all sees them.
            names = sorted(stored - {""})
            answers = self._answers([(user, groups, name) for name in names])
        return frozenset(name for name, allowed in zip(names, answers, strict=True) if allowed)

    def _answers(self, questions: list[Question]) -> list[bool]:
        now = self._now()
        with self._lock:
            known = [self._known.get(question, (now, False)) for question in questions]
        unknown = [each for each, (until, _) in zip(questions, known, strict=True) if until <= now]
        told = dict(zip(unknown, self._threads.map(self._ask, unknown), strict=True))
        self._remember(told.items())
        return [
            told.get(each, allowed) for each, (_, allowed) in zip(questions, known, strict=True)
        ]

    def _remember(self, told: Iterable[tuple[Question, bool]]) -> None:
        now = self._now()
        with self._lock:
            for question, allowed in told:
                self._known[question] = (now + (_ALLOWED_S if allowed else _DENIED_S), allowed)
                self._known.move_to_end(question)
            while len(self._known) > _MOST_REMEMBERED:
                self._known.popitem(last=False)

    def close(self) -> None:
        """Ends the threads that ask."""
        self._threads.shutdown(cancel_futures=True)
