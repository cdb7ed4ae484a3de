"""Which endpoints an export may go to.

An endpoint is `http://host[:port]` (plain text) or `https://host[:port]` (TLS), for gRPC and HTTP
alike. What is allowed depends on who wrote it: a configuration file belongs to the machine's
administrator and may use loopback; a custom resource (CR) belongs to a tenant and may not reach the
node itself, nor the cloud's metadata service, nor (unless the administrator's rules say so)
anything outside the cluster.

A name is checked here as text; the exporter checks the address again with `check_address` after
DNS, because a tenant's name may resolve to anything.
"""

import ipaddress
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from msgspec import Meta

from flameherd_policy.base import Model
from flameherd_policy.rules import Rule, matches

DEFAULT_PORTS: Final = {"GRPC": 4317, "HTTP": 4318}
_LABEL = re.compile(r"[a-z0-9_](?:[-a-z0-9_]{0,61}[a-z0-9_])?", re.ASCII)
_LOOKS_NUMERIC = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)", re.ASCII)
_IN_CLUSTER: Final = (".svc", ".svc.cluster.local")


_HOST: Final = r"[A-Za-z0-9_](?:[-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?"
_NAME: Final = rf"{_HOST}(?:\.{_HOST})*"
_NUMBER: Final = "(?:[0-9]+|0[xX][0-9a-fA-F]*)"
_OCTET: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4: Final = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_HEX: Final = "[0-9a-fA-F]{1,4}"
_IPV6: Final = "|".join(
    (
        f"(?:{_HEX}:){{7}}{_HEX}",
        f"(?:{_HEX}:){{1,7}}:",
        *(f"(?:{_HEX}:){{1,{7 - after}}}(?::{_HEX}){{1,{after}}}" for after in range(1, 7)),
        f":(?::{_HEX}){{1,7}}",
        "::",
    )
)
_PORT: Final = (
    "[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
)
_END: Final = "(?:[:/]|$)"

# On the text as a whole: the API server cannot bound the cost of rules over parts of a URL.
ENDPOINT_RULES: Final = (
    matches(
        rf"https?://(?:{_NAME}\.?|\[(?:{_IPV6})\])(?::(?:{_PORT}))?(?:/[!-~]*)?",
        "is not http://host[:port] (plain text) or https://host[:port] (TLS)",
    ),
    Rule(
        r"!self.matches(r'[?#@\\]')",
        "an endpoint has no query, no fragment and no credentials: put credentials into the "
        "Secret of headersSecretRef",
    ),
    Rule(
        rf"!self.matches(r'^[a-z]+://[^/:]{{253}}(?:[^/:.]|\.[^/:])') && (self.matches(r'^[a-z]+://{_IPV4}{_END}') "
        rf"|| !self.matches(r'^[a-z]+://(?:[^/:\[]*\.)?{_NUMBER}\.?{_END}'))",
        "the host looks like an IP address but is not written as one, or is longer than 253 "
        "characters: write a name, 10.0.0.1 or [2001:db8::1]",
    ),
    Rule(
        r"!self.matches(r'^[a-z]+://(?i:(?:[^/:]*\.)?(?:localhost|localdomain)\.?"
        r"|127\.[0-9.]*|169\.254\.[0-9.]*|0\.0\.0\.0|\[[0:]*1?\]|\[fe[89ab][0-9a-f]:[^\]]*\])"
        rf"{_END}')",
        "is the node itself or a link-local address, which a policy may not export to: name a "
        "Service, as in https://collector.obs.svc:4317",
    ),
)
"""Stricter than `parse_endpoint`, which also reads files: these belong to a tenant."""

RULE_HOST_RULES: Final = (
    Rule(
        rf"self.matches(r'^(?:{_IPV4}|{_IPV6})$') || (self.matches(r'^(?:\*\.)?{_NAME}$') "
        rf"&& !self.matches(r'(?:^|\.){_NUMBER}$'))",
        "is neither a host name, nor *. and the end of host names as in *.obs.svc, nor an IP "
        "address",
    ),
)


class Source(StrEnum):
    """Who wrote an endpoint."""

    FILE = "file"
    """A configuration file on the machine: its administrator."""
    CR = "CR"
    """A custom resource: a tenant."""


class Scheme(StrEnum):
    """How an endpoint is spoken to."""

    HTTP = "http"
    HTTPS = "https"


class Target(NamedTuple):
    """An endpoint in its parts; `host` is lower case, without brackets and final dot."""

    scheme: Scheme
    host: str
    port: int
    path: str


def _check_rule_host(text: str) -> str | None:
    name = text.removeprefix("*.")
    if "*" in name or not name:
        return f"{text!r}: '*' may only stand for the first labels, as in *.obs.svc"
    return None if _host_problem(name.lower()) is None else f"{text!r} is not a host name"


class EndpointRule(Model, frozen=True):
    """A set of endpoints that exports may go to."""

    scheme: Annotated[Scheme, Meta(description="`https` = TLS, `http` = plain text.")]
    host: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=253,
            extra={"check": _check_rule_host, "cel": RULE_HOST_RULES},
            description="A host name, or `*.` and the end of host names: `*` stands for one or "
            "more labels.",
        ),
    ]
    port: Annotated[
        Annotated[int, Meta(ge=1, le=65535)] | None, Meta(description="Absent = every port.")
    ] = None

    def allows(self, target: Target) -> bool:
        host = self.host.lower()
        fits = target.host.endswith(host[1:]) if host.startswith("*.") else target.host == host
        return fits and target.scheme is self.scheme and self.port in (None, target.port)

    def __str__(self) -> str:
        return f"{self.scheme.value}://{self.host}" + (f":{self.port}" if self.port else "")


def _host_problem(host: str) -> str | None:
    try:
        ipaddress.ip_address(host)
        return None
    except ValueError:
        labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        return f"{host!r} is not a host name or IP address"
    # C libraries read 127.1, 0x7f.1 and 2130706433 as addresses: only the plain form is taken.
    if _LOOKS_NUMERIC.fullmatch(labels[-1]):
        return f"{host!r} looks like an IP address but is not written as one"
    return None


def _split(endpoint: str) -> SplitResult | None:
    if not endpoint.isascii() or not endpoint.isprintable() or " " in endpoint or "\\" in endpoint:
        return None
    try:
        parts = urlsplit(endpoint)
        _ = parts.port  # raises on a port that is not one
    except ValueError:
        return None
    return parts


def parse_endpoint(endpoint: str, protocol: str) -> Target | str:
    """The parts of an endpoint for `protocol` (`GRPC` or `HTTP`), or a message that says what is
    wrong with it.
    """
    parts = _split(endpoint)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        return f"{endpoint!r} is not http://host[:port] (plain text) or https://host[:port] (TLS)"
    if parts.username is not None or parts.password is not None:
        return (
            "credentials do not belong into an endpoint: use headers "
            f"({parts.scheme}://…@{parts.hostname})"
        )
    if parts.query or parts.fragment:
        return f"{endpoint!r}: an endpoint has no query and no fragment"
    if protocol == "GRPC" and parts.path not in ("", "/"):
        return f"{endpoint!r}: a gRPC endpoint has no path (protocol: HTTP takes one)"
    if parts.port == 0:
        return f"{endpoint!r}: 0 is not a port"
    host = parts.hostname.lower().removesuffix(".")
    if (problem := _host_problem(host)) is not None:
        return problem
    port = parts.port or DEFAULT_PORTS[protocol]
    return Target(Scheme(parts.scheme), host, port, parts.path.rstrip("/"))


def check_address(address: str, source: Source) -> str | None:
    """What forbids sending to this IP address (text, after DNS), or None."""
    if source is Source.FILE:
        return None
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        ip = ip.ipv4_mapped or ip.sixtofour or ip
    for forbidden, name in (
        (ip.is_loopback, "a loopback address: it is the node itself"),
        (ip.is_link_local, "a link-local address: cloud metadata services live there"),
        (ip.is_unspecified, "the unspecified address: it is the node itself"),
        (ip.is_multicast, "a multicast address"),
    ):
        if forbidden:
            return f"{address} is {name}; a policy may not export to it"
    return None


def check_endpoint(
    endpoint: str,
    protocol: str,
    *,
    source: Source,
    rules: Sequence[EndpointRule] | None = None,
) -> str | None:
    """What is wrong with `endpoint`, or None.

    `rules` are the administrator's: one of them must allow the endpoint. None = there are none:
    then a CR may only name hosts that end in `.svc` or `.svc.cluster.local`, and a file may name
    any.
    """
    target = parse_endpoint(endpoint, protocol)
    if isinstance(target, str):
        return target
    if source is Source.CR and (problem := _check_tenant_host(target.host)) is not None:
        return problem
    if rules is not None:
        if any(rule.allows(target) for rule in rules):
            return None
        allowed = ", ".join(str(rule) for rule in rules) or "none"
        return f"{endpoint!r} is not among the allowed endpoints: {allowed}"
    if source is Source.CR and not target.host.endswith(_IN_CLUSTER):
        return (
            f"{endpoint!r} is outside the cluster: the host must end in {' or '.join(_IN_CLUSTER)}"
        )
    return None


def _check_tenant_host(host: str) -> str | None:
    try:
        return check_address(host, Source.CR)
    except ValueError:
        pass
    if host == "localhost" or host.endswith((".localhost", ".localdomain")):
        return f"{host!r} is the node itself; a policy may not export to it"
    return None
