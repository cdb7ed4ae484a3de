"""Builds the programs that cluster tests run: Kubernetes with etcd in one binary, and helm.

They are the upstream programs from their Go modules: `src/go.mod` pins them, helm as a tool, so that
both share compiled packages. A cold build, downloads included, takes about a quarter of an hour on
two cores.

    python -m tests.cluster.build        prints the binaries' paths
"""

import re
from pathlib import Path

from tests.go_build import go_binary

SOURCE = Path(__file__).parent / "src"
HELM = "helm.sh/helm/v3"


def pinned(module: str) -> str:
    """`v1.35.4`: the version of a module that `src/go.mod` pins."""
    found = re.search(rf"^\t{re.escape(module)} (v\S+)", (SOURCE / "go.mod").read_text(), re.M)
    if found is None:
        raise RuntimeError(f"{SOURCE / 'go.mod'} does not say which {module}")
    return found[1]


def _settings(values: dict[str, str]) -> str:
    return " ".join(f"-X {name}={value}" for name, value in values.items())


def kubernetes_binary() -> Path:
    """etcd, the control plane, kubelet, kube-proxy and kubectl; its first argument says which.

    Raises `RuntimeError` with the build's output.
    """
    version = pinned("k8s.io/kubernetes")
    major, minor, _ = version.removeprefix("v").split(".")
    # The programs refuse to work together when a build does not say its version; clients tell it
    # to servers from a variable of their own.
    package = "k8s.io/component-base/version"
    values = {f"{package}.gitVersion": version, "k8s.io/client-go/pkg/version.gitVersion": version}
    values |= {f"{package}.gitMajor": major, f"{package}.gitMinor": minor}
    return go_binary("kubernetes", SOURCE, settings=_settings(values))


def helm_binary() -> Path:
    """helm. Raises `RuntimeError` with the build's output."""
    _, minor, _ = pinned("k8s.io/kubernetes").split(".")
    values = {
        f"{HELM}/internal/version.version": pinned(HELM),
        # What `helm template` takes the cluster for when it asks none.
        f"{HELM}/pkg/chartutil.k8sVersionMajor": "1",
        f"{HELM}/pkg/chartutil.k8sVersionMinor": minor,
    }
    return go_binary("helm", SOURCE, package=f"{HELM}/cmd/helm", settings=_settings(values))


if __name__ == "__main__":
    print(kubernetes_binary())
    print(helm_binary())
