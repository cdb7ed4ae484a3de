"""The API server, for writes and for what is not watched: the one module that wraps the
`kubernetes` package.

Requests and answers are plain JSON; writes are server-side applies with our own field manager, so
that fields of others stay theirs. Calls block: they run in threads.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import kubernetes.client
import kubernetes.config
import urllib3.exceptions
from flameherd_policy.report import AUDIENCE
from flameherd_policy.resources import EXPORT_SECRET_TYPE, GROUP, RESOURCES, VERSION, Resource

from flameherd_operator.errors import ApiFailure
from flameherd_operator.observed import SecretData, Seen
from flameherd_operator.settings import MANAGER, PLURALS

_TIMEOUT_S: Final = (10, 60)
_JSON: Final = "application/json"
_APPLY: Final = "application/apply-patch+yaml"
_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_PAGE: Final = "500"
_MAX_MESSAGE: Final = 500
_RIGHTS: Final = " (a right is missing: `helm upgrade` grants what this version needs)"

Json = dict[str, Any]


def connect(kubeconfig: Path | None) -> "Client":
    """By a kubeconfig file, or as the pod's ServiceAccount."""
    configuration = kubernetes.client.Configuration()
    if kubeconfig is not None:
        load = kubernetes.config.load_kube_config
        load(str(kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]
    else:
        load_account = kubernetes.config.load_incluster_config
        load_account(client_configuration=configuration)  # type: ignore[no-untyped-call]
    configuration.connection_pool_maxsize = 16
    return Client(kubernetes.client.ApiClient(configuration))


class Client:
    """Reads and writes. Every method raises `ApiFailure`."""

    def __init__(self, api: Any) -> None:
        self._api = api

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] = {},
        content: str = _JSON,
        accept: str = _JSON,
    ) -> Json:
        """One request; the answer's JSON."""
        what = f"{method} {path}"
        arguments = self._api.param_serialize(
            method,
            path,
            query_params=list(query.items()),
            header_params={"Content-Type": content, "Accept": accept},
            # The package writes JSON itself, and takes other kinds as text.
            body=body if content == _JSON or body is None else json.dumps(body),
            auth_settings=["BearerToken"],
        )
        try:
            answer = self._api.call_api(*arguments, _request_timeout=_TIMEOUT_S)
            data: bytes = answer.read()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiFailure(0, what, f"no answer: {error}") from error
        if not 200 <= answer.status <= 299:
            hint = _RIGHTS if answer.status == 403 else ""
            raise ApiFailure(answer.status, what, _message(data) + hint)
        parsed: Json = json.loads(data)
        return parsed

    def apply(self, made: Mapping[str, Any]) -> Json:
        """Make an object of the agents' namespace be so; returns it as it is now."""
        prefix, plural = PLURALS[made["kind"]]
        meta = made["metadata"]
        path = f"{prefix}/namespaces/{meta['namespace']}/{plural}/{meta['name']}"
        query = {"fieldManager": MANAGER, "force": "true"}
        return self.request("PATCH", path, made, query=query, content=_APPLY)

    def remove(self, kind: str, namespace: str, name: str, uid: str) -> None:
        """Delete this very object, if it is still there."""
        prefix, plural = PLURALS[kind]
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        try:
            self.request("DELETE", f"{prefix}/namespaces/{namespace}/{plural}/{name}", body)
        except ApiFailure as error:
            if error.code not in (404, 409):
                raise

    def write_status(self, seen: Seen[Any], status: Mapping[str, Any]) -> None:
        """Of this very object, if it is still there."""
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": seen.resource.kind,
            "metadata": {"name": seen.name, "uid": seen.uid},
            "status": status,
        }
        query = {"fieldManager": MANAGER, "force": "true"}
        path = f"{_path(seen.resource, seen.namespace)}/{quote(seen.name)}/status"
        try:
            self.request("PATCH", path, body, query=query, content=_APPLY)
        except ApiFailure as error:
            if error.code not in (404, 409):
                raise

    def apply_default(self, document: Mapping[str, Any]) -> Json:
        """Make a cluster-wide object of ours be so; returns it as it is now."""
        resource = next(r for r in RESOURCES if r.kind == document["kind"])
        path = f"{_path(resource)}/{quote(document['metadata']['name'])}"
        query = {"fieldManager": MANAGER, "force": "true"}
        return self.request("PATCH", path, document, query=query, content=_APPLY)

    def create_pool(self, name: str) -> None:
        """An AgentPool with nothing but defaults, unless there is one of that name."""
        resource = next(r for r in RESOURCES if r.kind == "AgentPool")
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": resource.kind,
            "metadata": {"name": name},
            "spec": {},
        }
        try:
            self.request("POST", _path(resource), body, query={"fieldManager": MANAGER})
        except ApiFailure as error:
            if error.code != 409:
                raise

    def apply_at(self, path: str, made: Mapping[str, Any]) -> Json:
        """Make the object at a path be so."""
        query = {"fieldManager": MANAGER, "force": "true"}
        return self.request("PATCH", path, made, query=query, content=_APPLY)

    def uid(self, path: str) -> str:
        """Of the object at a path."""
        return str(self.request("GET", path)["metadata"]["uid"])

    def account_uid(self, namespace: str, name: str) -> str:
        """uid of a ServiceAccount; "" = there is none."""
        try:
            return self.uid(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}")
        except ApiFailure as error:
            if error.code == 404:
                return ""
            raise

    def token_review(self, token: str) -> Mapping[str, Any]:
        """What the API server says of a token that is meant for reports."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [AUDIENCE]},
        }
        answer = self.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body)
        status: Json = answer.get("status") or {}
        return status

    def secret_data(self, namespace: str, name: str) -> dict[str, bytes]:
        """Of a Secret of ours; {} = there is none."""
        try:
            found = self.request("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")
        except ApiFailure as error:
            if error.code == 404:
                return {}
            raise
        return {k: base64.b64decode(v) for k, v in (found.get("data") or {}).items()}

    def secret(self, namespace: str, name: str) -> SecretData:
        """A Secret for exports; what cannot be used is an answer, not an exception."""
        try:
            found = self.request("GET", f"/api/v1/namespaces/{namespace}/secrets/{quote(name)}")
        except ApiFailure as error:
            if error.code == 404:
                said = f"there is no Secret {name} in namespace {namespace}"
                return SecretData({}, "SecretNotFound", said)
            if error.code == 403:
                said = (
                    f"the operator may not read the Secret {name} in namespace {namespace}: bind "
                    "the ClusterRole flameherd-secret-reader to it there by a RoleBinding"
                )
                return SecretData({}, "SecretForbidden", said)
            raise
        if found.get("type") != EXPORT_SECRET_TYPE:
            said = (
                f"the Secret {name} in namespace {namespace} is of type {found.get('type')}: only "
                f"type {EXPORT_SECRET_TYPE} is ever sent"
            )
            return SecretData({}, "SecretWrongType", said)
        data = found.get("data") or {}
        return SecretData({key: base64.b64decode(value) for key, value in data.items()})

    def served(self) -> list[str]:
        """Plurals of our kinds that the API server serves."""
        try:
            found = self.request("GET", f"/apis/{GROUP}/{VERSION}")
        except ApiFailure as error:
            if error.code == 404:
                return []
            raise
        return [resource["name"] for resource in found["resources"]]

    def metadata(self, path: str) -> Iterator[Json]:
        """`metadata` of every object of a list, read afresh."""
        query = {"limit": _PAGE}
        while True:
            page = self.request("GET", path, query=query, accept=_METADATA_ONLY)
            for item in page["items"] or ():  # no items are null
                yield item["metadata"]
            more = page["metadata"].get("continue")
            if not more:
                return
            query = {"limit": _PAGE, "continue": more}


def _path(resource: Resource, namespace: str = "") -> str:
    middle = f"/namespaces/{namespace}" if namespace else ""
    return f"/apis/{GROUP}/{VERSION}{middle}/{resource.plural}"


def list_path(resource: Resource) -> str:
    """Path of all objects of a kind."""
    return _path(resource)


def _message(data: bytes) -> str:
    """The API server's own words."""
    try:
        parsed = json.loads(data)
    except ValueError:
        parsed = None
    text = parsed.get("message") if isinstance(parsed, dict) else None
    return str(text or data.decode(errors="replace"))[:_MAX_MESSAGE]
