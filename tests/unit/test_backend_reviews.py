"""Who sees what behind a proxy that signs people in: what is asked, how long answers hold, and that no answer is no right."""

import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flameherd_backend.access import Access, Identity
from flameherd_backend.errors import AccessUnknown, EnvironmentProblem, Unauthenticated
from flameherd_backend.reviews import ApiServer, Question, Reviews

from tests.collector.certificates import issue, make_ca

STORED = frozenset({"", "shop", "bank"})


class Cluster:
    """Answers from a set of rights; counts what it is asked."""

    def __init__(self) -> None:
        self.rights: set[Question] = set()
        self.asked: list[Question] = []
        self.away = False
        self.now = 1000.0

    def ask(self, question: Question) -> bool:
        self.asked.append(question)
        if self.away:
            raise AccessUnknown("away")
        return question in self.rights


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def access(cluster: Cluster) -> Iterator[Access]:
    reviews = Reviews(cluster.ask, lambda: cluster.now)
    yield Access(None, "X-Forwarded-User", reviews.visible, "X-Forwarded-Groups")
    reviews.close()


def person(access: Access, name: str, groups: str = "") -> Identity:
    return access.identify(None, {"x-forwarded-user": name, "x-forwarded-groups": groups})


def sees(access: Access, identity: Identity) -> set[str] | None:
    visible = access.visible(identity, lambda: STORED)
    return None if visible is None else set(visible)


def test_a_person_sees_where_the_cluster_says_so(access: Access, cluster: Cluster) -> None:
    ann, bob = person(access, "ann", "b, a,,a"), person(access, "bob")
    assert (ann.may_send, ann.groups) == (frozenset(), ("b", "a", "a"))
    cluster.rights = {("ann", ("a", "b"), "shop"), ("ann", ("a", "b"), "elsewhere")}
    assert sees(access, ann) == {"shop"}
    # First the whole cluster, then each namespace that there is; nobody sees programs outside of all by one.
    assert cluster.asked[0] == ("ann", ("a", "b"), "")
    assert sorted(cluster.asked[1:]) == [("ann", ("a", "b"), "bank"), ("ann", ("a", "b"), "shop")]
    assert sees(access, bob) == set()


def test_who_may_see_the_cluster_sees_what_is_outside_of_it_too(
    access: Access, cluster: Cluster
) -> None:
    cluster.rights = {("root", (), "")}
    assert sees(access, person(access, "root")) is None
    assert cluster.asked == [("root", (), "")]


def test_answers_hold_for_a_while_and_a_right_that_is_taken_away_ends(
    access: Access, cluster: Cluster
) -> None:
    ann = person(access, "ann")
    cluster.rights = {("ann", (), "shop")}
    for _ in range(3):
        assert sees(access, ann) == {"shop"}
    assert len(cluster.asked) == 3
    cluster.rights = {("ann", (), "bank")}
    cluster.now += 11
    assert sees(access, ann) == {"shop", "bank"}  # what was refused is asked again soon
    cluster.now += 50
    assert sees(access, ann) == {"bank"}


def test_no_answer_is_no_right(access: Access, cluster: Cluster) -> None:
    ann = person(access, "ann")
    cluster.rights = {("ann", (), "shop")}
    cluster.away = True
    with pytest.raises(AccessUnknown):
        sees(access, ann)
    cluster.away = False
    assert sees(access, ann) == {"shop"}
    cluster.away = True
    cluster.now += 61
    with pytest.raises(AccessUnknown):
        sees(access, ann)


def test_headers_count_where_they_are_expected_only() -> None:
    headers = {"x-forwarded-user": "ann"}
    with pytest.raises(Unauthenticated):
        Access(None, "X-Remote-User").identify(None, headers)
    with pytest.raises(Unauthenticated):
        Access(None, "X-Forwarded-User").identify(None)  # on the ports of senders there is no proxy
    assert Access().identify(None, headers) == Identity("", None, None)


class Answers(http.server.BaseHTTPRequestHandler):
    """An API server that says what a test told it to."""

    protocol_version = "HTTP/1.1"
    answer: tuple[int, bytes] = (201, b"")
    seen: list[tuple[str, str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.path, self.headers["Authorization"], body))
        status, text = self.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        if status == 201:
            self.send_header(
                "Connection", "close"
            )  # each of its connections is stale the next time
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def account(tmp_path: Path) -> Iterator[tuple[ApiServer, type[Answers], Path]]:
    """An `ApiServer` of a served answer, and its service account's folder."""
    ca = make_ca(tmp_path)
    pair = issue(tmp_path, ca, "apiserver", "IP:127.0.0.1")
    (tmp_path / "ca.crt").write_bytes(ca.cert.read_bytes())
    (tmp_path / "token").write_text("first\n")
    answers = type("Served", (Answers,), {"seen": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), answers)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    asking = ApiServer("127.0.0.1", server.server_address[1], tmp_path)
    yield asking, answers, tmp_path
    asking.close()
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_question_is_a_review_and_the_token_is_read_anew(
    account: tuple[ApiServer, type[Answers], Path],
) -> None:
    server, answers, folder = account
    answers.answer = (201, b'{"status": {"allowed": true}}')
    assert server.ask(("ann", ("a",), "shop"))
    (folder / "token").write_text("second")
    answers.answer = (201, b'{"status": {"allowed": true, "denied": true}}')
    assert not server.ask(("ann", (), ""))
    right = {"group": "flameherd.dev", "resource": "profiles", "verb": "get"}
    assert [(path, token, body["spec"]) for path, token, body in answers.seen] == [
        (
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            "Bearer first",
            {"user": "ann", "groups": ["a"], "resourceAttributes": {**right, "namespace": "shop"}},
        ),
        (
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            "Bearer second",
            {"user": "ann", "groups": [], "resourceAttributes": right},
        ),
    ]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((403, b'{"message": "cannot create"}'), "answered 403: .*cannot create"),
        ((201, b"no json"), "something else"),
        ((201, b'{"status": null}'), "something else"),
        ((201, b"[]"), "something else"),
    ],
)
def test_an_answer_that_is_none_is_said(
    account: tuple[ApiServer, type[Answers], Path], answer: tuple[int, bytes], says: str
) -> None:
    server, answers, _ = account
    answers.answer = answer
    with pytest.raises(AccessUnknown, match=says):
        server.ask(("ann", (), "shop"))


@pytest.mark.parametrize("allowed", [b"false", b'"true"', b"1", b"null"])
def test_only_true_is_allowed(
    account: tuple[ApiServer, type[Answers], Path], allowed: bytes
) -> None:
    server, answers, _ = account
    answers.answer = (201, b'{"status": {"allowed": ' + allowed + b"}}")
    assert not server.ask(("ann", (), "shop"))


def test_outside_of_a_pod_it_is_said_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(EnvironmentProblem, match="this is no pod"):
        ApiServer.of_pod(tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    with pytest.raises(EnvironmentProblem, match="automountServiceAccountToken"):
        ApiServer.of_pod(tmp_path)
