"""A real cluster of one node on this machine: Kubernetes with containerd and runc, pods included.

It has its own view of mounts and network (`namespaces`) and its own cgroup; nothing is installed, and
nothing but that cgroup shows outside. What tests use of it is on loopback addresses of this machine:
the API server, and what `forward` leads to. Images are imported, never pulled.

    with Node(folder) as node:
        node.load(archive)
        node.kubectl("get", "pods", "-A")
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cluster import cgroups, node_settings
from tests.cluster.api import Api, Json, Refused
from tests.cluster.build import helm_binary, kubernetes_binary
from tests.cluster.control_plane import ControlPlane
from tests.cluster.namespaces import ADDRESS, NAME
from tests.cluster.packages import unpacked
from tests.cluster.programs import Programs
from tests.go_build import go

CHECKOUT = Path(__file__).resolve().parents[2]
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
_TOOLS = ("unshare", "nsenter", "setpriv", "ip", "openssl", "apt-get", "dpkg-deb")
_READY_S = 180
_NAMESPACES = {"mount": "mnt", "net": "net", "uts": "uts"}
_USERS = {
    "kubelet": (f"system:node:{NAME}", "system:nodes"),
    "controllers": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
}


class CannotRun(Exception):
    """This machine gives no node its own view; the message says what is refused."""


def missing() -> str:
    """Why no node can run here; empty if nothing is known to be in the way."""
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if go() is None:
        lacking.append("Go")
    if os.geteuid() != 0:
        lacking.append("root rights")
    elif Path("/proc/self/ns/pid").readlink() != Path(_INITIAL_PID_NAMESPACE):
        lacking.append("the machine's initial pid namespace, whose pids eBPF sees")
    return f"a node needs {', '.join(lacking)}" if lacking else ""


class Node:
    """Started by `with`, or by `start` and `stop`."""

    def __init__(self, folder: Path) -> None:
        """`folder` gets logs and keys; on a file system that overlayfs takes for an upper layer."""
        self._folder = folder
        self._state = folder / "state"
        self._state.mkdir(parents=True, exist_ok=True)
        self._binary = kubernetes_binary()
        self._packages = unpacked()
        self._holder: subprocess.Popen[str] | None = None
        self._cgroup: cgroups.NodeCgroup | None = None
        self._programs = Programs(folder)
        self._plane: ControlPlane | None = None

    def __enter__(self) -> "Node":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def plane(self) -> ControlPlane:
        assert self._plane is not None, "the node is not started"
        return self._plane

    @property
    def admin(self) -> Api:
        return self.plane.admin

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        return self.plane.kubectl(*arguments, stdin=stdin, check=check)

    def helm(self, *arguments: str, check: bool = True) -> str:
        """What helm prints; its own error fails the test unless `check` is off."""
        homes = {
            f"HELM_{n}_HOME": str(self._state / "helm" / n) for n in ("CACHE", "CONFIG", "DATA")
        }
        result = subprocess.run(
            [str(helm_binary()), *arguments],
            env={
                "KUBECONFIG": str(self.plane.kubeconfig),
                "HOME": str(self._state),  # for its client's cache
                "PATH": os.defpath,
                **homes,
            },
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if check and result.returncode != 0:
            raise AssertionError(f"helm {' '.join(arguments)}: {result.stderr}")
        return result.stdout + result.stderr

    def run(self, *command: str | Path, timeout_s: float = 300) -> str:
        """The output of a command on the node. Raises `RuntimeError` with its error."""
        result = subprocess.run(
            [*self.enter, *map(str, command)],
            env=os.environ | self._packages.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if result.returncode != 0:
            raise RuntimeError(f"{' '.join(map(str, command))}: {result.stderr[-2000:]}")
        return result.stdout

    def load(self, *archives: Path) -> None:
        """Images of archives come to the node."""
        for archive in archives:
            self.run("ctr", "--namespace", "k8s.io", "images", "import", archive)

    def forward(self, port: int, host: str = ADDRESS) -> int:
        """A port of 127.0.0.1 that leads to one on the node, or of a Service or pod."""
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            outside: int = listening.getsockname()[1]
            self._relay(f"relay-{outside}", listening, host, port)
        return outside

    def log(self, name: str) -> str:
        """What one of the node's programs wrote."""
        return self._programs.log(name)

    def start(self) -> None:
        """Until the node is Ready. Raises `CannotRun`, or `RuntimeError` with a program's log."""
        cgroups.remove_stale()
        self._hold()
        assert self._holder is not None
        self._cgroup = cgroups.NodeCgroup(self._holder.pid)
        self._cgroup.make()
        self._programs = Programs(self._folder, self.enter, self._cgroup.adopt)
        self._plane = ControlPlane(
            self._binary, self._folder, programs=self._programs, address=ADDRESS, users=_USERS
        )
        self._start_runtime()
        with socket.socket() as listening:
            # The same address inside and outside, so that one kubeconfig serves both.
            listening.bind(("127.0.0.1", self._plane.port))
            self._relay("relay", listening, "127.0.0.1", self._plane.port)
        self._plane.start()
        self._start_controllers()
        self._start_kubelet()
        self._await(self._is_ready, "the node is Ready")

    def stop(self) -> None:
        """Ends all that it started, and removes all but logs."""
        self._programs.stop_all()
        if self._cgroup is not None:
            self._cgroup.remove()
            self._cgroup = None
        if self._holder is not None:
            self._holder.kill()
            self._holder.communicate(timeout=60)
            self._holder = None
        shutil.rmtree(self._state, ignore_errors=False)

    def _hold(self) -> None:
        unshare = ("unshare", "--mount", "--net", "--uts", "--propagation", "private")
        arrange = (sys.executable, "-m", "tests.cluster.namespaces", str(self._state))
        self._holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *unshare, *arrange],
            cwd=CHECKOUT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | self._packages.environment,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline().strip() != "ready":
            _, error = self._holder.communicate(timeout=60)
            raise CannotRun(error.strip().rpartition("\n")[2])

    @property
    def enter(self) -> Sequence[str]:
        """Goes before a command that is to run on the node."""
        assert self._holder is not None
        spaces = Path(f"/proc/{self._holder.pid}/ns")
        into = (f"--{name}={spaces / file}" for name, file in _NAMESPACES.items())
        return ("nsenter", *into, f"--wd={CHECKOUT}")

    def _start_runtime(self) -> None:
        packages, state = self._packages, self._state
        (state / "cni").mkdir(exist_ok=True)
        (state / "cni" / "10-pods.conflist").write_text(node_settings.pod_network())
        (state / "resolv.conf").write_text(f"nameserver {ADDRESS}\n")
        config = state / "containerd.toml"
        runc = packages.root / "usr/sbin/runc"
        config.write_text(node_settings.containerd(state, packages.cni, runc))
        binary = packages.root / "usr/bin/containerd"
        self._programs.start("containerd", binary, "-c", config, environment=packages.environment)
        self._await(lambda: self._answers("ctr", "version"), "containerd answers")

    def _start_controllers(self) -> None:
        plane = self.plane
        both = ["--leader-elect=false", "--bind-address=127.0.0.1"]
        self._kubernetes(
            "kube-controller-manager",
            f"--kubeconfig={plane.kubeconfig_for('controllers')}",
            *both,
            f"--service-account-private-key-file={plane.accounts_key}",
            f"--root-ca-file={plane.ca}",
            "--use-service-account-credentials=true",
        )
        self._kubernetes(
            "kube-scheduler", f"--kubeconfig={plane.kubeconfig_for('scheduler')}", *both
        )

    def _start_kubelet(self) -> None:
        plane, state = self.plane, self._state
        assert self._cgroup is not None
        config, proxy = state / "kubelet.yaml", state / "proxy.yaml"
        config.write_text(node_settings.kubelet(state, self._cgroup.name, plane.ca))
        proxy.write_text(node_settings.kube_proxy(plane.kubeconfig_for("proxy")))
        self._kubernetes(
            "kubelet",
            f"--config={config}",
            f"--kubeconfig={plane.kubeconfig_for('kubelet')}",
            f"--hostname-override={NAME}",
            f"--node-ip={ADDRESS}",
        )
        self._kubernetes("kube-proxy", f"--config={proxy}")
        dns = ("-m", "tests.cluster.dns", ADDRESS, str(plane.kubeconfig))
        self._programs.start("dns", sys.executable, *dns)

    def _kubernetes(self, name: str, *arguments: str) -> None:
        environment = self._packages.environment
        self._programs.start(name, self._binary, name, *arguments, environment=environment)

    def _relay(self, name: str, listening: socket.socket, host: str, port: int) -> None:
        listening.listen(64)
        fd = listening.fileno()
        command = ("-m", "tests.cluster.relay", str(fd), host, str(port))
        self._programs.start(name, sys.executable, *command, pass_fds=[fd])

    def _answers(self, *command: str) -> bool:
        try:
            self.run(*command)
        except RuntimeError:
            return False
        return True

    def _is_ready(self) -> bool:
        try:
            node: Json | None = self.admin.find(f"/api/v1/nodes/{NAME}")
        except Refused as error:
            if error.code in (403, 429, 503):  # the API server is still making its roles
                return False
            raise
        conditions = (node or {}).get("status", {}).get("conditions", [])
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def _await(self, look: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _READY_S
        while not look():
            self._programs.check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"not within {_READY_S} s: {what}; logs are in {self._folder}")
            time.sleep(0.1)
