"""One agent per machine: an advisory lock on a file, released by the kernel when its holder ends, however it ends."""

import fcntl
import os
from pathlib import Path
from typing import Final

from flameherd_agent.errors import AlreadyRunning, EnvironmentProblem

DEFAULT_LOCK: Final = Path("/run/flameherd/agent.lock")


class HostLock:
    """Held from construction until `close`. The file names the holder's process id."""

    def __init__(self, path: Path = DEFAULT_LOCK) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise EnvironmentProblem(
                f"the host lock {path} cannot be opened: {error.strerror}; --lock names another place"
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(self._fd, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise AlreadyRunning(
                f"another agent runs on this host (process {holder} holds {path}); stop it first, "
                "or use `flameherd record`, which runs beside it"
            ) from error
        os.ftruncate(self._fd, 0)
        os.write(self._fd, f"{os.getpid()}\n".encode())

    def close(self) -> None:
        os.close(self._fd)
