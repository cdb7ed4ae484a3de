"""What Helm makes: kinds, namespaces, the operator, rights."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from flameherd_policy.decode import type_info
from flameherd_policy.resources import GROUP, RESOURCES, VERSION, Resource

from flameherd_operator.errors import ApiFailure
from flameherd_operator.plugin.cluster import Cluster
from flameherd_operator.plugin.examine import Finding, Places, fail, ok, warn
from flameherd_operator.plugin.reader import Json
from flameherd_operator.settings import MANAGER, Settings, shard_name

OLDEST: Final = (1, 30)
"""AppArmor profiles are fields of pods, and tokens say their node, since then."""
_ENFORCE: Final = "pod-security.kubernetes.io/enforce"
_CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_REVIEW: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_INSTALL: Final = "helm upgrade --install flameherd charts/flameherd"


def server(cluster: Cluster, places: Places) -> Iterator[Finding]:
    """New enough?"""
    del places
    found = cluster.reader.get("/version")
    version = (int(found["major"]), int(re.sub(r"\D.*", "", found["minor"])))
    name = found["gitVersion"]
    if version < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        yield fail(f"Kubernetes {name} is too old", f"use Kubernetes {oldest} or newer")
    else:
        yield ok(f"Kubernetes {name}")


def kinds(cluster: Cluster, places: Places) -> Iterator[Finding]:
    """Served, and as this version of the plugin knows them?"""
    del places
    for resource in RESOURCES:
        body = _find(cluster, f"{_CRDS}/{resource.plural}.{GROUP}")
        if body is None:
            yield fail(f"{resource.plural} are not there", f"{_INSTALL} (crds.create is on)")
            continue
        established = any(
            c["type"] == "Established" and c["status"] == "True"
            for c in (body.get("status") or {}).get("conditions") or ()
        )
        missing = _unknown_fields(resource, body)
        if not established:
            yield fail(
                f"{resource.plural} are not served",
                f"kubectl describe crd {resource.plural}.{GROUP}",
            )
        elif missing:
            names = ", ".join(missing)
            yield warn(
                f"{resource.plural} are of an older version: no {names}",
                "kubectl apply --server-side -f crds/, or helm upgrade with crds.create on",
            )
        else:
            yield ok(resource.plural)


def _unknown_fields(resource: Resource, body: Json) -> list[str]:
    """Fields of `spec` that we know and the cluster's schema does not."""
    for version in body["spec"]["versions"]:
        if version["name"] == VERSION:
            schema = version["schema"]["openAPIV3Schema"]["properties"]
            there = schema.get("spec", {}).get("properties", {})
            info = type_info(resource.model)
            spec = next(f.type for f in info.fields if f.encode_name == "spec")  # type: ignore[attr-defined]
            spec = getattr(spec, "type", spec)  # under its annotations
            return [f.encode_name for f in spec.fields if f.encode_name not in there]
    return [VERSION]


def namespaces(cluster: Cluster, places: Places) -> Iterator[Finding]:
    """There, and with the right Pod Security?"""
    for name, wanted in ((places.operator, "restricted"), (places.agents, "privileged")):
        body = _find(cluster, f"/api/v1/namespaces/{name}")
        if body is None:
            yield fail(f"there is no namespace {name}", _INSTALL)
            continue
        has = (body["metadata"].get("labels") or {}).get(_ENFORCE, "")
        mend = f"kubectl label --overwrite namespace {name} {_ENFORCE}={wanted}"
        if has == wanted:
            yield ok(f"{name} is {wanted}")
        elif wanted == "privileged" and has:
            yield fail(f"{name} is {has}: no agent's pod is admitted", mend)
        else:
            yield warn(f"{name} is not {wanted}, but {has or 'without a label'}", mend)


def operator(cluster: Cluster, places: Places) -> Iterator[Finding]:
    """Up, and one of them holds the Lease?"""
    space = places.operator
    body = _find(cluster, f"/apis/apps/v1/namespaces/{space}/deployments/{MANAGER}")
    if body is None:
        yield warn(
            f"there is no Deployment {MANAGER} in {space}",
            f"{_INSTALL}; outside of a cluster: none needed",
        )
    else:
        wanted = body["spec"].get("replicas", 1)
        ready = (body.get("status") or {}).get("readyReplicas", 0)
        logs = f"kubectl describe pods -n {space} -l app.kubernetes.io/name={MANAGER}"
        if ready == 0:
            yield fail(f"none of {wanted} replicas is ready", logs)
        elif ready < wanted:
            yield warn(f"{ready} of {wanted} replicas are ready", logs)
        else:
            yield ok(f"{ready} of {wanted} replicas are ready")
    yield _lease(cluster, places)


def _lease(cluster: Cluster, places: Places) -> Finding:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{places.operator}/leases/{MANAGER}"
    body = _find(cluster, path)
    logs = f"kubectl logs -n {places.operator} deployment/{MANAGER}"
    if body is None or not body["spec"].get("holderIdentity"):
        return fail("nobody holds the Lease: policies are not carried out", logs)
    spec = body["spec"]
    renewed = datetime.fromisoformat(spec["renewTime"])
    age_s = (datetime.now(UTC) - renewed).total_seconds()
    holder = spec["holderIdentity"]
    # Clocks may differ by some seconds; several durations are no clock's fault.
    if age_s > 4 * spec["leaseDurationSeconds"]:
        return fail(f"{holder} has not renewed the Lease for {age_s:.0f} s", logs)
    return ok(f"{holder} holds the Lease")


def rights(cluster: Cluster, places: Places) -> Iterator[Finding]:
    """Of both accounts: one question for each thing that nothing works without."""
    account = Settings().service_account
    operator_user = f"system:serviceaccount:{places.operator}:{MANAGER}"
    agent_user = f"system:serviceaccount:{places.agents}:{account}"
    status = "profilingpolicies/status"
    questions = (
        (operator_user, "list", GROUP, "profilingpolicies", "", ""),
        (operator_user, "patch", GROUP, status, "", ""),
        (operator_user, "list", "", "namespaces", "", ""),
        (operator_user, "create", "authentication.k8s.io", "tokenreviews", "", ""),
        (operator_user, "patch", "apps", "daemonsets", places.agents, ""),
        (operator_user, "patch", "", "configmaps", places.agents, ""),
        (operator_user, "patch", "", "secrets", places.agents, ""),
        (operator_user, "update", "coordination.k8s.io", "leases", places.operator, ""),
        (agent_user, "list", "", "pods", "", ""),
        (agent_user, "watch", "", "configmaps", places.agents, shard_name(0)),
    )
    missing = [
        f"{user.rpartition(':')[2]} may not {verb} {what}{f' in {space}' if space else ''}"
        for user, verb, group, what, space, name in questions
        if not _may(cluster, user, verb, group, what, space, name)
    ]
    for line in missing:
        yield fail(line, f"{_INSTALL} grants what this version needs")
    if not missing:
        yield ok(f"{len(questions)} of {len(questions)} rights of operator and agents")


def _may(
    cluster: Cluster, user: str, verb: str, group: str, what: str, space: str, name: str
) -> bool:
    resource, _, sub = what.partition("/")
    attributes = {
        "verb": verb, "group": group, "resource": resource, "subresource": sub,
        "namespace": space, "name": name,
    }  # fmt: skip
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": user,
            "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": attributes,
        },
    }
    return bool(cluster.reader.review(_REVIEW, body)["status"].get("allowed"))


def _find(cluster: Cluster, path: str) -> Json | None:
    try:
        return cluster.reader.get(path)
    except ApiFailure as error:
        if error.code == 404:
            return None
        raise
