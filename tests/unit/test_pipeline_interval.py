"""What an interval knows of its stacks before they are parsed."""

import struct

import numpy as np
from flameherd_agent.kernel.abi import FrameKind, Outcome, RecordType, StackRecord
from flameherd_agent.pipeline.drain import Interval, SampleKey, Stack
from flameherd_agent.types import Pid, SlotId, Tid


def native(executable: int, address: int) -> int:
    return (FrameKind.NATIVE << 60) | (executable << 40) | address


def record(kernel: list[int], user: list[int]) -> bytes:
    head = np.zeros(1, StackRecord)
    head["type"] = RecordType.STACK
    head["kernel_frames"], head["user_frames"] = len(kernel), len(user)
    return head.tobytes() + struct.pack(f"<{len(kernel) + len(user)}Q", *kernel, *user)


def test_executables_of_the_kernels_and_of_cold_stacks() -> None:
    interval = Interval(0)
    assert interval.executables() == set()
    interval.definitions = {
        # A kernel address looks like any kind of frame: it is told apart by its place.
        1: record([0x1234_5678_9ABC_DEF0], [native(3, 0x10), native(7, 0x20)]),
        2: record([], [native(3, 0x30), FrameKind.RAW << 60 | 5 << 40]),
        3: record([0xFFFFFFFF81000000], []),
    }
    stack = Stack((), (native(0xFFFFF, 1), native(7, 2)))
    interval.cold[SampleKey(stack, 1, 1, Pid(1), Tid(1), SlotId(1), 1, Outcome.COMPLETE, "x")] = 1
    assert interval.executables() == {3, 7, 0xFFFFF}
