"""A node's own view of this machine: mounts, network and host name, in namespaces that it holds.

`python -m tests.cluster.namespaces FOLDER`, started by `unshare`, arranges them, says `ready` and
then only stays: programs come in by `nsenter`. Nothing of it shows outside. Not a pid namespace: to
agents a node's processes are those of the machine, by the pids that the kernel itself uses.

    /sys           of the new network namespace, with the machine's cgroups in it
    /run           empty: sockets of the container runtime, the agents' host lock
    /var           what is written goes to FOLDER
    /proc/sys/…    what kubelet wants to write says already what it wants
    node0          a bridge without ports, that has the node's address: the kernel has no dummy device
"""

import signal
import subprocess
import sys
from pathlib import Path

from tests.cluster.control_plane import SERVICE_ADDRESSES

ADDRESS = "10.250.0.1"
NAME = "node1"
_SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
}


def _run(*command: str | Path) -> None:
    result = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=60, check=False
    )
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {result.stderr.strip()}")


def _mounts(folder: Path) -> None:
    cgroups, fake = folder / "cgroups", folder / "sysctl"
    for made in (cgroups, fake, folder / "var/upper", folder / "var/work"):
        made.mkdir(parents=True, exist_ok=True)
    _run("mount", "--rbind", "/sys/fs/cgroup", cgroups)
    _run("mount", "-t", "sysfs", "sysfs", "/sys")
    _run("mount", "--rbind", cgroups, "/sys/fs/cgroup")
    _run("umount", "-l", cgroups)
    layers = f"lowerdir=/var,upperdir={folder}/var/upper,workdir={folder}/var/work"
    _run("mount", "-t", "overlay", "overlay", "-o", layers, "/var")
    _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for name, value in _SYSCTLS.items():
        file = fake / name.replace("/", ".")
        file.write_text(f"{value}\n")
        _run("mount", "--bind", file, f"/proc/sys/{name}")
    # Volumes that pods share with the node ask for it.
    _run("mount", "--make-rshared", "/")


def _network() -> None:
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "link", "add", "node0", "type", "bridge")
    _run("ip", "addr", "add", f"{ADDRESS}/24", "dev", "node0")
    _run("ip", "link", "set", "node0", "up")
    # Without a route, connecting to a Service from the node fails before its address is translated.
    _run("ip", "route", "add", SERVICE_ADDRESSES, "dev", "node0")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def main() -> None:
    folder = Path(sys.argv[1])
    _run("hostname", NAME)
    _mounts(folder)
    _network()
    print("ready", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
