"""A pod as the API server tells it → what the agent needs: labels to select by, containers by id,
and OpenTelemetry resource attributes.

Attributes are those of the semantic conventions for Kubernetes, and their rules for services
(semantic-conventions, docs/non-normative/k8s-attributes.md): annotations
`resource.opentelemetry.io/KEY` first, then well-known labels where a policy asks for that label,
then the workload. A workload is known without rights on it: a Deployment by the name that it gives
its ReplicaSet (its own and the label `pod-template-hash`), a CronJob by that of its Job (its own and
the minute it was due).

Labels and annotations are a tenant's: their values are cut, and none replaces what is known here.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from flameherd_policy.policies import Attributes as WantedAttributes

from flameherd_agent.cluster import objects
from flameherd_agent.metadata.process import MAX_TEXT

CONFIG_HASH: Final = "kubernetes.io/config.hash"
"""Of a static pod's mirror: what its cgroup is named after."""
OTEL_PREFIX: Final = "resource.opentelemetry.io/"
_MAX_ANNOTATIONS: Final = 128
_MAX_OTEL: Final = 32
_OTEL_KEY: Final = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*", re.ASCII)
_OURS: Final = (
    "container.",
    "flameherd.",
    "host.",
    "k8s.",
    "os.",
    "process.",
    "profile.",
    "thread.",
)
"""Attributes that only the agent sets, whatever annotations say."""
_CRON_JOB: Final = re.compile(r"(.+)-([0-9]{8})", re.ASCII)
_CRON_SLACK_MINUTES: Final = 7 * 24 * 60
_IMAGE: Final = re.compile(
    r"(?P<name>[^@]+?)(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>[a-z0-9]+:[0-9a-f]+))?",
    re.ASCII,
)
_WORKLOADS: Final = {
    "ReplicaSet": "k8s.replicaset.name",
    "StatefulSet": "k8s.statefulset.name",
    "DaemonSet": "k8s.daemonset.name",
    "Job": "k8s.job.name",
    "ReplicationController": "k8s.replicationcontroller.name",
}
_NAMED_BY: Final = (
    "k8s.deployment.name",
    "k8s.replicaset.name",
    "k8s.statefulset.name",
    "k8s.daemonset.name",
    "k8s.cronjob.name",
    "k8s.job.name",
    "k8s.pod.name",
)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of this node."""

    namespace: str
    name: str
    uid: str
    """As the API server has it."""
    cgroup_uid: str
    """As its cgroup is named: the uid, or a static pod's config hash."""
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    workload: Mapping[str, str]
    """`k8s.deployment.name` and the like."""
    images: Mapping[str, str]
    """Container → image, as it was asked for; init and ephemeral ones too."""
    containers: Mapping[str, str]
    """Container id → name, as far as the status tells."""
    ended: bool
    """No container of it will run again."""

    def attributes(
        self, container_id: str, wanted: WantedAttributes
    ) -> tuple[dict[str, str | int], bool]:
        """Resource attributes of one of its containers, and whether the container's name is known."""
        name = self.containers.get(container_id)
        found: dict[str, str | int] = {
            "k8s.namespace.name": self.namespace,
            "k8s.pod.name": self.name,
            "k8s.pod.uid": self.uid,
            **self.workload,
        }
        for key in wanted.pod_labels:
            if key in self.labels:
                found[f"k8s.pod.label.{key}"] = _cut(self.labels[key])
        for key in wanted.pod_annotations:
            if key in self.annotations:
                found[f"k8s.pod.annotation.{key}"] = _cut(self.annotations[key])
        image = self.images.get(name or "", "")
        if name is not None:
            found["k8s.container.name"] = name
            found |= _image_attributes(image)
        stated = self._stated()
        found |= self._service(found, stated, wanted, image)
        found |= {key: text for key, text in stated.items() if key not in found}
        return found, name is not None

    def _stated(self) -> dict[str, str]:
        """Attributes that annotations state, but for those that are the agent's to say."""
        keys = (
            (key.removeprefix(OTEL_PREFIX), text)
            for key, text in sorted(self.annotations.items())
            if key.startswith(OTEL_PREFIX)
        )
        good = ((k, t) for k, t in keys if _OTEL_KEY.fullmatch(k) and not k.startswith(_OURS))
        return {key: _cut(text) for (key, text), _ in zip(good, range(_MAX_OTEL), strict=False)}

    def _service(
        self,
        known: Mapping[str, str | int],
        stated: Mapping[str, str],
        wanted: WantedAttributes,
        image: str,
    ) -> dict[str, str]:
        def label(name: str) -> str:
            key = f"app.kubernetes.io/{name}"
            return _cut(self.labels.get(key, "")) if key in wanted.pod_labels else ""

        parts = (self.namespace, self.name, str(known.get("k8s.container.name", "")))
        rules = {
            "service.namespace": (self.namespace,),
            "service.name": (
                label("instance"),
                label("name"),
                *(str(known.get(key, "")) for key in _NAMED_BY),
            ),
            "service.version": (label("version"), _version(image)),
            "service.instance.id": (".".join(parts) if all(parts) else "",),
        }
        chosen = {
            key: next((text for text in (stated.get(key, ""), *texts) if text), "")
            for key, texts in rules.items()
        }
        return {key: text for key, text in chosen.items() if text}


def read_pod(seen: objects.Pod) -> Pod:
    """The part of a pod that is kept."""
    meta, spec, status = seen.metadata, seen.spec, seen.status
    annotations = meta.annotations or {}
    specs = (
        *(spec.containers or ()),
        *(spec.init_containers or ()),
        *(spec.ephemeral_containers or ()),
    )
    statuses = (
        *(status.container_statuses or ()),
        *(status.init_container_statuses or ()),
        *(status.ephemeral_container_statuses or ()),
    )
    labels = meta.labels or {}
    return Pod(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        cgroup_uid=annotations.get(CONFIG_HASH) or meta.uid,
        labels=labels,
        annotations=dict(_kept(annotations)),
        workload=_workload(meta, labels),
        images={container.name: container.image or "" for container in specs},
        containers={
            container.container_id.rpartition("/")[2]: container.name
            for container in statuses
            if container.container_id
        },
        ended=status.phase in ("Succeeded", "Failed"),
    )


def _kept(annotations: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Short ones, a bounded number, those that state attributes first: a pod may have 256 KB."""
    order = sorted(annotations, key=lambda key: (not key.startswith(OTEL_PREFIX), key))
    for key in order[:_MAX_ANNOTATIONS]:
        yield key, annotations[key][:MAX_TEXT]


def _workload(meta: objects.Meta, labels: Mapping[str, str]) -> dict[str, str]:
    owner = next((o for o in meta.owner_references or () if o.controller), None)
    if owner is None or owner.kind not in _WORKLOADS:
        return {}
    found = {_WORKLOADS[owner.kind]: owner.name}
    suffix = f"-{labels.get('pod-template-hash', '')}"
    if owner.kind == "ReplicaSet" and len(suffix) > 1 and owner.name.endswith(suffix):
        found["k8s.deployment.name"] = owner.name.removesuffix(suffix)
    if owner.kind == "Job" and (cron := _cron_job(owner.name, meta.creation_timestamp)):
        found["k8s.cronjob.name"] = cron
    return found


def _cron_job(job: str, created: str | None) -> str:
    """A CronJob's Jobs end with the minute that they were due, in minutes since 1970; a Job that
    merely ends with eight digits is due at no such time.
    """
    found = _CRON_JOB.fullmatch(job)
    if found is None or created is None:
        return ""
    try:
        minute = datetime.fromisoformat(created).timestamp() / 60
    except ValueError:
        return ""
    return found[1] if abs(int(found[2]) - minute) <= _CRON_SLACK_MINUTES else ""


def _parts(image: str) -> tuple[str, str, str]:
    """Name, tag and digest of an image reference; "" = not there."""
    found = _IMAGE.fullmatch(image)
    if found is None:
        return image, "", ""
    return found["name"], found["tag"] or "", found["digest"] or ""


def _image_attributes(image: str) -> dict[str, str | int]:
    name, _, _ = _parts(image)
    return {"container.image.name": _cut(name)} if name else {}


def _version(image: str) -> str:
    _, tag, digest = _parts(image)
    return f"{tag}@{digest}" if tag and digest else digest or tag


def _cut(text: str) -> str:
    return text[:MAX_TEXT]
