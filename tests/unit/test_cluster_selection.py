"""Which policy samples which cgroup."""

from typing import Any

import pytest
from flameherd_agent.cluster.cgroup_tree import MONITOR
from flameherd_agent.cluster.pods import Pod
from flameherd_agent.cluster.selection import Choice, Coverage, choose, matching, samplers
from flameherd_policy.agent_config import PolicySlot, SlotSelector
from flameherd_policy.selectors import LabelRequirement, LabelSelector, Operator

APP, SIDE, NEW = "a" * 64, "b" * 64, "c" * 64
KNOWN = {APP: "app", SIDE: "side"}
POD, C_APP, C_SIDE, C_NEW, C_MON = 10, 11, 12, 13, 14
THERE = {POD: None, C_APP: APP, C_SIDE: SIDE, C_NEW: NEW}


def pod(name: str = "p", *, containers: dict[str, str] = KNOWN, **fields: Any) -> Pod:
    fields = dict[str, Any]({"namespace": "shop", "labels": {}, "ended": False}) | fields
    return Pod(
        name=name, uid=name, cgroup_uid=name, annotations={}, workload={}, images={},
        containers=containers, **fields,
    )  # fmt: skip


def policy(name: str, *containers: str, **selector: Any) -> PolicySlot:
    selector = {"namespace": "shop", "container_names": containers} | selector
    return PolicySlot(name=name, selector=SlotSelector(**selector), frequency_hz=19)


def chosen(
    policies: list[PolicySlot],
    there: dict[int, str | None] = THERE,
    host: str | None = None,
    **fields: Any,
) -> Choice:
    return choose([(pod(**fields), policies)], {"p": there}, host)


def test_a_pod_is_selected_as_a_whole() -> None:
    found = chosen([policy("all"), policy("never")])
    assert found.cgroups == {POD: "all"}, "containers are below the pod"
    assert found.coverage["all"] == Coverage(1, 1, 2, 2, 0)
    assert found.coverage["never"] == Coverage(1, 0, 2, 0, 2)


def test_a_pod_without_a_cgroup_of_its_own() -> None:
    """containerd's and kubelet's drivers at odds: only the containers name the pod."""
    found = chosen([policy("all")], {C_APP: APP, C_NEW: NEW})
    assert found.cgroups == {C_APP: "all", C_NEW: "all"}


def test_containers_wait_for_their_names() -> None:
    found = chosen([policy("web", "app"), policy("rest")], host="host")
    assert found.cgroups == {POD: None, C_APP: "web", C_SIDE: "rest"}
    assert found.coverage["web"] == Coverage(1, 1, 1, 1, 0)
    assert found.coverage["rest"] == Coverage(1, 1, 2, 1, 1)


def test_what_no_policy_names_is_the_hosts_once_it_has_a_name() -> None:
    found = chosen([policy("web", "app")], host="host")
    assert found.cgroups == {POD: None, C_APP: "web", C_SIDE: "host"}
    found = chosen([policy("web", "app")])
    assert found.cgroups == {POD: None, C_APP: "web"}


@pytest.mark.parametrize("policies", [[policy("all")], [policy("web", "app")]])
def test_a_monitor_is_not_the_pods(policies: list[PolicySlot]) -> None:
    assert chosen(policies, THERE | {C_MON: MONITOR}, "host").cgroups[C_MON] == "host"
    assert chosen(policies, THERE | {C_MON: MONITOR}).cgroups.get(C_MON) is None


def test_pods_that_ended_or_that_nothing_matches_are_left_alone() -> None:
    assert chosen([policy("all")], ended=True) == Choice()
    assert chosen([]) == Choice()
    assert choose([(pod(), [policy("all")])], {}, None).coverage == {"all": Coverage(1)}


def test_policies_of_the_pods_namespace_by_its_labels() -> None:
    labels = {"app": "web"}

    def by_labels(name: str, **labels: str) -> PolicySlot:
        return policy(name, pod_selector=LabelSelector(match_labels=labels))

    absent = LabelRequirement(key="tier", operator=Operator.NOT_IN, values=("x",))
    policies = [
        by_labels("web", app="web"),
        by_labels("api", app="api"),
        policy("not-x", pod_selector=LabelSelector(match_expressions=(absent,))),
        policy("bank", namespace="bank"),
        PolicySlot(name="host", selector=SlotSelector(host=True), frequency_hz=19),
    ]
    found = matching(policies, pod(labels=labels))
    assert [each.name for each in found] == ["web", "not-x"]


def test_a_policy_behind_one_that_takes_all_can_sample_nothing() -> None:
    policies = [policy("web", "app"), policy("all"), policy("never"), policy("nor", "app")]
    assert [each.name for each in samplers(policies)] == ["web", "all"]
    assert len(samplers(policies[:1])) == 1
