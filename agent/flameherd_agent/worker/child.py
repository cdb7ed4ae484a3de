"""The worker child: reads requests from its standard input (a socket), answers them in order.

`python -m flameherd_agent.worker.child --cache DIR --private NAME` is started by `client.py`, never
by hand. It has no descriptor of the agent but the socket, dies with the agent, is the first that
the kernel kills when memory runs out, may use only so much address space beyond the file's size,
and ends by itself when it has been idle for a while.
"""

import argparse
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from flameherd_agent.errors import ElfError, FlameherdError
from flameherd_agent.worker import protocol
from flameherd_agent.worker.protocol import Message

if TYPE_CHECKING:
    from flameherd_agent.worker.jobs import Context

MAX_FILE_BYTES = 512 << 20
"""Of a file that the worker writes (RLIMIT_FSIZE)."""
_PAUSE_S = 1.0
"""With nothing to do for this long, memory is given back."""
_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38


def main() -> int:
    """Serves until the socket closes or nothing has come for `--idle` seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--private", required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--idle", type=float, default=10.0)
    parser.add_argument("--headroom", type=int, default=0, help="bytes; 0: the default")
    arguments = parser.parse_args()
    _confine(arguments.parent)
    # Only now, so that the limits hold for what these modules pull in.
    from flameherd_agent.worker.cache import Cache
    from flameherd_agent.worker.jobs import Context
    from flameherd_agent.worker.limits import MemoryLimit

    memory = MemoryLimit(arguments.headroom) if arguments.headroom else MemoryLimit()
    context = Context(Cache(arguments.cache, arguments.private), memory)
    with socket.socket(fileno=os.dup(0)) as connection:
        try:
            return _serve(connection, context, arguments.idle)
        except (BrokenPipeError, ConnectionResetError):
            return 0  # the agent has closed it


def _confine(parent: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)  # the agent ended before the kernel knew to tell us
    Path("/proc/self/oom_score_adj").write_text("1000")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails with EFBIG instead
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the agent's to handle


def _serve(connection: socket.socket, context: "Context", idle_s: float) -> int:
    from flameherd_agent.observe.memory import give_back

    _send(connection, protocol.READY)
    pending = b""
    while True:
        if not select.select([connection], [], [], min(_PAUSE_S, idle_s))[0]:
            give_back()  # half of what a large file took, and code that only its parsing needs
            if not select.select([connection], [], [], max(0.0, idle_s - _PAUSE_S))[0]:
                return 0
        received = connection.recv(1 << 16)
        if not received:
            return 0
        *lines, pending = (pending + received).split(b"\n")
        for line in lines:
            request = json.loads(line)
            answer = _answer(context, request)
            _send(connection, {**answer, "id": request["id"]})
            if answer.get("reason") == protocol.MEMORY:
                return 0  # a fresh heap for what is left: the client asks the next child


def _send(connection: socket.socket, message: Message) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _answer(context: "Context", request: Message) -> Message:
    from flameherd_agent.worker.cache import CacheError
    from flameherd_agent.worker.jobs import JOBS, JobError

    context.begin()
    try:
        return JOBS[request["kind"]](context, request)
    except JobError as error:
        reason, text = error.reason, str(error)
    except ElfError as error:
        reason, text = protocol.MALFORMED, str(error)
    except CacheError as error:
        reason, text = protocol.CACHE, str(error)
    except FlameherdError as error:
        reason, text = protocol.OPEN, str(error)
    except MemoryError:
        reason, text = protocol.MEMORY, "takes more memory than the worker may use"
    except Exception as error:  # noqa: BLE001 - a defect costs one file, and the answer names it
        reason, text = protocol.INTERNAL, f"{type(error).__name__}: {error}"
    return {"error": text, "reason": reason}


if __name__ == "__main__":
    sys.exit(main())
