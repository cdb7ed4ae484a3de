"""The names by which tools know an executable: GNU build id, Go build id, OpenTelemetry's htlhash.

They are labels. Anyone can write any build id into a file, and the htlhash covers only its ends, so
nothing is ever looked up in a shared cache by them: that takes a content key (`worker/content.py`).
"""

import hashlib
from dataclasses import dataclass

from flameherd_agent.elf.reader import ElfFile

_NT_GNU_BUILD_ID = 3
_NT_GO_BUILD_ID = 4
_MAX_ID_BYTES = 256
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Identity:
    """Labels of one file; an id that the file does not carry is ""."""

    gnu_build_id: str
    """Hex digits, as `readelf -n` prints them."""
    go_build_id: str
    """As `go tool buildid` prints it."""
    htlhash: str
    """32 hex digits."""


def identify(elf: ElfFile) -> Identity:
    """Reads the build ids from the notes and hashes the file's ends."""
    gnu = go = ""
    for note in elf.notes():
        if not 0 < len(note.desc) <= _MAX_ID_BYTES:
            continue
        if note.name == b"GNU" and note.type == _NT_GNU_BUILD_ID and not gnu:
            gnu = note.desc.hex()
        elif note.name == b"Go" and note.type == _NT_GO_BUILD_ID and not go:
            go = note.desc.rstrip(b"\0").decode("ascii", "replace")
    return Identity(gnu, go, htlhash(elf.data))


def htlhash(data: memoryview) -> str:
    """`process.executable.build_id.htlhash` of the OpenTelemetry semantic conventions for profiles.

    SHA-256 over the first 4096 bytes, the last 4096 bytes (they may overlap and are not padded) and
    the file's length as a big-endian 64-bit number; the first 16 bytes of the digest in hex.
    """
    digest = hashlib.sha256(data[:_PAGE])
    digest.update(data[max(0, len(data) - _PAGE) :])
    digest.update(len(data).to_bytes(8, "big"))
    return digest.digest()[:16].hex()
