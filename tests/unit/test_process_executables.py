"""Which files are asked of the worker, through whom, and in which order."""

from collections.abc import Callable
from typing import cast

import pytest
from flameherd_agent.process.executables import Executables, State
from flameherd_agent.process.maps import FileKey, Region
from flameherd_agent.types import Pid
from flameherd_agent.unwind.slabs import SlabStore
from flameherd_agent.worker import protocol
from flameherd_agent.worker.client import FileAnswer, FileRequest, NamesAnswer, WorkerClient


class Worker:
    """Stands for the worker: remembers what it is asked, answers what it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[FileRequest, Callable[[], int]]] = []
        self.answers: list[FileAnswer | NamesAnswer] = []

    def submit(self, request: FileRequest, weight: Callable[[], int]) -> int:
        self.asked.append((request, weight))
        return len(self.asked)

    def poll(self) -> list[FileAnswer | NamesAnswer]:
        answers, self.answers = self.answers, []
        return answers


def region(path: str, inode: int = 1, size: int = 0x1000) -> Region:
    return Region(0x1000, 0x1000 + size, 0, FileKey((8, 1), inode, path))


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def executables(worker: Worker) -> Executables:
    return Executables(cast(WorkerClient, worker), cast(SlabStore, None))


def test_what_most_processes_map_weighs_most_and_large_files_least(
    worker: Worker, executables: Executables
) -> None:
    for cookie in (1, 2, 3):
        executables.want(cookie, Pid(cookie), region("/libc", 2))
    executables.want(1, Pid(1), region("/program", 1))
    for cookie in range(9):
        executables.want(cookie, Pid(cookie), region("/huge", 3, 65 << 20))
    assert [request.path for request, _ in worker.asked] == ["/libc", "/program", "/huge"]
    libc, program, huge = (weight() for _, weight in worker.asked)
    assert libc > program > huge


@pytest.mark.parametrize("reason", [protocol.OPEN, protocol.CHANGED])
def test_a_file_that_did_not_open_is_tried_through_another_process(
    worker: Worker, executables: Executables, reason: str
) -> None:
    for pid in (7, 8):
        executables.want(pid, Pid(pid), region("/program"))
    worker.answers.append(FileAnswer(1, error="gone", reason=reason))
    executables.poll()
    assert [request.pid for request, _ in worker.asked] == [7, 8]


@pytest.mark.parametrize("reason", [protocol.TIMEOUT, protocol.MALFORMED, protocol.MEMORY])
def test_a_file_that_takes_too_much_takes_it_once(
    worker: Worker, executables: Executables, reason: str
) -> None:
    for pid in (7, 8):
        executables.want(pid, Pid(pid), region("/program"))
    worker.answers.append(FileAnswer(1, error="too much", reason=reason))
    executables.poll()
    found = executables.want(9, Pid(9), region("/program"))
    assert found is not None
    assert found.state is State.UNREADABLE
    assert len(worker.asked) == 1
    assert executables.unreadable == {reason: 1}
