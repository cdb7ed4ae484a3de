"""A real cluster of one node, to try things on.

    python -m tests.cluster up               builds what is missing, starts it, loads the images
    python -m tests.cluster kubectl get pods -A
    python -m tests.cluster helm list -A
    python -m tests.cluster run ctr -n k8s.io images ls      a command on the node
    python -m tests.cluster load             the images again, after a change
    python -m tests.cluster down

One for each user: its files are in ~/.cache/flameherd/cluster.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster import node_images
from tests.cluster.build import helm_binary, kubernetes_binary
from tests.cluster.node import CHECKOUT, Node, missing
from tests.cluster.packages import unpacked
from tests.go_build import cache_dir

HOME = cache_dir() / "cluster"
_PID, _READY, _LOG = HOME / "pid", HOME / "ready", HOME / "cluster.log"
_KUBECONFIG = HOME / "admin.kubeconfig"


def _running() -> int:
    """The pid of the process that holds the cluster; 0 if there is none."""
    try:
        pid = int(_PID.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ValueError):
        return 0
    return pid if b"tests.cluster" in command else 0


def up() -> int:
    if _running():
        print(f"it is up: export KUBECONFIG={_KUBECONFIG}")
        return 0
    if reason := missing() or node_images.missing():
        print(reason, file=sys.stderr)
        return 1
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    with _LOG.open("w") as log:
        holder = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster", "hold"],
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    while not _READY.exists():
        if holder.poll() is not None:
            print(_LOG.read_text(), file=sys.stderr)
            return 1
        time.sleep(0.2)
    print(f"up: export KUBECONFIG={_KUBECONFIG}")
    return 0


def hold() -> int:
    """What `up` leaves behind: starts the node and stays until it is told to end."""
    _PID.write_text(str(os.getpid()))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # out of `with`, which tidies up
    archives = [*node_images.test_images(), *node_images.own_images()]
    with Node(HOME) as node:
        node.load(*archives)
        (HOME / "enter").write_text("\n".join(node.enter))
        node.plane.kubeconfig_for("admin")
        _READY.touch()
        while True:
            signal.pause()


def down() -> int:
    pid = _running()
    if pid:
        os.kill(pid, signal.SIGTERM)
        while Path(f"/proc/{pid}").exists():
            time.sleep(0.1)
    return 0


def on_node(command: list[str]) -> int:
    enter = (HOME / "enter").read_text().split("\n")
    env = os.environ | unpacked().environment
    return subprocess.run([*enter, *command], env=env, check=False).returncode


def load() -> int:
    for archive in node_images.own_images():
        status = on_node(["ctr", "--namespace", "k8s.io", "images", "import", str(archive)])
        if status:
            return status
    return 0


def main() -> int:
    command, *rest = sys.argv[1:] or ["help"]
    simple = {"up": up, "hold": hold, "down": down, "load": load}
    if command in simple and not rest:
        return simple[command]()
    if command in ("kubectl", "helm", "run") and not _running():
        print("there is no cluster: `python -m tests.cluster up` starts one", file=sys.stderr)
        return 1
    if command == "run":
        return on_node(rest)
    tools = {"kubectl": (kubernetes_binary, ["kubectl"]), "helm": (helm_binary, [])}
    if command not in tools:
        print(__doc__)
        return 2
    binary, first = tools[command]
    env = os.environ | {"KUBECONFIG": str(_KUBECONFIG)}
    return subprocess.run([str(binary()), *first, *rest], env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
