"""CPython 3.6 to 3.14. See docs/runtimes/cpython.md."""

from typing import Final

from flameherd_agent.interpreters.base import Interpreter
from flameherd_agent.interpreters.cpython.attach import attach
from flameherd_agent.interpreters.cpython.code import read_code
from flameherd_agent.interpreters.cpython.detect import NAME, detect
from flameherd_agent.kernel.abi import FrameKind, Program
from flameherd_agent.types import FrameType

CPYTHON: Final = Interpreter(
    name=NAME,
    sources=("interpreters/cpython.h", "interpreters/cpython.bpf.c"),
    program="fh_cpython",
    number=Program.CPYTHON,
    process_info="fh_cpython_layouts",
    frame_kind=FrameKind.CPYTHON,
    frame_type=FrameType.CPYTHON,
    detect=detect,
    attach=attach,
    symbolize=read_code,
)
