"""Runs commands in the guest: one JSON object a line from the virtio port, one JSON object a line back.

Request: {"argv": [str], "timeout": seconds, "env": {str: str}, "cwd": str}, or {"poweroff": true}.
Answer: {"code": int or null after a time-out, "stdout": str, "stderr": str, "seconds": float}.
It is process 1, so it also reaps orphans between commands; the standard library is all that it needs.
"""

import json
import os
import subprocess
import time
from typing import Any

PORT = "/dev/vport{}p1"
REBOOT_MAGIC_POWER_OFF = 0x4321FEDC  # reboot(2), LINUX_REBOOT_CMD_POWER_OFF
CAP_BYTES = 8 << 20  # of each stream of a command's output


def open_port() -> Any:
    """The first virtio port: its number depends on which serial devices the kernel met before."""
    for _ in range(100):
        for number in range(8):
            path = PORT.format(number)
            if os.path.exists(path):
                return open(path, "r+b", buffering=0)  # noqa: SIM115 -- open as long as the guest runs
        time.sleep(0.1)
    raise SystemExit("serve: no virtio port")


def run(request: dict[str, Any]) -> dict[str, Any]:
    started = time.monotonic()
    with open("/tmp/stdout", "w+b") as out, open("/tmp/stderr", "w+b") as err:
        code: int | None
        try:
            child = subprocess.Popen(
                request["argv"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=request["env"],
                cwd=request["cwd"],
                start_new_session=True,
            )
            try:
                code = child.wait(request["timeout"])
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, 9)
                child.wait()
                code = None
        except OSError as error:
            err.write(f"{request['argv'][0]}: {error}\n".encode())
            code = 127
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read(CAP_BYTES).decode(errors="replace"))
    return {
        "code": code,
        "stdout": texts[0],
        "stderr": texts[1],
        "seconds": time.monotonic() - started,
    }


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def send(port: Any, message: dict[str, Any]) -> None:
    data = memoryview(json.dumps(message).encode() + b"\n")
    while data:
        data = data[port.write(data) :]


def main() -> None:
    port = open_port()
    send(port, {"ready": os.uname().release})
    pending = b""
    while True:
        while b"\n" not in pending:
            chunk = port.read(65536)
            if chunk:
                pending += chunk
            else:
                time.sleep(0.05)  # the host is not connected (yet)
        line, _, pending = pending.partition(b"\n")
        request = json.loads(line)
        if request.get("poweroff"):
            os.sync()
            poweroff()
        send(port, run(request))
        reap()


def poweroff() -> None:
    import ctypes

    ctypes.CDLL(None).reboot(REBOOT_MAGIC_POWER_OFF)


if __name__ == "__main__":
    main()
