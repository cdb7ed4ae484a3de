"""Configuration files of a node's programs. Pure."""

import json
from pathlib import Path

import yaml

from tests.cluster.namespaces import ADDRESS, NAME

PAUSE = "registry.local/pause:1"
"""The image that holds a pod's namespaces; nothing is ever pulled."""
POD_ADDRESSES = "10.244.0.0/24"
RUNTIME = "/run/containerd/containerd.sock"


def containerd(folder: Path, cni: Path, runc: Path) -> str:
    """TOML of containerd 1.6; its images and snapshots are in `folder`."""
    unused = ["snapshotter.v1.btrfs", "snapshotter.v1.zfs", "snapshotter.v1.devmapper"]
    unused += ["snapshotter.v1.aufs", "internal.v1.tracing", "internal.v1.opt"]
    cri = '[plugins."io.containerd.grpc.v1.cri"'
    return "\n".join(
        [
            "version = 2",
            f'root = "{folder / "containerd"}"',
            'state = "/run/containerd"',
            "oom_score = 0",
            f"disabled_plugins = {[f'io.containerd.{name}' for name in unused]}".replace("'", '"'),
            "[grpc]",
            f'address = "{RUNTIME}"',
            f"{cri}]",
            f'sandbox_image = "{PAUSE}"',
            # Lowering a score takes CAP_SYS_RESOURCE, without which runc would give up.
            "restrict_oom_score_adj = true",
            f"{cri}.cni]",
            f'bin_dir = "{cni}"',
            f'conf_dir = "{folder / "cni"}"',
            f"{cri}.containerd.runtimes.runc]",
            'runtime_type = "io.containerd.runc.v2"',
            f"{cri}.containerd.runtimes.runc.options]",
            f'BinaryName = "{runc}"',
            "SystemdCgroup = false",
            "",
        ]
    )


def pod_network() -> str:
    """CNI: a bridge of all pods that is also their way to the node. Nothing leads out of it."""
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": POD_ADDRESSES}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": "pods0",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": addresses,
    }
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]})


def kubelet(folder: Path, cgroup: str, ca: Path) -> str:
    return str(
        yaml.safe_dump(
            {
                "apiVersion": "kubelet.config.k8s.io/v1beta1",
                "kind": "KubeletConfiguration",
                "cgroupDriver": "cgroupfs",
                "cgroupRoot": f"/{cgroup}",
                "failCgroupV1": False,
                "failSwapOn": False,
                "containerRuntimeEndpoint": f"unix://{RUNTIME}",
                "authentication": {
                    "anonymous": {"enabled": False},
                    "webhook": {"enabled": False},
                    "x509": {"clientCAFile": str(ca)},
                },
                # Whoever has a certificate of the cluster's authority: only the API server.
                "authorization": {"mode": "AlwaysAllow"},
                "clusterDNS": [ADDRESS],
                "clusterDomain": "cluster.local",
                "resolvConf": str(folder / "resolv.conf"),
                "makeIPTablesUtilChains": False,
                # The machine's disk and memory are not the node's own.
                "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%"},
                "imageGCHighThresholdPercent": 100,
                "imageGCLowThresholdPercent": 99,
                "nodeStatusReportFrequency": "1m",
                "shutdownGracePeriod": "0s",
            }
        )
    )


def kube_proxy(kubeconfig: Path) -> str:
    return str(
        yaml.safe_dump(
            {
                "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                "kind": "KubeProxyConfiguration",
                "mode": "nftables",
                "clientConnection": {"kubeconfig": str(kubeconfig)},
                "hostnameOverride": NAME,
                # The limit is the machine's, not this network namespace's.
                "conntrack": {"maxPerCore": 0},
            }
        )
    )
