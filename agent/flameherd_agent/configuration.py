"""Where the agent's configuration comes from: a file, or (`cluster.node`) the operator.

A source is polled in every step of the agent's loop. It keeps what it had when what comes next is
wrong, and says so in `error`.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from flameherd_policy.agent_config import AgentConfig
from flameherd_policy.endpoints import Source as Author
from flameherd_policy.errors import PolicyError
from flameherd_policy.load import load_agent_config

from flameherd_agent.errors import FlameherdError
from flameherd_agent.observe.logs import Log
from flameherd_agent.observe.metrics import Family
from flameherd_agent.pipeline.endpoints import check_endpoints

log = Log(__name__)

_CHECK_S: Final = 1.0


class Source(Protocol):
    """Tells what is to be profiled."""

    @property
    def author(self) -> Author:
        """Who chose the endpoints: a tenant's may not lead to the node itself."""
        ...

    @property
    def config(self) -> AgentConfig:
        """What is to be carried out now."""
        ...

    def refresh(self) -> bool:
        """Take note of what is new; whether `config` or `cgroups` may have changed."""
        ...

    @property
    def cgroups(self) -> Mapping[int, str | None]:
        """{cgroup id: name of the slot that samples it, None = nobody}: pods and containers."""
        ...

    @property
    def error(self) -> str:
        """What is wrong with what was told; "" = nothing."""
        ...

    def ready(self) -> tuple[bool, str]:
        """Whether there is a configuration to carry out, and if not why."""
        ...

    def families(self) -> Iterable[Family]:
        """Metrics about the source."""
        ...

    def status(self) -> Mapping[str, Any]:
        """What /status shows of it."""
        ...


def _load(path: Path) -> AgentConfig:
    """Raises `PolicyError` or `UsageError`."""
    config = load_agent_config(path)
    check_endpoints(config)
    return config


class FileSource:
    """Follows a file. Raises `PolicyError` or `UsageError` when made if the file does not load."""

    author: Final = Author.FILE
    cgroups: Mapping[int, str | None] = {}

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._stamp = self._read_stamp()
        self.config = _load(path)
        self.error = ""
        self._check_at = clock() + _CHECK_S

    def _read_stamp(self) -> tuple[int, int, int] | None:
        """Changes when the file does, also when a symlink is pointed elsewhere."""
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def refresh(self) -> bool:
        """At most once a second."""
        now = self._clock()
        if now < self._check_at:
            return False
        self._check_at = now + _CHECK_S
        stamp = self._read_stamp()
        if stamp == self._stamp or stamp is None:
            return False
        self._stamp = stamp
        try:
            self.config = _load(self._path)
        except (PolicyError, FlameherdError) as error:
            self.error = str(error)
            log.error("configuration refused: the one before stays in force", error=str(error))
            return False
        self.error = ""
        log.info("configuration read", path=self._path, version=self.config.version)
        return True

    def ready(self) -> tuple[bool, str]:
        return True, "ok"

    def families(self) -> Iterable[Family]:
        return ()

    def status(self) -> Mapping[str, Any]:
        return {}
