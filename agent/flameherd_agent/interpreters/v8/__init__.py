"""V8, as Node.js 18 to 24 carry it. See docs/runtimes/v8.md."""

from typing import Final

from flameherd_agent.interpreters.base import Interpreter
from flameherd_agent.interpreters.v8.attach import attach
from flameherd_agent.interpreters.v8.code import read_code
from flameherd_agent.interpreters.v8.detect import NAME, detect
from flameherd_agent.kernel.abi import FrameKind, Program
from flameherd_agent.types import FrameType

V8: Final = Interpreter(
    name=NAME,
    sources=("interpreters/v8.h", "interpreters/v8.bpf.c"),
    program="fh_v8",
    number=Program.V8,
    process_info="fh_v8_layouts",
    frame_kind=FrameKind.V8,
    frame_type=FrameType.V8JS,
    detect=detect,
    attach=attach,
    symbolize=read_code,
)
