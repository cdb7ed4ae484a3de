"""HotSpot, the JVM of JDK 8 to 26. See docs/runtimes/hotspot.md."""

from typing import Final

from flameherd_agent.interpreters.base import Interpreter
from flameherd_agent.interpreters.hotspot.attach import attach
from flameherd_agent.interpreters.hotspot.code import read_code
from flameherd_agent.interpreters.hotspot.detect import NAME, detect
from flameherd_agent.kernel.abi import FrameKind, Program
from flameherd_agent.types import FrameType

HOTSPOT: Final = Interpreter(
    name=NAME,
    sources=("interpreters/hotspot.h", "interpreters/hotspot.bpf.c"),
    program="fh_hotspot",
    number=Program.HOTSPOT,
    process_info="fh_hotspot_layouts",
    frame_kind=FrameKind.HOTSPOT,
    frame_type=FrameType.JVM,
    detect=detect,
    attach=attach,
    symbolize=read_code,
)
