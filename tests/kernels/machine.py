"""A virtual machine with an older kernel, in which commands are run.

    with Machine("5.10") as vm:
        result = vm.run(["python3", "-c", "print(1)"], timeout=30)
        assert result.code == 0, result.stderr

The guest boots under emulation (KVM hangs on some nested hosts; emulation is the same everywhere)
over the images of `images.py`; it has no network. Commands and results pass as JSON lines over a
virtio port, so that the serial console stays free for the kernel's own messages, which every
failure quotes. Whatever happens in the guest, the emulator is killed at the end, and each step has
a time limit on this side too.

The checkout is `/flameherd` in the guest, importable in the environment that commands get.
"""

import json
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.kernels import images

GUEST_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "PYTHONPATH": "/flameherd:/flameherd/policy:/flameherd/agent:/flameherd/site",
    "PYTHONDONTWRITEBYTECODE": "1",
    "XDG_CACHE_HOME": "/tmp/cache",
}
BOOT_SECONDS = 120
SLACK_SECONDS = 20  # between the guest's own limit of a command and ours
ANSWER_BYTES = 64 << 20


class GuestError(Exception):
    """The guest did not boot, died, or did not answer in time; its console ends the message."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a command in the guest came to. `code` is None when its time was up."""

    code: int | None
    stdout: str
    stderr: str
    seconds: float

    def check(self) -> Self:
        """Itself, or AssertionError with the output when the command failed."""
        if self.code != 0:
            raise AssertionError(
                f"exit code {self.code} after {self.seconds:.1f} s\n"
                f"--- stdout\n{self.stdout[-8000:]}\n--- stderr\n{self.stderr[-8000:]}"
            )
        return self


class Machine:
    """A guest with a kernel of `images.KERNELS`; boots on entry, is gone on exit.

    `files` are put into the checkout image: name there → file here. `cgroup` is "v2" or "v1".
    """

    def __init__(
        self,
        kernel: str,
        *,
        files: dict[str, Path] | None = None,
        cgroup: str = "v2",
        memory: str = "1G",
        cpus: int = 2,
        platform: images.Platform = images.AMD64,
    ) -> None:
        self.kernel = images.KERNELS[kernel]
        self.package = ""
        self.release = ""
        self.boot_seconds = 0.0
        self._files = files or {}
        self._cgroup = cgroup
        self._memory = memory
        self._cpus = cpus
        self._platform = platform
        self._directory: Path | None = None
        self._emulator: subprocess.Popen[bytes] | None = None
        self._port: socket.socket | None = None
        self._pending = b""

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="flameherd-vm-"))
        try:
            self._start(self._directory)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, directory: Path) -> None:
        boot = images.kernel_files(self.kernel)
        self.package = boot.package
        checkout = directory / "checkout.ext4"
        images.write_checkout_image(checkout, self._files)
        disks = [images.root_image(self._platform), images.dependencies_image(), checkout]
        port = directory / "port"
        command = [
            *(self._platform.qemu, *self._platform.machine),
            *("-smp", str(self._cpus), "-m", self._memory),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-kernel", str(boot.vmlinuz), "-initrd", str(boot.initramfs)),
            "-append",
            # Without it, 5.10 takes the timer of a starved emulator for a broken one and panics.
            f"console={self._platform.console} quiet panic=-1 no_timer_check "
            f"flameherd.cgroup={self._cgroup}",
            *("-serial", f"file:{directory / 'console'}"),
            *("-device", "virtio-serial-pci"),
            *("-chardev", f"socket,id=port,path={port},server=on,wait=off"),
            *("-device", "virtserialport,chardev=port"),
        ]
        for number, disk in enumerate(disks):
            command += ["-drive", f"file={disk},format=raw,if=none,readonly=on,id=disk{number}"]
            command += ["-device", f"virtio-blk-pci,drive=disk{number}"]
        started = time.monotonic()
        with (directory / "emulator").open("wb") as log:
            self._emulator = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = started + BOOT_SECONDS
        while not port.exists():
            self._still_running(deadline)
            time.sleep(0.05)
        self._port = socket.socket(socket.AF_UNIX)
        self._port.connect(str(port))
        self.release = str(self._receive(deadline)["ready"])
        self.boot_seconds = time.monotonic() - started

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 60,
        env: dict[str, str] | None = None,
        cwd: str = "/tmp",
    ) -> Result:
        """Runs a command in the guest as root; `timeout` is in seconds of the guest's clock."""
        if self._port is None:
            raise GuestError(f"{self.kernel.name}: the machine is not running")
        request = {
            "argv": list(argv),
            "timeout": timeout,
            "env": GUEST_ENVIRONMENT | (env or {}),
            "cwd": cwd,
        }
        self._port.settimeout(SLACK_SECONDS)
        self._port.sendall(json.dumps(request).encode() + b"\n")
        answer = self._receive(time.monotonic() + timeout + SLACK_SECONDS)
        return Result(answer["code"], answer["stdout"], answer["stderr"], answer["seconds"])

    def console(self) -> str:
        """What the emulator said, and what the kernel and init wrote to the serial console."""
        if self._directory is None:
            return ""
        return "".join(
            path.read_text(errors="replace")
            for name in ("emulator", "console")
            if (path := self._directory / name).exists()
        )

    def _still_running(self, deadline: float) -> None:
        assert self._emulator is not None
        if self._emulator.poll() is not None:
            raise self._failure(f"the emulator ended with code {self._emulator.returncode}")
        if time.monotonic() > deadline:
            raise self._failure("no answer in time")

    def _receive(self, deadline: float) -> dict[str, Any]:
        assert self._port is not None
        self._port.settimeout(0.5)
        while b"\n" not in self._pending:
            if len(self._pending) > ANSWER_BYTES:
                raise self._failure("an answer is too long")
            try:
                chunk = self._port.recv(65536)
            except TimeoutError:
                self._still_running(deadline)
                continue
            if not chunk:
                raise self._failure("the guest closed the port")
            self._pending += chunk
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failure(self, what: str) -> GuestError:
        return GuestError(f"{self.kernel.name}: {what}; console:\n{self.console()[-4000:]}")

    def close(self) -> None:
        """Ends the emulator (an orderly power-off would save nothing: all disks are read-only)."""
        if self._port is not None:
            self._port.close()
            self._port = None
        if self._emulator is not None:
            self._emulator.send_signal(signal.SIGKILL)
            self._emulator.wait()
            self._emulator = None
        if self._directory is not None:
            shutil.rmtree(self._directory)
            self._directory = None
