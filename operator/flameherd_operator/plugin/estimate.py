"""What a policy would cost, from what policies cost now. Pure.

Measured is what statuses say: samples, CPU and bytes a minute of policies that run. A sample costs
what it costs there; how many there will be follows from how busy the containers of those policies
are. Containers of the same namespace are asked first: they are likelier to be like the new ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

_MINUTE: Final = 60.0


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One policy that runs."""

    name: str
    frequency_hz: int
    containers: int
    """That it samples."""
    nodes: int
    """With at least one of them."""
    samples_per_minute: float
    bytes_per_minute: float
    cpu_per_node: float
    """CPUs, on average."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What it comes to; `basis` says from what."""

    samples_per_minute: float
    bytes_per_minute: float
    cpu_per_node_mean: float
    cpu_per_node_max: float
    basis: str

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "samplesPerMinute": round(self.samples_per_minute, 1),
            "bytesPerMinute": round(self.bytes_per_minute),
            "cpuPerNodeMean": self.cpu_per_node_mean,
            "cpuPerNodeMax": self.cpu_per_node_max,
            "basis": self.basis,
        }


def estimate(
    frequency_hz: int, per_node: Mapping[str, int], measured: Sequence[Measured], basis: str
) -> Estimate | None:
    """Of a policy at this rate with so many containers on each node; None = nothing to go by."""
    useful = [one for one in measured if one.samples_per_minute > 0 and one.containers > 0]
    if not useful or not per_node:
        return None
    samples = sum(one.samples_per_minute for one in useful)
    # Accepted samples of a container at 1 Hz: how many CPUs it uses, times 60.
    busy = samples / sum(one.containers * one.frequency_hz for one in useful)
    cpu_seconds = sum(one.cpu_per_node * max(1, one.nodes) for one in useful) * _MINUTE
    each = cpu_seconds / samples
    wanted = {node: count * frequency_hz * busy for node, count in per_node.items()}
    total = sum(wanted.values())
    return Estimate(
        samples_per_minute=total,
        bytes_per_minute=total * sum(one.bytes_per_minute for one in useful) / samples,
        cpu_per_node_mean=total * each / _MINUTE / len(wanted),
        cpu_per_node_max=max(wanted.values()) * each / _MINUTE,
        basis=f"{basis}: {_names(useful)}",
    )


def _names(measured: Iterable[Measured]) -> str:
    names = sorted(one.name for one in measured)
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
