"""Rewrites its own list of frames while it works: a frame that is its own caller, then one whose caller is nowhere.

Argument: `cyclic` or `wild`.
"""

import ctypes
import sys

from burning import burn, ready

VERSION = tuple(sys.version_info[:2])
NOWHERE = 0x6EADBEEF0000


def caller_of(frame):
    """Where a frame's link to its caller lies in memory."""
    if VERSION >= (3, 11):
        at = ctypes.c_uint64.from_address(id(frame) + 24).value
        return at, ctypes.c_uint64.from_address(at + (8 if VERSION >= (3, 12) else 48))
    return id(frame), ctypes.c_uint64.from_address(id(frame) + 24)


def lie(cyclic):
    at, link = caller_of(sys._getframe())
    kept = link.value
    link.value = at if cyclic else NOWHERE
    for _ in range(50):
        burn()
    link.value = kept


ready()
while True:
    lie(sys.argv[1] == "cyclic")
