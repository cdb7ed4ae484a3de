"""Which endpoints a file and which a tenant may name."""

import pytest
from flameherd_policy.decode import decode
from flameherd_policy.endpoints import (
    EndpointRule,
    Scheme,
    Source,
    Target,
    check_address,
    check_endpoint,
    parse_endpoint,
)
from hypothesis import given
from hypothesis import strategies as st

OBS = EndpointRule(scheme=Scheme.HTTPS, host="*.obs.svc", port=4317)


def test_ports_follow_the_protocol() -> None:
    assert parse_endpoint("https://c.obs.svc", "GRPC") == Target(
        Scheme.HTTPS, "c.obs.svc", 4317, ""
    )
    assert parse_endpoint("http://C.obs.svc./otlp/", "HTTP") == Target(
        Scheme.HTTP, "c.obs.svc", 4318, "/otlp"
    )
    assert parse_endpoint("http://[::1]:9", "GRPC") == Target(Scheme.HTTP, "::1", 9, "")


@pytest.mark.parametrize(
    "endpoint",
    [
        "", "c.obs.svc:4317", "grpc://c.obs.svc", "https://", "https://a b", "https://a:99999",
        "https://a:0", "https://u:p@a.svc", "https://a.svc?x=1", "https://a.svc#x",
        "https://a.svc/path", "https://a_\u0430.svc", "https://-a.svc", "https://a..svc",
        "https://2130706433", "https://0x7f.1", "https://127.1", "https://a\\b", "https://[::1",
        "https://*.svc", "https://a.svc\r\nx: y",
    ],
)  # fmt: skip
def test_malformed_endpoints_are_refused_for_everyone(endpoint: str) -> None:
    for source in Source:
        assert check_endpoint(endpoint, "GRPC", source=source) is not None


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://127.0.0.1:4317", "http://localhost", "http://x.localhost:1", "http://[::1]:4317",
        "http://0.0.0.0", "http://169.254.169.254", "http://[fe80::1]", "http://[::ffff:127.0.0.1]",
        "http://[::]", "http://224.0.0.1",
    ],
)  # fmt: skip
def test_a_tenant_cannot_reach_the_node_itself_whatever_the_rules_say(endpoint: str) -> None:
    host = parse_endpoint(endpoint, "GRPC")
    assert isinstance(host, Target)
    everything = [EndpointRule(scheme=Scheme.HTTP, host=host.host)]
    assert check_endpoint(endpoint, "GRPC", source=Source.FILE) is None
    assert check_endpoint(endpoint, "GRPC", source=Source.CR) is not None
    assert check_endpoint(endpoint, "GRPC", source=Source.CR, rules=everything) is not None


def test_without_rules_a_tenant_stays_in_the_cluster() -> None:
    def wrong(endpoint: str) -> str | None:
        return check_endpoint(endpoint, "GRPC", source=Source.CR)

    assert wrong("https://c.obs.svc:4317") is None
    assert wrong("https://c.obs.svc.cluster.local") is None
    assert "outside the cluster" in (wrong("https://example.org") or "")
    assert wrong("https://evilsvc") is not None
    assert wrong("https://svc") is not None
    assert wrong("https://c.obs.svc.example.org") is not None
    assert wrong("https://10.0.0.1") is not None


def test_rules_replace_the_built_in_one() -> None:
    def wrong(endpoint: str) -> str | None:
        return check_endpoint(endpoint, "GRPC", source=Source.CR, rules=[OBS])

    assert wrong("https://c.obs.svc:4317") is None
    assert wrong("https://c.obs.svc") is None  # the default port is 4317
    assert wrong("https://a.b.obs.svc") is None
    assert "https://*.obs.svc:4317" in (wrong("http://c.obs.svc") or "")
    assert wrong("https://c.obs.svc:4318") is not None
    assert wrong("https://obs.svc") is not None
    assert wrong("https://xobs.svc") is not None
    assert wrong("https://c.other.svc") is not None
    assert check_endpoint("https://c.obs.svc", "GRPC", source=Source.CR, rules=[]) is not None


def test_addresses_are_checked_again_after_dns() -> None:
    for address in (
        "127.0.0.1",
        "::1",
        "169.254.169.254",
        "fe80::1%eth0",
        "::ffff:169.254.169.254",
        "0.0.0.0",
    ):
        assert check_address(address, Source.CR) is not None
        assert check_address(address, Source.FILE) is None
    assert check_address("10.1.2.3", Source.CR) is None
    assert check_address("2001:db8::1", Source.CR) is None


@given(st.text(max_size=40), st.sampled_from(["GRPC", "HTTP"]))
def test_no_text_raises(text: str, protocol: str) -> None:
    for endpoint in (text, "http://" + text):
        problem = check_endpoint(endpoint, protocol, source=Source.CR)
        assert problem is None or isinstance(problem, str)


@pytest.mark.parametrize("host", ["C.Obs.svc", "*.OBS.svc"])
def test_rules_take_hosts_in_any_case(host: str) -> None:
    """The API server does, and `allows` compares without it."""
    rule = decode(EndpointRule, {"scheme": "https", "host": host}).value
    target = parse_endpoint("https://c.obs.SVC", "GRPC")
    assert isinstance(target, Target)
    assert rule.allows(target)
