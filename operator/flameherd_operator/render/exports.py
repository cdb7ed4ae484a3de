"""An `export` of a policy and its Secrets → where an agent sends, and the files that this names.

Only Secrets of type `flameherd.dev/export` are used: a policy's author may otherwise have any
Secret of the namespace sent as a header to an endpoint of his. Files are named by their content, so
that a configuration and the credentials that it means always go together.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from flameherd_policy.agent_config import AgentEndpoint, AgentProtocol, AgentTls, Ceilings
from flameherd_policy.endpoints import Source, check_endpoint
from flameherd_policy.policies import Export, Tls

from flameherd_operator.observed import SecretData, SecretId
from flameherd_operator.settings import EXPORT_PATH
from flameherd_operator.verdict import Outcome

MAX_HEADERS: Final = 32
MAX_HEADER_BYTES: Final = 4096
MAX_PEM_BYTES: Final = 65536
_HEADER_VALUE: Final = re.compile(rb"[\t\x20-\x7e]*")

Files = Mapping[str, bytes]


class Unresolved(Exception):
    """A Secret cannot be used."""

    def __init__(self, reason: str, message: str) -> None:
        self.outcome = Outcome(False, reason, message)
        super().__init__(message)


class Resolved(msgspec.Struct, frozen=True):
    """An endpoint as agents are told, and the files that it names."""

    endpoint: AgentEndpoint
    files: Files

    def __repr__(self) -> str:
        """Without the files: they are credentials."""
        return f"Resolved({self.endpoint!r}, {sorted(self.files)})"


def refused(export: Export, ceilings: Ceilings) -> Outcome | None:
    """Why the ceilings do not let this export go there, or None."""
    wrong = check_endpoint(
        export.endpoint, export.protocol.value, source=Source.CR, rules=ceilings.endpoints
    )
    if wrong is None:
        return None
    return Outcome(
        False,
        "EndpointNotAllowed",
        f"{wrong} (what is allowed: limits.endpoints of ClusterProfilingPolicies)",
    )


def secrets_of(export: Export, namespace: str) -> Iterator[SecretId]:
    """The Secrets that an export names."""
    tls = export.tls or Tls()
    for reference in (export.headers_secret_ref, tls.ca_secret_ref, tls.client_cert_secret_ref):
        if reference is not None:
            yield namespace, reference.name


def resolve(export: Export, namespace: str, secrets: Mapping[SecretId, SecretData]) -> Resolved:
    """Raises `Unresolved`. `namespace` is the one that the Secrets are in."""
    files: dict[str, bytes] = {}

    def keep(suffix: str, data: bytes) -> str:
        name = f"{hashlib.sha256(data).hexdigest()[:32]}.{suffix}"
        files[name] = data
        return f"{EXPORT_PATH}/{name}"

    def read(name: str) -> Mapping[str, bytes]:
        found = secrets.get((namespace, name))
        if found is None:
            raise Unresolved("SecretNotRead", f"the Secret {name} has not been read yet")
        if found.reason:
            raise Unresolved(found.reason, found.message)
        return found.data

    def pem(name: str, key: str) -> bytes:
        data = read(name)
        if key not in data:
            known = ", ".join(sorted(data)) or "none"
            raise Unresolved("SecretKeyNotFound", f"the Secret {name} has no key {key}: {known}")
        if not data[key].startswith(b"-----BEGIN ") or len(data[key]) > MAX_PEM_BYTES:
            raise Unresolved(
                "SecretInvalid",
                f"{key} of the Secret {name} is not PEM of at most {MAX_PEM_BYTES} bytes",
            )
        return data[key]

    headers_file = None
    if export.headers_secret_ref is not None:
        name = export.headers_secret_ref.name
        headers_file = keep("headers", _headers(name, read(name)))
    tls = None
    if export.tls is not None:
        ca, client = export.tls.ca_secret_ref, export.tls.client_cert_secret_ref
        tls = AgentTls(
            ca_file=keep("ca.crt", pem(ca.name, ca.key)) if ca else None,
            cert_file=keep("tls.crt", pem(client.name, "tls.crt")) if client else None,
            key_file=keep("tls.key", pem(client.name, "tls.key")) if client else None,
            insecure_skip_verify=export.tls.insecure_skip_verify,
        )
    endpoint = AgentEndpoint(
        protocol=AgentProtocol(export.protocol.value),
        endpoint=export.endpoint,
        compression=export.compression,
        interval=export.interval,
        headers_file=headers_file,
        tls=None if tls == AgentTls() else tls,
    )
    return Resolved(endpoint, files)


def _headers(name: str, data: Mapping[str, bytes]) -> bytes:
    """`name: value` lines, as an agent's headersFile has them."""
    if len(data) > MAX_HEADERS:
        raise Unresolved("SecretInvalid", f"the Secret {name} has more than {MAX_HEADERS} keys")
    lines = []
    for key, value in sorted(data.items()):
        text = value.strip()
        if len(text) > MAX_HEADER_BYTES or not _HEADER_VALUE.fullmatch(text):
            raise Unresolved(
                "SecretInvalid",
                f"{key} of the Secret {name} is not one line of at most {MAX_HEADER_BYTES} plain "
                "characters, which a header must be",
            )
        lines.append(key.encode() + b": " + text + b"\n")
    return b"".join(lines)
