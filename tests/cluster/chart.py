"""The Helm chart as tests see it: rendered, and its snapshots.

    python -m tests.cluster.chart        writes the snapshots anew

A snapshot is what `helm template` makes of `charts/NAME.values.yaml`, without the CRDs: those are the
files of `crds/`, which another test compares.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from flameherd_operator.observed import Inputs, see
from flameherd_operator.render.agents import daemonset_name
from flameherd_operator.render.desired import desired
from flameherd_operator.settings import Settings

from tests.cluster.api import Json
from tests.cluster.build import helm_binary
from tests.cluster.operating import SYSTEM

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/flameherd"
SNAPSHOTS = Path(__file__).parent / "charts"


def helm(*arguments: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """helm as it ended. It keeps its own files in a scratch folder, whoever runs it."""
    with tempfile.TemporaryDirectory() as home:
        return subprocess.run(
            [str(helm_binary()), *arguments],
            env={"HOME": home, "PATH": os.defpath} | (env or {}),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )


def template(*options: str) -> str:
    """What the chart makes; raises AssertionError with what helm says."""
    done = helm("template", "flameherd", str(CHART), "--namespace", SYSTEM, *options)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout


def rendered(*options: str) -> list[Json]:
    """The objects that the chart makes, hooks included."""
    return [body for body in yaml.safe_load_all(template(*options)) if body]


def named(objects: list[Json], kind: str, name: str, namespace: str | None = None) -> Json:
    """The one object of a kind and name."""
    (found,) = [
        body
        for body in objects
        if body["kind"] == kind
        and body["metadata"]["name"] == name
        and namespace in (None, body["metadata"].get("namespace"))
    ]
    return found


def containers(objects: list[Json]) -> Iterator[tuple[str, Json, Any]]:
    """(name of the object, pod's spec, container) of everything that runs."""
    for body in objects:
        spec = (
            body["spec"]
            if body["kind"] == "Pod"
            else body.get("spec", {}).get("template", {}).get("spec")
        )
        for container in (spec or {}).get("containers", ()):
            yield body["metadata"]["name"], spec, container


def agents_pod(settings: Settings) -> Json:
    """What the operator makes of the chart's default pool."""
    pool = see("AgentPool", {"metadata": {"name": "default", "uid": "u"}, "spec": {}})
    made = desired(Inputs(pools=(pool,), owner_uid="u"), settings)
    (found,) = [o for o in made.objects if o["metadata"]["name"] == daemonset_name("default")]
    pod: Json = found["spec"]["template"]["spec"]
    return pod


def snapshot(values: Path) -> str:
    """What should be in the file beside `values`."""
    return template("--values", str(values), "--set", "crds.create=false")


def snapshots() -> list[Path]:
    """The values files."""
    return sorted(SNAPSHOTS.glob("*.values.yaml"))


def expected(values: Path) -> Path:
    """The snapshot of a values file."""
    return values.with_name(values.name.replace(".values.yaml", ".yaml"))


if __name__ == "__main__":
    for path in snapshots():
        expected(path).write_text(snapshot(path))
        print(expected(path))
