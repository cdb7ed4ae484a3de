"""Runs commands in the guest: a JSON object a line from the virtio port, a JSON object a line back.

Request: {"argv": [str], "timeout": seconds, "env": {str: str}, "cwd": str}.
Answer: {"code": int or null after a time-out, "stdout": str, "stderr": str, "seconds": float}; the
first line is {"ready": release of the kernel}. It is process 1, so it also reaps orphans between
commands; the standard library is all that it needs.
"""

import json
import os
import subprocess
import time
from io import FileIO
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

PORTS = "vport*p1"
CAP_BYTES = 8 << 20  # of each stream of a command's output


def open_port() -> FileIO:
    """The virtio port: its number depends on which serial devices the kernel met before."""
    for _ in range(100):
        for path in sorted(Path("/dev").glob(PORTS)):
            return path.open("r+b", buffering=0)
        time.sleep(0.1)
    raise SystemExit("serve: no virtio port")


def run(request: dict[str, Any]) -> dict[str, Any]:
    started = time.monotonic()
    with TemporaryFile() as out, TemporaryFile() as err:
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
        pass  # none is left


def send(port: FileIO, message: dict[str, Any]) -> None:
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
        send(port, run(json.loads(line)))
        reap()


if __name__ == "__main__":
    main()
