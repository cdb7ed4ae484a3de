"""Builds the control plane that cluster tests run against: etcd, kube-apiserver and kubectl.

They are the upstream programs from their Go modules (`src/go.mod` pins them), in one binary. A
cold build, downloads included, takes about eight minutes on two cores.

    python -m tests.cluster.build        prints the binary's path
"""

import re
from pathlib import Path

from tests.go_build import go_binary

SOURCE = Path(__file__).parent / "src"


def kubernetes_version() -> str:
    """`v1.35.4`: the version that `src/go.mod` pins."""
    found = re.search(r"^\tk8s\.io/kubernetes (v\S+)$", (SOURCE / "go.mod").read_text(), re.M)
    if found is None:
        raise RuntimeError(f"{SOURCE / 'go.mod'} does not say which Kubernetes")
    return found[1]


def control_plane_binary() -> Path:
    """The path of the built control plane. Raises `RuntimeError` with the build's output."""
    version = kubernetes_version()
    major, minor, _ = version.removeprefix("v").split(".")
    package = "k8s.io/component-base/version"
    # The programs refuse to work together when a build does not say its version.
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    settings = " ".join(f"-X {package}.{name}={value}" for name, value in values.items())
    return go_binary("control-plane", SOURCE, settings=settings)


if __name__ == "__main__":
    print(control_plane_binary())
