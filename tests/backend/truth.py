"""Profiles made at random, and what every view must say of them, computed plainly from the same samples."""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from flameherd_agent.model import (
    FrameType,
    Line,
    Location,
    Mapping,
    Profile,
    ResourceProfiles,
    Sample,
)

from tests.backend.running import now_ns

Name = tuple[str, str, str, str]
"""A frame's (name, kind, mapping, file)."""

MAPPINGS = [Mapping(f"/usr/bin/m{n}", gnu_build_id=f"{n:040x}") for n in range(4)]
LIBRARY = [
    Location(
        FrameType.NATIVE if n % 3 else FrameType.GO,
        0x1000 * n,
        MAPPINGS[n % 4],
        tuple(Line(f"fn{n}{'i' * k}", "", f"/src/{n % 5}.c", n + k + 1) for k in range(n % 3)),
    )
    for n in range(1, 40)
]
"""Named, inlined and unnamed ones."""


def names(location: Location) -> list[Name]:
    """The frames of a location, innermost first."""
    assert location.mapping is not None
    path = location.mapping.path
    kind = location.kind.value
    if not location.lines:
        return [(f"{path.rpartition('/')[2]}+0x{location.address:x}", kind, path, "")]
    return [(line.function, kind, path, line.file) for line in location.lines]


@dataclass
class Taken:
    """One sample as views see it."""

    labels: dict[str, str]
    stack: tuple[Name, ...]
    """Root first."""
    value: int
    ts: int


@dataclass
class Truth:
    """What was sent."""

    samples: list[Taken] = field(default_factory=list)

    def where(self, keep: Callable[[dict[str, str]], bool]) -> "Truth":
        return Truth([sample for sample in self.samples if keep(sample.labels)])

    def under(self, path: tuple[Name, ...]) -> "Truth":
        return Truth([sample for sample in self.samples if sample.stack[: len(path)] == path])

    def total(self) -> int:
        return sum(sample.value for sample in self.samples)

    def tree(self) -> dict[tuple[Name, ...], tuple[int, int]]:
        """Path from the root → (value, self)."""
        value: Counter[tuple[Name, ...]] = Counter()
        own: Counter[tuple[Name, ...]] = Counter()
        for sample in self.samples:
            own[sample.stack] += sample.value
            for depth in range(len(sample.stack) + 1):
                value[sample.stack[:depth]] += sample.value
        return {path: (total, own[path]) for path, total in value.items()}

    def functions(self) -> dict[Name, tuple[int, int]]:
        """Function → (self, total)."""
        own: Counter[Name] = Counter()
        total: Counter[Name] = Counter()
        for sample in self.samples:
            own[sample.stack[-1]] += sample.value
            for name in set(sample.stack):
                total[name] += sample.value
        return {name: (own[name], total[name]) for name in total}

    def sandwich(self, name: Name) -> "tuple[Truth, Truth]":
        """Stacks up to the callers of the outermost occurrence (it first), and down from it."""
        callers, callees = [], []
        for sample in self.samples:
            if name in sample.stack:
                at = sample.stack.index(name)
                callers.append(Taken({}, tuple(reversed(sample.stack[:at])), sample.value, 0))
                callees.append(Taken({}, sample.stack[at + 1 :], sample.value, 0))
        return Truth(callers), Truth(callees)

    def mappings(self) -> dict[str, tuple[int, int, int, int]]:
        """Path → (self, total, functions, those without a name)."""
        own: Counter[str] = Counter()
        total: Counter[str] = Counter()
        functions: defaultdict[str, set[Name]] = defaultdict(set)
        for sample in self.samples:
            own[sample.stack[-1][2]] += sample.value
            for path in {name[2] for name in sample.stack}:
                total[path] += sample.value
            for name in sample.stack:
                functions[name[2]].add(name)
        return {
            path: (
                own[path],
                total[path],
                len(functions[path]),
                sum("+0x" in name[0] for name in functions[path]),
            )
            for path in total
        }

    def by(self, label: str) -> dict[str, int]:
        """Value of a label → sum."""
        sums: Counter[str] = Counter()
        for sample in self.samples:
            sums[sample.labels.get(label, "")] += sample.value
        return dict(sums)


def make(
    seed: int, namespaces: Iterable[str], count: int = 60
) -> tuple[list[ResourceProfiles], Truth]:
    """Profiles of pods in some namespaces over the last minutes, and their truth."""
    dice = random.Random(seed)
    truth = Truth()
    resources = []
    now = now_ns()
    for namespace in namespaces:
        for pod in range(2):
            hz = dice.choice([19, 20, 97])
            period = round(1e9 / hz)
            time_ns = now - dice.randrange(20, 600) * 10**9
            shared = {
                "namespace": namespace,
                "pod": f"{namespace}-{pod}",
                "node": f"node-{pod}",
                "team": f"t{pod}",
            }
            attributes = (
                ("host.name", shared["node"]),
                ("k8s.deployment.name", f"{namespace}-web"),
                ("k8s.namespace.name", namespace),
                ("k8s.pod.name", shared["pod"]),
                ("service.name", f"{namespace}-web"),
                ("team", shared["team"]),
            )
            samples = []
            for _ in range(count):
                stack = tuple(
                    dice.choices(
                        LIBRARY[: 8 if dice.random() < 0.5 else None], k=dice.randint(1, 9)
                    )
                )
                pid = dice.choice([7, 8])
                value = dice.randint(1, 5)
                own = (
                    ("process.executable.name", f"exe{pid}"),
                    ("process.pid", pid),
                    ("thread.name", f"w{pid}"),
                )
                samples.append(Sample(stack, own, value))
                leaf_first = [name for location in stack for name in names(location)]
                labels = {
                    **shared,
                    "workload": f"{namespace}-web",
                    "service": f"{namespace}-web",
                    "instance": shared["pod"],
                    "executable": f"exe{pid}",
                    "thread": f"w{pid}",
                    "process.pid": str(pid),
                }
                truth.samples.append(
                    Taken(labels, tuple(reversed(leaf_first)), value * period, time_ns)
                )
            profile = Profile(samples, period, time_ns, 10 * 10**9)
            resources.append(ResourceProfiles(attributes, [profile], f"{namespace}/cpu"))
    return resources, truth


def frame_names(answer: dict[str, Any]) -> list[Name | None]:
    """The frames of an answer, by place."""
    text, frames = answer["strings"], answer["frames"]
    rows = zip(*(frames[key] for key in ("name", "kind", "mapping", "file")), strict=True)
    return [
        (text[n], text[k], text[m], text[f]) if i else None for i, (n, k, m, f) in enumerate(rows)
    ]


def ids(answer: dict[str, Any]) -> dict[Name, str]:
    """Frame → its id."""
    found = zip(frame_names(answer), answer["frames"]["id"], strict=True)
    return {name: identity for name, identity in found if name is not None}


def read_tree(
    answer: dict[str, Any], nodes: dict[str, list[int]], value: str = "value", own: str = "self"
) -> dict[tuple[Name, ...], tuple[int, int]]:
    """Columns of a tree as path → (value, self)."""
    frames = frame_names(answer)
    paths: list[tuple[Name, ...]] = []
    out = {}
    for number, parent in enumerate(nodes["parent"]):
        assert parent < number
        name = frames[nodes["frame"][number]]
        paths.append(() if number == 0 else (*paths[parent], name))  # type: ignore[arg-type]
        assert paths[-1] not in out, "children of one node have different frames"
        out[paths[-1]] = (nodes[value][number], nodes[own][number])
    return out
