"""The server that agents report to: its certificate, whose token it believes, what it refuses."""

import asyncio
import base64
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from flameherd_operator.errors import ApiFailure
from flameherd_operator.observed import Inputs, Serving
from flameherd_operator.receive.endpoint import endpoint_slice
from flameherd_operator.receive.keys import HANDED_OUT, RENEW_BEFORE, VALID, bundle, kept, load
from flameherd_operator.receive.server import Receiver
from flameherd_operator.receive.tokens import REFUSED_S, REMEMBERED_S, Denied, Tokens
from flameherd_operator.render.desired import desired
from flameherd_operator.reports import Reports
from flameherd_operator.settings import Settings
from flameherd_policy.report import MAX_REPORT_BYTES, PATH

NAMES = ("localhost", "flameherd-status.x.svc")
NOW = datetime(2026, 6, 1, tzinfo=UTC)
ACCOUNT = "system:serviceaccount:flameherd-agents:flameherd-agent"

# The certificate


def test_a_certificate_is_kept_and_replaced_in_time() -> None:
    first = kept({}, NAMES, NOW)
    assert sorted(first) == ["tls.crt", "tls.key"]
    assert kept(first, NAMES, NOW + timedelta(days=100)) == first
    later = NOW + VALID - RENEW_BEFORE
    both = kept(first, NAMES, later)
    # The new one is handed out, the old one is served.
    assert (both["tls.crt"], both["tls.key"]) == (first["tls.crt"], first["tls.key"])
    assert bundle(both) == (both["tls.crt"] + both["next.crt"]).decode()
    assert kept(both, NAMES, later + HANDED_OUT / 2) == both
    then = kept(both, NAMES, later + HANDED_OUT + timedelta(hours=2))
    assert then == {"tls.crt": both["next.crt"], "tls.key": both["next.key"]}


@pytest.mark.parametrize(
    "spoiled",
    [
        lambda good: {},
        lambda good: good | {"tls.key": b"x"},
        lambda good: good | {"tls.crt": b""},
        lambda good: good | {"tls.key": kept({}, NAMES, NOW)["tls.key"]},
        lambda good: kept({}, ("another.svc",), NOW),
        lambda good: kept({}, NAMES, NOW - 2 * VALID),
    ],
)
def test_what_cannot_be_used_is_replaced(spoiled: Callable[[Any], Mapping[str, bytes]]) -> None:
    data = spoiled(kept({}, NAMES, NOW))
    made = kept(data, NAMES, NOW)
    assert made != data
    assert sorted(made) == ["tls.crt", "tls.key"]
    certificate = x509.load_pem_x509_certificate(made["tls.crt"])
    assert certificate.not_valid_after_utc - NOW > VALID - timedelta(days=1)


def test_keys_are_kept_where_agents_cannot_read_them() -> None:
    pems = kept({}, NAMES, NOW)
    serving = Serving(pems, bundle(pems))
    settings = Settings(status_host="0.0.0.0", status_address="10.0.0.1")
    made = {
        (o["kind"], o["metadata"]["name"]): o
        for o in desired(Inputs(owner_uid="u", serving=serving), settings).objects
    }
    secret = made["Secret", "flameherd-status"]["data"]
    assert {k: base64.b64decode(v) for k, v in secret.items()} == pems
    assert made["ConfigMap", "flameherd-status-trust"]["data"] == {"ca.crt": bundle(pems)}
    assert "PRIVATE" not in bundle(pems)
    assert "PRIVATE" not in repr(Inputs(serving=serving))
    assert ("Secret", "flameherd-status") not in {
        (o["kind"], o["metadata"]["name"]) for o in desired(Inputs(), settings).objects
    }


def test_the_endpoint_is_this_pod() -> None:
    made = endpoint_slice("sys", "fd00::1", 8443, "uid")
    assert made["addressType"] == "IPv6"
    assert made["endpoints"][0]["addresses"] == ["fd00::1"]
    assert made["metadata"]["ownerReferences"][0]["uid"] == "uid"


# Tokens


def token(number: int = 0, **claims: Any) -> str:
    body = {"aud": ["flameherd-status"], "sub": ACCOUNT, "exp": 1e12, "jti": number} | claims
    middle = base64.urlsafe_b64encode(json.dumps(body).encode()).decode().rstrip("=")
    return f"e30.{middle}.sig"


def reviewed(node: str = "n1", **changed: Any) -> dict[str, Any]:
    extra = {"authentication.kubernetes.io/node-name": [node]} if node else {}
    user = {"username": ACCOUNT, "extra": extra}
    return {"authenticated": True, "audiences": ["flameherd-status"], "user": user} | changed


class Api:
    """Stands for the API server, which no unit test has."""

    def __init__(self, answer: dict[str, Any] | ApiFailure) -> None:
        self.answer = answer
        self.asked = 0
        self.now = 0.0
        self.tokens = Tokens(self.review, ACCOUNT, lambda: self.now)

    def review(self, _token: str) -> dict[str, Any]:
        self.asked += 1
        if isinstance(self.answer, ApiFailure):
            raise self.answer
        return self.answer

    def node(self, text: str) -> str:
        return asyncio.run(self.tokens.node_of(text))

    def denied(self, text: str) -> Denied:
        with pytest.raises(Denied) as caught:
            self.node(text)
        return caught.value


def test_a_token_is_asked_about_once_in_a_while() -> None:
    api = Api(reviewed())
    assert [api.node(token()) for _ in range(3)] == ["n1"] * 3
    assert api.asked == 1
    assert api.node(token(1)) == "n1"
    assert api.asked == 2
    api.now = 2 * REMEMBERED_S
    api.answer = reviewed("", authenticated=False, error="the pod is gone")
    assert "the pod is gone" in str(api.denied(token()))


def test_a_token_is_not_believed_beyond_its_end() -> None:
    api = Api(reviewed())
    api.node(token(exp=10))
    api.now = 10
    assert api.denied(token(exp=10)).reason == "Expired"


@pytest.mark.parametrize(
    "text",
    [
        "", "x", "a.b.c", "a.e30.c", "." * 9000, token(aud="x"), token(aud=["other"]),
        token(sub="system:serviceaccount:shop:default"), token(exp=-1), token(exp="x"), token(aud=3),
    ],
)  # fmt: skip
def test_what_cannot_be_an_agents_token_is_not_even_asked_about(text: str) -> None:
    api = Api(reviewed())
    assert api.denied(text).code in (401, 403)
    assert api.asked == 0


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({}, "refuses the token"),
        (reviewed(authenticated=False), "refuses the token"),
        (reviewed(audiences=["https://kubernetes.default.svc"]), "refuses the token"),
        (reviewed(user={"username": "system:admin"}), "only"),
        (reviewed(""), "names no node"),
    ],
)
def test_what_the_api_server_refuses_is_remembered(answer: dict[str, Any], says: str) -> None:
    api = Api(answer)
    for _ in range(3):
        assert says in str(api.denied(token()))
    assert api.asked == 1
    api.now = REFUSED_S + 1
    api.answer = reviewed()
    assert api.node(token()) == "n1"


def test_an_api_server_that_is_away_is_no_refusal() -> None:
    api = Api(ApiFailure(0, "POST", "no answer"))
    denied = api.denied(token())
    assert (denied.code, denied.retry_s > 0) == (503, True)
    api.answer = reviewed()
    assert api.node(token()) == "n1"


# The server


class Server:
    """A `Receiver` that serves, and a client of it."""

    def __init__(self, folder: Path) -> None:
        pems = kept({}, NAMES, datetime.now(UTC))
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load(self.context, pems)
        self.trust = folder / "ca.crt"
        self.trust.write_text(bundle(pems))
        self.reports = Reports()
        self.now = 1000.0
        self.flipped = 0
        self.receiver = Receiver(self.reports, self.node_of, self.flip, lambda: self.now)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    async def node_of(self, text: str) -> str:
        if text == "bad":
            raise Denied(401, "Unauthorized", "not an agent")
        return text

    def flip(self) -> None:
        self.flipped += 1

    def post(self, body: bytes, node: str = "n1", path: str = PATH) -> tuple[int, dict[str, Any]]:
        request = urllib.request.Request(
            f"https://localhost:{self.port}{path}", body, {"Authorization": f"Bearer {node}"}
        )
        context = ssl.create_default_context(cafile=str(self.trust))
        try:
            with urllib.request.urlopen(request, timeout=30, context=context) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
                said = json.loads(text) if error.code != 404 else {}
                return error.code, said | {"retry": error.headers["Retry-After"]}

    def run(self, client: Callable[[], None]) -> None:
        async def both() -> None:
            serving = asyncio.create_task(self.receiver.serve("127.0.0.1", self.port, self.context))
            try:
                await asyncio.to_thread(self._wait)
                await asyncio.to_thread(client)
            finally:
                serving.cancel()
                with suppress(asyncio.CancelledError):
                    await serving

        asyncio.run(both())

    def _wait(self) -> None:
        for _ in range(1000):
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return


GOOD = b'{"seconds": 60, "policies": [{"name": "shop/a", "podsMatched": 3}]}'


def test_reports_are_taken_over_tls(tmp_path: Path) -> None:
    server = Server(tmp_path)

    def client() -> None:
        code, said = server.post(GOOD)
        assert (code, said["reason"], said["retry"]) == (503, "NotReady", "5")
        server.reports.know(frozenset({"shop/a"}))
        assert server.post(GOOD) == (200, {"intervalSeconds": 60})
        assert server.flipped == 1
        assert server.post(GOOD, "n2") == (200, {"intervalSeconds": 60})
        assert server.post(GOOD)[0] == 200
        assert server.flipped == 2
        assert server.reports.snapshot(server.now).nodes == ("n1", "n2")

    server.run(client)


def test_what_is_refused_says_why(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.reports.know(frozenset({"shop/a"}))

    def client() -> None:
        code, said = server.post(GOOD, "bad")
        assert (code, said["reason"]) == (401, "Unauthorized")
        code, said = server.post(b'{"seconds": -1}', "a")
        assert (code, said["reason"]) == (400, "Unreadable")
        assert "seconds" in said["message"]
        code, said = server.post(b" " * (MAX_REPORT_BYTES + 1), "b")
        assert (code, said["reason"]) == (413, "TooLarge")
        assert server.post(GOOD, path="/")[0] == 404
        codes = [server.post(GOOD, "c")[0] for _ in range(6)]
        assert codes == [200] * 4 + [429] * 2
        server.now += 6
        assert [server.post(GOOD, "c")[0] for _ in range(2)] == [200, 429]
        assert server.post(GOOD, "d")[0] == 200
        assert len(server.reports) == 2

    server.run(client)


def test_a_certificate_can_change_while_it_serves(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.reports.know(frozenset())

    def client() -> None:
        assert server.post(GOOD)[0] == 200
        pems = kept({}, NAMES, datetime.now(UTC))
        load(server.context, pems)
        with pytest.raises(urllib.error.URLError, match="certificate verify failed"):
            server.post(GOOD)
        server.trust.write_text(server.trust.read_text() + bundle(pems))
        assert server.post(GOOD)[0] == 200

    server.run(client)
