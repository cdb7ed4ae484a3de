"""The operator's desired state: from what is observed, without a cluster."""

import base64
import json
import random
import zlib
from typing import Any

import msgspec
import pytest
from flameherd_operator.ceilings import BUILT_IN, in_namespace, loosest, on_hosts
from flameherd_operator.observed import Inputs, Owned, SecretData, Seen, see
from flameherd_operator.render.agents import conflicts
from flameherd_operator.render.desired import Desired, desired
from flameherd_operator.render.secrets import MAX_SECRET_BYTES
from flameherd_operator.render.shards import MAX_SHARD_BYTES, shard_of
from flameherd_operator.settings import EXPORT_SECRET, SHARD_COUNT, SHARD_KEY, Settings
from flameherd_policy.agent_config import MAX_SLOTS, AgentConfig
from flameherd_policy.compile import content_version
from flameherd_policy.decode import decode
from flameherd_policy.load import decode_document

SETTINGS = Settings()
EXPORT = {"endpoint": "http://c.obs.svc:4317"}
PEM = b"-----BEGIN CERTIFICATE-----\n"


def seen(kind: str, name: str, spec: Any, namespace: str = "", created: str = "2026-01-01T00:00:00Z",
    **meta: Any) -> Seen[Any]:  # fmt: skip
    metadata = {"name": name, "uid": f"{kind}/{namespace}/{name}", "generation": 1} | meta
    metadata["creationTimestamp"] = created
    if namespace:
        metadata["namespace"] = namespace
    return see(kind, {"metadata": metadata, "spec": spec})


def policy(name: str, namespace: str = "shop", created: str = "2026-01-01T00:00:00Z",
    **spec: Any) -> Seen[Any]:  # fmt: skip
    base = {"podSelector": {}, "cpu": {}, "export": EXPORT}
    return seen("ProfilingPolicy", name, base | spec, namespace, created)


def cluster(name: str, **spec: Any) -> Seen[Any]:
    return seen("ClusterProfilingPolicy", name, spec)


def pool(name: str, created: str = "2026-01-01T00:00:00Z", **spec: Any) -> Seen[Any]:
    return seen("AgentPool", name, spec, created=created)


def configs(wanted: Desired) -> dict[str, AgentConfig]:
    """What agents read, by ConfigMap: strictly, as a file would be."""
    made = {}
    for shard in wanted.objects:
        if shard["kind"] == "ConfigMap":
            text = zlib.decompress(base64.b64decode(shard["binaryData"][SHARD_KEY]))
            config = decode_document(json.loads(text))
            assert isinstance(config, AgentConfig)
            assert shard["data"]["version"] == config.version == content_version(config)
            made[shard["metadata"]["name"]] = config
    return made


def slots(wanted: Desired) -> dict[str, Any]:
    return {slot.name: slot for config in configs(wanted).values() for slot in config.policies}


def of_kind(wanted: Desired, kind: str) -> dict[str, Any]:
    return {o["metadata"]["name"]: o for o in wanted.objects if o["kind"] == kind}


def test_nothing_asked_for_is_sixteen_empty_shards_and_a_secret() -> None:
    wanted = desired(Inputs(owner_uid="u"), SETTINGS)
    assert len(configs(wanted)) == SHARD_COUNT
    assert all(config.policies == () for config in configs(wanted).values())
    assert list(of_kind(wanted, "Secret")) == [EXPORT_SECRET]
    assert of_kind(wanted, "DaemonSet") == {}
    assert not wanted.busy
    assert {o["metadata"]["ownerReferences"][0]["uid"] for o in wanted.objects} == {"u"}


def test_equal_inputs_in_any_order_are_equal_bytes() -> None:
    policies = [
        policy(f"p{n}", f"ns{n % 7}", f"2026-01-{n % 20 + 1:02d}T00:00:00Z") for n in range(50)
    ]
    first = desired(Inputs(policies=tuple(policies)), SETTINGS)
    for seed in range(5):
        random.Random(seed).shuffle(policies)
        again = desired(Inputs(policies=tuple(policies)), SETTINGS)
        assert msgspec.json.encode(again.objects) == msgspec.json.encode(first.objects)


def test_a_namespace_is_one_shard_in_order_of_precedence() -> None:
    policies = (
        policy("c", created="2026-01-01T00:00:00Z"),
        policy("b", created="2026-01-02T00:00:00Z"),
        policy("a", created="2026-01-02T00:00:00Z"),
        policy("z", created="2026-01-03T00:00:00Z", priority=1),
    )
    wanted = desired(Inputs(policies=policies), SETTINGS)
    config = configs(wanted)[shard_of("shop")]
    assert [slot.name for slot in config.in_order()] == ["shop/z", "shop/c", "shop/a", "shop/b"]


def test_one_edit_changes_one_shard() -> None:
    many = [policy("p", f"ns{n}") for n in range(100)]
    before = configs(desired(Inputs(policies=tuple(many)), SETTINGS))
    many[7] = policy("p", "ns7", cpu={"frequencyHz": 5})
    after = configs(desired(Inputs(policies=tuple(many)), SETTINGS))
    assert [name for name in after if after[name] != before[name]] == [shard_of("ns7")]
    # And policies are spread.
    assert len([c for c in after.values() if c.policies]) == SHARD_COUNT


def test_without_any_cluster_policy_the_built_in_ceilings_hold() -> None:
    inputs = Inputs(
        policies=(
            policy("fast", cpu={"frequencyHz": 500}, attributes={"env": ["A"]}),
            policy("far", export={"endpoint": "https://example.org"}),
        )
    )
    wanted = desired(inputs, SETTINGS)
    assert slots(wanted)["shop/fast"].frequency_hz == 97
    assert slots(wanted)["shop/fast"].attributes.env == ()
    assert "shop/far" not in slots(wanted)
    far = wanted.verdicts[inputs.policies[1].uid]
    assert far.accepted.reason == "EndpointNotAllowed"
    assert far.ready == far.accepted
    assert configs(wanted)[shard_of("shop")].ceilings.max_frequency_hz == 97


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:4317", "https://169.254.169.254", "https://[::ffff:127.0.0.1]"]
)
def test_the_node_itself_is_refused_whatever_the_ceilings_say(endpoint: str) -> None:
    """Also the spellings that CEL cannot see."""
    host = endpoint.partition("://")[2].strip("[]").removesuffix(":4317")
    rules = [{"scheme": scheme, "host": host} for scheme in ("http", "https")]
    inputs = Inputs(
        policies=(policy("p", export={"endpoint": endpoint}),),
        clusters=(cluster("c", limits={"endpoints": rules}),),
    )
    wanted = desired(inputs, SETTINGS)
    assert wanted.verdicts[inputs.policies[0].uid].accepted.reason == "EndpointNotAllowed"
    assert slots(wanted) == {}


def test_an_object_that_cannot_be_read_harms_nobody_else() -> None:
    broken = seen("ProfilingPolicy", "broken", {"podSelector": 5}, "shop")
    cluster_broken = cluster("c", limits={"frequencyHz": {"max": 0}})
    inputs = Inputs(policies=(broken, policy("good")), clusters=(cluster_broken,))
    wanted = desired(inputs, SETTINGS)
    assert list(slots(wanted)) == ["shop/good"]
    assert wanted.verdicts[broken.uid].ready.reason == "Invalid"
    assert "spec.podSelector" in wanted.verdicts[broken.uid].ready.message
    assert "between 1 and 997" in wanted.verdicts[cluster_broken.uid].ready.message


def test_labels_and_annotations_are_not_even_read() -> None:
    """They are anyone's text, and Kubernetes allows in them what a label key may not be."""
    made = seen(
        "ProfilingPolicy", "p", {"podSelector": {}}, "shop", annotations={"A/ b": "x" * 10**6}
    )
    assert made.value is not None
    assert made.unknown == ()


def test_fields_of_a_newer_version_are_ignored_and_told() -> None:
    made = seen("ProfilingPolicy", "p", {"podSelector": {}, "offCPU": {}}, "shop")
    assert made.value is not None
    assert made.unknown == ("spec.offCPU",)


HEADERS = {"headersSecretRef": {"name": "s"}}
TLS = {"endpoint": "https://c.obs.svc", "tls": {"caSecretRef": {"name": "s", "key": "ca"}}}


@pytest.mark.parametrize(
    ("export", "secret", "reason"),
    [
        (HEADERS, None, "SecretNotRead"),
        (HEADERS, SecretData({}, "SecretNotFound", "no"), "SecretNotFound"),
        (HEADERS, SecretData({"a": b"x\ny"}), "SecretInvalid"),
        (HEADERS, SecretData({"a": "ü".encode()}), "SecretInvalid"),
        (HEADERS, SecretData({"a": b"x" * 5000}), "SecretInvalid"),
        (HEADERS, SecretData({f"k{n}": b"" for n in range(33)}), "SecretInvalid"),
        (TLS, SecretData({"cb": PEM}), "SecretKeyNotFound"),
        (TLS, SecretData({"ca": b"x"}), "SecretInvalid"),
        (TLS, SecretData({"ca": PEM + b"x" * 70_000}), "SecretInvalid"),
    ],
)
def test_secrets_that_cannot_be_used(
    export: dict[str, Any], secret: SecretData | None, reason: str
) -> None:
    inputs = Inputs(
        policies=(policy("p", export=EXPORT | export), policy("other")),
        secrets={("shop", "s"): secret} if secret else {},
    )
    wanted = desired(inputs, SETTINGS)
    verdict = wanted.verdicts[inputs.policies[0].uid]
    assert verdict.resolved.reason == reason
    assert verdict.ready == verdict.resolved
    assert list(slots(wanted)) == ["shop/other"]


def test_credentials_go_by_file_and_never_by_configuration() -> None:
    tls = {"tls": {"caSecretRef": {"name": "t", "key": "ca"}, "clientCertSecretRef": {"name": "t"}}}
    export = {"endpoint": "https://c.obs.svc"} | HEADERS | tls
    secrets = {
        ("shop", "s"): SecretData({"authorization": b"Bearer x1y2\n", "tenant": b"shop"}),
        ("shop", "t"): SecretData(
            {"ca": PEM + b"ca", "tls.crt": PEM + b"c", "tls.key": PEM + b"k"}
        ),
        ("bank", "s"): SecretData({"authorization": b"other"}),
    }
    inputs = Inputs(
        policies=(policy("p", export=export), policy("q", export=export)), secrets=secrets
    )
    wanted = desired(inputs, SETTINGS)
    held = of_kind(wanted, "Secret")[EXPORT_SECRET]["data"]
    files = {name: base64.b64decode(data) for name, data in held.items()}
    assert len(files) == 4  # equal content, one file
    assert b"authorization: Bearer x1y2\ntenant: shop\n" in files.values()
    assert b"other" not in b"".join(files.values())
    endpoint = configs(wanted)[shard_of("shop")].endpoints["shop/p"]
    assert endpoint.tls is not None
    named = (
        endpoint.headers_file,
        endpoint.tls.ca_file,
        endpoint.tls.cert_file,
        endpoint.tls.key_file,
    )
    assert {str(path).rpartition("/")[2] for path in named} == set(files)
    assert "x1y2" not in json.dumps([o for o in wanted.objects if o["kind"] != "Secret"])
    assert "x1y2" not in repr((wanted, inputs))


def test_the_default_export_uses_secrets_of_the_system_namespace() -> None:
    default = EXPORT | HEADERS
    made = policy("p")
    made = seen("ProfilingPolicy", "p", {"podSelector": {}, "cpu": {}}, "shop")
    inputs = Inputs(
        policies=(made,),
        clusters=(cluster("c", defaults={"export": default}),),
        secrets={("shop", "s"): SecretData({"a": b"tenant's"})},
    )
    verdict = desired(inputs, SETTINGS).verdicts[made.uid]
    assert verdict.resolved.reason == "SecretNotRead"
    assert "ClusterProfilingPolicy c" in verdict.resolved.message
    good = msgspec.structs.replace(
        inputs, secrets={(SETTINGS.namespace, "s"): SecretData({"a": b"admin's"})}
    )
    assert slots(desired(good, SETTINGS))["shop/p"].endpoint == "c"


def test_defaults_never_switch_on() -> None:
    off = seen("ProfilingPolicy", "p", {"podSelector": {}, "export": EXPORT}, "shop")
    inputs = Inputs(policies=(off,), clusters=(cluster("c", defaults={"cpu": {}}),))
    wanted = desired(inputs, SETTINGS)
    assert slots(wanted) == {}
    assert wanted.verdicts[off.uid].ready.reason == "Off"


def test_ceilings_intersect_where_they_select() -> None:
    seen_clusters = [
        cluster("a", limits={"frequencyHz": {"max": 199}}),
        cluster("b", namespaceSelector={"matchLabels": {"t": "x"}},
        limits={"frequencyHz": {"max": 29}, "envNames": ["A"]}),
    ]  # fmt: skip
    clusters = [made.value for made in seen_clusters if made.value is not None]
    assert in_namespace([], {}).ceilings == BUILT_IN
    assert in_namespace(clusters, {}).ceilings.max_frequency_hz == 199
    assert in_namespace(clusters, {}).ceilings.env_names == ()
    assert in_namespace(clusters, {"t": "x"}).ceilings.max_frequency_hz == 29
    assert in_namespace(clusters, {"t": "x"}).ceilings.env_names == ("A",)
    assert on_hosts(clusters).ceilings.max_frequency_hz == 199
    both = loosest(in_namespace(clusters, labels).ceilings for labels in ({}, {"t": "x"}))
    assert (both.max_frequency_hz, both.env_names) == (199, ("A",))


def test_more_policies_than_fit_are_left_out_from_the_end_and_told() -> None:
    policies = tuple(policy(f"p{n:04d}", created=f"2026-01-01T00:{n // 60:02d}:{n % 60:02d}Z")
    for n in range(MAX_SLOTS + 3))  # fmt: skip
    wanted = desired(Inputs(policies=policies), SETTINGS)
    reasons = [wanted.verdicts[p.uid].ready.reason for p in policies]
    assert reasons == ["Programmed"] * MAX_SLOTS + ["TooManyPolicies"] * 3
    assert len(slots(wanted)) == MAX_SLOTS


def test_a_shard_stays_below_what_one_object_may_hold() -> None:
    noise = random.Random(1)
    labels = [{f"k{n}": noise.randbytes(31).hex() for n in range(32)} for _ in range(1000)]
    policies = tuple(
        policy(f"p{n:04d}", podSelector={"matchLabels": labels[n]}) for n in range(1000)
    )
    wanted = desired(Inputs(policies=policies), SETTINGS)
    data = of_kind(wanted, "ConfigMap")[shard_of("shop")]["binaryData"][SHARD_KEY]
    assert len(base64.b64decode(data)) <= MAX_SHARD_BYTES
    left_out = [p for p in policies if wanted.verdicts[p.uid].ready.reason == "TooManyPolicies"]
    assert 0 < len(left_out) < 1000
    assert len(slots(wanted)) + len(left_out) == 1000


def test_credentials_stay_below_what_one_secret_may_hold() -> None:
    export = TLS
    secrets = {(f"ns{n}", "s"): SecretData({"ca": PEM + b"%d" % n * 30_000}) for n in range(40)}
    policies = tuple(policy("p", f"ns{n}", export=export) for n in range(40))
    wanted = desired(Inputs(policies=policies, secrets=secrets), SETTINGS)
    held = of_kind(wanted, "Secret")[EXPORT_SECRET]["data"]
    assert sum(len(base64.b64decode(data)) for data in held.values()) <= MAX_SECRET_BYTES
    reasons = {wanted.verdicts[p.uid].ready.reason for p in policies}
    assert reasons == {"Programmed", "TooMuchSecretData"}
    for config in configs(wanted).values():
        for endpoint in config.endpoints.values():
            assert endpoint.tls is not None
            assert str(endpoint.tls.ca_file).rpartition("/")[2] in held


def test_pools_conflict_only_on_real_nodes() -> None:
    old, new = pool("old"), pool("new", "2026-02-01T00:00:00Z", nodeSelector={"disk": "ssd"})
    assert conflicts([new, old], [{"disk": "hdd"}]) == {}
    assert conflicts([new, old], [{"disk": "hdd"}, {"disk": "ssd"}]) == {new.uid: ("old", 1)}
    third = pool("third", "2026-03-01T00:00:00Z", nodeSelector={"disk": "ssd"})
    # One that waits for an older pool is in nobody's way, but the older one is.
    assert conflicts([third, new, old], [{"disk": "ssd"}]) == {
        new.uid: ("old", 1),
        third.uid: ("old", 1),
    }


def test_the_daemonset_of_a_pool() -> None:
    spec: dict[str, Any] = {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"operator": "Exists"}, {"key": "a", "value": "b", "effect": "NoExecute",
        "tolerationSeconds": 5}],
        "resources": {"requests": {"cpu": "20m"}, "limits": {"memory": "256Mi"}},
        "priorityClassName": "high",
        "image": "r.example/agent:2",
        "updateStrategy": {"maxUnavailable": "3"},
    }  # fmt: skip
    inputs = Inputs(pools=(pool("ssd", **spec), pool("plain")))
    settings = Settings(pull_secrets=("pull",))
    made = of_kind(desired(inputs, settings), "DaemonSet")
    body = made["flameherd-agent-ssd"]["spec"]
    pod = body["template"]["spec"]
    (container,) = pod["containers"]
    assert body["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 3, "maxSurge": 0}
    assert pod["nodeSelector"] == {"disk": "ssd"}
    assert pod["tolerations"] == [
        {"operator": "Exists"},
        {
            "operator": "Equal",
            "key": "a",
            "value": "b",
            "effect": "NoExecute",
            "tolerationSeconds": 5,
        },
    ]
    assert pod["priorityClassName"] == "high"
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert container["resources"] == {"requests": {"cpu": "20m"}, "limits": {"memory": "256Mi"}}
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    plain = made["flameherd-agent-plain"]["spec"]
    assert plain["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == "10%"
    assert "nodeSelector" not in plain["template"]["spec"]


def test_agents_are_root_without_its_rights() -> None:
    def context(settings: Settings) -> dict[str, Any]:
        made = of_kind(desired(Inputs(pools=(pool("p"),)), settings), "DaemonSet")
        pod = made["flameherd-agent-p"]["spec"]["template"]["spec"]
        assert pod["hostPID"]
        assert not {"hostNetwork", "hostIPC"} & set(pod)
        found: dict[str, Any] = pod["containers"][0]["securityContext"]
        return found

    plain = context(Settings())
    assert not plain["privileged"]
    assert not plain["allowPrivilegeEscalation"]
    assert plain["readOnlyRootFilesystem"]
    assert plain["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"seLinuxOptions", "appArmorProfile"} & set(plain)
    set_up = context(Settings(se_linux_type="spc_t", app_armor_profile="Localhost/flameherd"))
    assert set_up["seLinuxOptions"] == {"type": "spc_t"}
    assert set_up["appArmorProfile"] == {"type": "Localhost", "localhostProfile": "flameherd"}
    loose = context(Settings(app_armor_profile="Unconfined"))
    assert loose["appArmorProfile"] == {"type": "Unconfined"}


def test_policies_never_change_a_daemonset() -> None:
    pools = (pool("default"),)
    without = of_kind(desired(Inputs(pools=pools), SETTINGS), "DaemonSet")
    with_some = desired(Inputs(pools=pools, policies=(policy("p"),)), SETTINGS)
    assert of_kind(with_some, "DaemonSet") == without


def test_idle_agents_stay_or_go_as_the_pool_says() -> None:
    pools = (pool("keep"), pool("remove", whenIdle="Remove"))
    owned = tuple(
        Owned("DaemonSet", f"flameherd-agent-{n}", n, "1") for n in ("keep", "remove", "old")
    )
    busy = desired(Inputs(pools=pools, owned=owned), SETTINGS)
    assert [o.name for o in busy.remove] == ["flameherd-agent-old"]
    idle = desired(Inputs(pools=pools, owned=owned, idle=True), SETTINGS)
    assert [o.name for o in idle.remove] == ["flameherd-agent-remove", "flameherd-agent-old"]
    assert idle.verdicts[pools[1].uid].ready.reason == "Idle"


def test_a_pool_that_cannot_be_read_keeps_its_agents() -> None:
    owned = (Owned("DaemonSet", "flameherd-agent-bad", "1", "1"),)
    bad = pool("bad", whenIdle="Never")
    wanted = desired(Inputs(pools=(bad,), owned=owned), SETTINGS)
    assert wanted.remove == ()
    assert wanted.verdicts[bad.uid].accepted.reason == "Invalid"


def test_agents_of_this_version_read_what_is_rendered() -> None:
    """Strictly: nothing in a shard is unknown to them."""
    full: dict[str, Any] = {
        "podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
        "containerNames": ["web"],
        "priority": 3,
        "attributes": {"podLabels": ["a"], "static": {"team.name": "x"}},
        "export": EXPORT | {"protocol": "HTTP", "compression": "None", "interval": "30s"},
    }
    wanted = desired(Inputs(policies=(policy("p", **full),)), SETTINGS)
    config = configs(wanted)[shard_of("shop")]
    again = decode(AgentConfig, msgspec.to_builtins(config, enc_hook=str)).value
    assert again == config
