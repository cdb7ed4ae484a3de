"""What is read of the API server's objects. Everything else is skipped without being decoded.

Field names: Kubernetes API v1 (Pod, ConfigMap, WatchEvent, Status).
"""

from typing import Generic, TypeVar

import msgspec


class _Read(msgspec.Struct, frozen=True, rename="camel"):
    """Base: unknown fields are skipped, absent and null lists are empty."""


class Owner(_Read, frozen=True):
    """An entry of `metadata.ownerReferences`."""

    kind: str = ""
    name: str = ""
    controller: bool | None = None


class Meta(_Read, frozen=True):
    """`metadata`."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[Owner] | None = None


class ContainerSpec(_Read, frozen=True):
    """A container as it was asked for."""

    name: str = ""
    image: str | None = None


class ContainerStatus(_Read, frozen=True):
    """A container as it runs, or ran last."""

    name: str = ""
    container_id: str | None = msgspec.field(default=None, name="containerID")
    """`containerd://` and the id; absent until the runtime has told."""


class PodSpec(_Read, frozen=True):
    """`spec`."""

    containers: list[ContainerSpec] | None = None
    init_containers: list[ContainerSpec] | None = None
    ephemeral_containers: list[ContainerSpec] | None = None


class PodStatus(_Read, frozen=True):
    """`status`."""

    phase: str | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    ephemeral_container_statuses: list[ContainerStatus] | None = None


class Pod(_Read, frozen=True):
    """A pod."""

    metadata: Meta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class ConfigMap(_Read, frozen=True):
    """A ConfigMap."""

    metadata: Meta
    binary_data: dict[str, str] | None = None


Kind = TypeVar("Kind", Pod, ConfigMap)


class ListMeta(_Read, frozen=True):
    """`metadata` of a list."""

    resource_version: str = ""


class ListOf(_Read, Generic[Kind], frozen=True):
    """A list's answer."""

    metadata: ListMeta
    items: list[Kind] | None = None


class WatchEvent(_Read, frozen=True):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class Bookmark(_Read, frozen=True):
    """Any object, for its version only."""

    metadata: Meta


class Status(_Read, frozen=True):
    """Why the API server refuses."""

    code: int | None = None
    message: str | None = None
