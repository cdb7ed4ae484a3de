"""The kernel's function names, as the drain needs them: made by the worker, mapped here.

`/proc/kallsyms` changes when modules and eBPF programs come and go, and reads as zeros without the
right to it; so `refresh`, called once an interval, asks the worker for a new index when the set of
modules has changed or an address had no name, and again after a while when the last try failed.
"""

import logging
import time
from pathlib import Path
from typing import Final

from flameherd_agent.errors import ElfError
from flameherd_agent.symbols.kallsyms import KernelSymbols, index_name
from flameherd_agent.types import Address, Line
from flameherd_agent.worker.client import TABLES, WorkerClient
from flameherd_agent.worker.protocol import Message

log = logging.getLogger(__name__)

_RETRY_S: Final = 60.0
"""Between two tries; an index takes the worker 0.1 s of CPU time."""


class KernelNames:
    """Names by kernel address; none until the worker has answered."""

    def __init__(self, worker: WorkerClient, cache: Path) -> None:
        self._worker = worker
        self._directory = cache / TABLES
        self._name = ""
        self._asked = 0.0
        self._waiting = False
        self._symbols: KernelSymbols | None = None
        self._warned = ""
        self._missed = False
        self.refresh()

    def refresh(self) -> None:
        """Asks for a new index if modules have changed or there is none yet. Cheap otherwise."""
        if self._waiting:
            return
        try:
            name = index_name()
        except OSError as error:
            self._warn(f"kernel functions stay unnamed: {error}")
            return
        now = time.monotonic()
        wanted = self._symbols is None or self._missed
        if name != self._name:
            self._name, self._asked = name, now
            if not self._open(self._directory / f"{name}.kallsyms"):
                self._ask(anew=False)
        elif wanted and now - self._asked > _RETRY_S:
            self._asked = now
            self._ask(anew=self._missed)

    def _ask(self, anew: bool) -> None:
        self._waiting = True
        self._missed = False
        self._worker.call("kallsyms", {"name": self._name, "anew": anew}, self._take)

    def _take(self, answer: Message) -> None:
        self._waiting = False
        if answer.get("error"):
            self._warn(answer["error"])
        elif not self._open(Path(answer["path"])):
            self._warn("kernel functions stay unnamed: the worker's index is gone or damaged")

    def _open(self, path: Path) -> bool:
        try:
            self._symbols = KernelSymbols.open(path)
        except (ElfError, OSError):
            return False
        return True

    def _warn(self, text: str) -> None:
        if text != self._warned:
            self._warned = text
            log.warning("%s", text)

    def shed(self) -> None:
        """Gives memory back that lookups made resident."""
        if self._symbols is not None:
            self._symbols.shed()

    def lookup(self, address: Address) -> Line | None:
        """The function at a kernel address, or None."""
        if self._symbols is None:
            return None
        line = self._symbols.lookup(address)
        self._missed |= line is None
        return line
