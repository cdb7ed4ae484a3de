"""Symbol tables that live outside a stripped file's own: MiniDebugInfo and separate debug files.

- `.gnu_debugdata`: an xz-compressed ELF file with a symbol table (Fedora and its relatives).
- `/usr/lib/debug/.build-id/xx/yyyy.debug`: by GNU build id, which the debug file must carry too.
- `.gnu_debuglink`: a file name and a CRC-32, looked for beside the file, in `.debug/` there and
  below `/usr/lib/debug` (GDB manual, "Separate Debug Files").

Debug files are opened only through the caller's `DebugOpener`, which resolves paths inside the
root of the container that the file came from. Whether they tell the truth does not matter beyond
that container: build ids and CRCs can be forged.
"""

import lzma
import posixpath
import zlib
from collections.abc import Callable

from flameherd_agent.elf.identity import identify
from flameherd_agent.elf.reader import ElfFile
from flameherd_agent.errors import ElfError

DebugOpener = Callable[[str], ElfFile | None]
"""Absolute path inside the container's root → the mapped file; None when there is none to read."""

MAX_DEBUGDATA_BYTES = 64 << 20
"""Of `.gnu_debugdata` after decompression; the largest real ones are a few megabytes."""
MAX_XZ_MEMORY_BYTES = 80 << 20
"""xz -9 needs 65 MiB to decompress."""
MAX_LINKED_BYTES = 1 << 30
"""A larger debug file is not read: its CRC alone would take a second."""
_DEBUG_ROOT = "/usr/lib/debug"


def mini_debug_info(elf: ElfFile) -> ElfFile | None:
    """The ELF file inside `.gnu_debugdata`, or None. `ElfError` when it is damaged or too large."""
    section = elf.section(".gnu_debugdata")
    if section is None:
        return None
    packed = elf.section_data(section, MAX_DEBUGDATA_BYTES)
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_XZ_MEMORY_BYTES)
    try:
        data = decompressor.decompress(packed, MAX_DEBUGDATA_BYTES + 1)
    except lzma.LZMAError as error:
        raise ElfError(f".gnu_debugdata is damaged: {error}") from error
    if len(data) > MAX_DEBUGDATA_BYTES:
        raise ElfError(f".gnu_debugdata inflates to over {MAX_DEBUGDATA_BYTES} bytes")
    if not decompressor.eof:
        raise ElfError(".gnu_debugdata is damaged: it ends early")
    return ElfFile(data)


def separate_debug_file(elf: ElfFile, path: str, opener: DebugOpener) -> ElfFile | None:
    """The debug file of `elf`, which was mapped as `path` (inside the container), or None.

    Raises `ElfError` when a file of the right name does not belong to `elf`, or is malformed.
    """
    build_id = identify(elf).gnu_build_id
    if len(build_id) >= 8:
        name = f"{_DEBUG_ROOT}/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
        debug = opener(name)
        if debug is not None:
            if identify(debug).gnu_build_id != build_id:
                raise ElfError(f"debug file {name} carries another build id: not used")
            return debug
    link = _debuglink(elf)
    if link is None or not path.startswith("/"):
        return None
    file_name, crc = link
    directory = posixpath.dirname(path)
    for name in (
        f"{directory}/{file_name}",
        f"{directory}/.debug/{file_name}",
        f"{_DEBUG_ROOT}{directory}/{file_name}",
    ):
        debug = opener(name) if name != path else None
        if debug is None:
            continue
        if debug.size > MAX_LINKED_BYTES or zlib.crc32(debug.data) != crc:
            raise ElfError(f"debug file {name} does not have the CRC of .gnu_debuglink: not used")
        return debug
    return None


def _debuglink(elf: ElfFile) -> tuple[str, int] | None:
    """(file name, CRC-32) of `.gnu_debuglink`; None without, or when the name has a directory."""
    section = elf.section(".gnu_debuglink")
    if section is None:
        return None
    data = bytes(elf.section_data(section, 4096))
    name, zero, _ = data.partition(b"\0")
    at = (len(name) + 1 + 3) & ~3
    text = name.decode("utf-8", "replace")
    if not zero or at + 4 > len(data) or not text or "/" in text or text in (".", ".."):
        return None
    return text, int.from_bytes(data[at : at + 4], "little")
