"""`kubectl flameherd`: what needs no cluster."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from flameherd_operator.errors import ApiFailure
from flameherd_operator.plugin.assign import Pod, mismatch, pod_of, shares, takers
from flameherd_operator.plugin.cluster import existing, slots
from flameherd_operator.plugin.estimate import Measured, estimate
from flameherd_operator.plugin.examine.nodes import unfit
from flameherd_operator.plugin.output import amount, count, cpus, table
from flameherd_operator.plugin.reader import Kubectl, items
from flameherd_policy.agent_config import PolicySlot, SlotSelector
from flameherd_policy.selectors import LabelRequirement, LabelSelector, Operator


def test_the_plugin_is_light() -> None:
    """kubectl users wait for its start: nothing that only the operator needs is imported."""
    program = (
        "import sys, flameherd_operator.plugin.cli; "
        "heavy = {'kopf', 'kubernetes', 'aiohttp', 'numpy', 'flameherd_agent'} & set(sys.modules); "
        "sys.exit(', '.join(heavy) or 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def pod(name: str = "p", node: str = "n", ended: bool = False, **labels: str) -> Pod:
    return Pod(
        namespace="shop", name=name, node=node, labels=labels, containers=("a", "b"), ended=ended
    )


def slot(name: str, **selector: Any) -> PolicySlot:
    chosen = SlotSelector(**({"namespace": "shop"} | selector))
    return PolicySlot(name=name, selector=chosen, frequency_hz=19)


def names(taken: dict[str, PolicySlot | None]) -> dict[str, str | None]:
    return {container: slot.name if slot else None for container, slot in taken.items()}


def test_the_first_slot_that_takes_a_container_samples_it() -> None:
    only_a = slot("only-a", container_names=("a",))
    labelled = slot("labelled", pod_selector=LabelSelector(match_labels={"app": "x"}))
    host = slot("host", namespace=None, host=True)
    assert names(takers([only_a, labelled], pod(app="x"))) == {"a": "only-a", "b": "labelled"}
    assert names(takers([labelled, only_a], pod(app="x"))) == {"a": "labelled", "b": "labelled"}
    assert names(takers([only_a, labelled], pod())) == {"a": "only-a", "b": None}
    assert names(takers([host, only_a], pod())) == {"a": "only-a", "b": "host"}
    assert names(takers([slot("other", namespace="bank")], pod())) == {"a": None, "b": None}
    assert not list(shares([only_a], [pod(ended=True)]))


def test_pods_have_init_and_ephemeral_containers() -> None:
    spec = {
        "nodeName": "n",
        "initContainers": [{"name": "i"}],
        "containers": [{"name": "c"}],
        "ephemeralContainers": [{"name": "e"}],
    }
    body = {
        "metadata": {"namespace": "s", "name": "p"},
        "spec": spec,
        "status": {"phase": "Failed"},
    }
    found = pod_of(body)
    assert found.containers == ("i", "c", "e")
    assert found.ended


@pytest.mark.parametrize(
    ("selector", "labels", "said"),
    [
        (LabelSelector(), {}, ""),
        (LabelSelector(match_labels={"a": "1"}), {"a": "2"}, "podSelector wants a=1: it is 2"),
        (
            LabelSelector(match_labels={"a": "1"}),
            {},
            "podSelector wants a=1: there is no such label",
        ),
        (
            LabelSelector(
                match_expressions=(LabelRequirement(key="a", operator=Operator.IN, values=("1",)),)
            ),
            {},
            "podSelector wants a In (1): there is none",
        ),
        (
            LabelSelector(
                match_expressions=(LabelRequirement(key="a", operator=Operator.DOES_NOT_EXIST),)
            ),
            {"a": "1"},
            "podSelector wants a DoesNotExist: it is 1",
        ),
    ],
)
def test_a_mismatch_is_named(selector: LabelSelector, labels: dict[str, str], said: str) -> None:
    assert mismatch(selector, labels) == said
    assert selector.matches(labels) is not bool(said)


def body(generation: int, observed: int, ready: str = "True", **status: Any) -> dict[str, Any]:
    condition = {
        "status": ready, "observedGeneration": observed, "lastTransitionTime": "2026-01-01T00:00:00Z",
        "reason": "Programmed" if ready == "True" else "SecretNotFound", "message": "said",
    }  # fmt: skip
    return {
        "metadata": {"name": "p", "namespace": "shop", "uid": "u", "generation": generation},
        "spec": {"podSelector": {}, "cpu": {}},
        "status": {
            "observedGeneration": observed,
            "conditions": [{"type": t} | condition for t in ("Ready", "Programmed")],
            "effective": {"cpu": {"frequencyHz": 19}},
        }
        | status,
    }


def test_only_what_agents_are_told_of_samples() -> None:
    good = existing("ProfilingPolicy", body(2, 2))
    assert good.state() == ("Ready", "")
    assert [s.name for s in slots([good], None)] == ["shop/p"]
    bad = existing("ProfilingPolicy", body(2, 2, "False"))
    assert bad.state() == ("SecretNotFound", "said")
    old = existing("ProfilingPolicy", body(3, 2))
    assert old.state()[0] == "NotSeen"
    assert not list(slots([bad, old], None))
    strange = existing("ProfilingPolicy", body(2, 2, conditions="none"))
    assert strange.state()[0] == "NotSeen"


def test_an_estimate_follows_what_is_measured() -> None:
    measured = Measured(
        name="shop/p", frequency_hz=10, containers=4, nodes=2, samples_per_minute=2400,
        bytes_per_minute=24000, cpu_per_node=0.001,
    )  # fmt: skip
    found = estimate(20, {"n1": 3, "n2": 1}, [measured], "measured by")
    assert found is not None
    # One CPU each: 600 samples a minute at 10 Hz, 1,200 at 20 Hz; 2 ms a second for 2,400 samples.
    assert found.samples_per_minute == pytest.approx(4800)
    assert found.bytes_per_minute == pytest.approx(48000)
    assert found.cpu_per_node_mean == pytest.approx(0.002)
    assert found.cpu_per_node_max == pytest.approx(0.003)
    assert found.basis == "measured by: shop/p"
    assert estimate(20, {"n1": 3}, [], "measured by") is None
    assert estimate(20, {}, [measured], "measured by") is None


@pytest.mark.parametrize(
    ("labels", "info", "why"),
    [
        ({}, {"architecture": "amd64", "kernelVersion": "6.1.0"}, ""),
        ({}, {"architecture": "arm64"}, "no agent for arm64"),
        ({}, {"operatingSystem": "windows"}, "operating system is windows"),
        ({}, {"architecture": "amd64", "kernelVersion": "5.4.0-1"}, "older than 5.10"),
        ({"eks.amazonaws.com/compute-type": "fargate"}, {}, "Fargate"),
    ],
)
def test_nodes_where_no_agent_can_run(labels: dict[str, str], info: Any, why: str) -> None:
    found = unfit({"metadata": {"name": "n", "labels": labels}, "status": {"nodeInfo": info}})
    assert bool(found) is bool(why)
    assert why in found


def test_tables() -> None:
    assert table(("A", "LONGER"), [("x", ""), ("yyyy", "z")]) == "A      LONGER\nx      -\nyyyy   z"
    assert [amount(n) for n in (7, 1234, 56_000_000)] == ["7", "1.23k", "56M"]
    assert [cpus(n) for n in (0.0052, 0.000120, 1.5)] == ["5.2m", "120u", "1500m"]
    assert [count(1, "pod"), count(2, "pod")] == ["1 pod", "2 pods"]


class Pages:
    """A reader of lists in two pages."""

    def get(self, path: str) -> dict[str, Any]:
        if path.endswith("&continue=2"):
            return {"items": [{"n": 2}], "metadata": {}}
        assert path == "/things?limit=500&labelSelector=a"
        return {"items": [{"n": 1}], "metadata": {"continue": "2"}}

    def review(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def namespace(self) -> str:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def test_lists_are_read_page_by_page() -> None:
    assert list(items(Pages(), "/things", "labelSelector=a")) == [{"n": 1}, {"n": 2}]


def test_a_kubectl_that_fails_is_quoted(tmp_path: Path) -> None:
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\necho warning >&2\necho 'error: no such context' >&2\nexit 1\n")
    program.chmod(0o755)
    reader = Kubectl(program=str(program))
    for ask in (lambda: reader.get("/x"), reader.namespace):
        with pytest.raises(ApiFailure, match="no such context") as caught:
            ask()
        assert caught.value.code == 0
    reader.close()
    program.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(ApiFailure, match="without a word"):
        reader.namespace()
    with pytest.raises(ApiFailure, match="not on the PATH"):
        Kubectl(program=str(tmp_path / "none"))
