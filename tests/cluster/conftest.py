"""Fixtures: a control plane for the whole run, and its API with the project's kinds; a whole node."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster import node_images
from tests.cluster.api import Api, Refused, eventually
from tests.cluster.build import kubernetes_binary
from tests.cluster.control_plane import ControlPlane
from tests.cluster.node import CannotRun, Node
from tests.cluster.node import missing as missing_for_node
from tests.go_build import go

CRDS = sorted((Path(__file__).parents[2] / "crds").glob("*.yaml"))
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


_BUILD_S = 2400
"""The first test of a run builds the cluster's programs where they are not cached."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(_BUILD_S))


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    if go() is None:
        pytest.skip("needs Go to build a Kubernetes API server")
    made = ControlPlane(kubernetes_binary(), tmp_path_factory.mktemp("control-plane"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


def install_kinds(api: Api) -> None:
    """The CRDs as committed; back when the API server serves them."""
    for path in CRDS:
        definition = yaml.safe_load(path.read_text())
        api.apply(f"{DEFINITIONS}/{definition['metadata']['name']}", definition)
        names = definition["spec"]["names"]
        served = f"/apis/flameherd.dev/v1alpha1/{names['plural']}"

        def answers(served: str = served) -> bool:
            try:
                return "items" in api.get(served)
            except Refused as error:
                if error.code in (404, 429, 503):  # not yet, or its storage is being made
                    return False
                raise

        eventually(answers, f"{served} is served")


@pytest.fixture(scope="session")
def api(control_plane: ControlPlane) -> Api:
    """The API as its administrator, with our kinds and two tenants' namespaces."""
    made = control_plane.admin
    install_kinds(made)
    for name in ("shop", "bank"):
        made.namespace(name, {"tenant": name})
    return made


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node for the whole run, with the images that tests run on it; Flameherd is not installed."""
    if reason := missing_for_node() or node_images.missing():
        pytest.skip(reason)
    images = node_images.test_images()
    made = Node(tmp_path_factory.mktemp("node"))
    try:
        try:
            made.start()
        except CannotRun as error:
            pytest.skip(f"a node needs mounts and a network of its own: {error}")
        made.load(*images)
        yield made
    finally:
        made.stop()
