"""Writes profiles to a file, in the format that the file's extension names.

A file appears whole or not at all: it is written beside its destination and renamed.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

from flameherd_agent.errors import EnvironmentProblem, UsageError
from flameherd_agent.model import ResourceProfiles

EXTENSIONS: Final = {
    ".pb.gz": "pprof",
    ".speedscope.json": "speedscope",
    ".collapsed.txt": "collapsed",
    ".svg": "svg",
}
"""Extension → module of this package whose `chunks(profiles)` yields the file's bytes."""

LABELLED: Final = ".pb.gz"
"""The format whose samples say which process they are of."""

_Chunks = Callable[[Sequence[ResourceProfiles]], Iterator[bytes]]


def check_path(path: Path) -> str:
    """The extension of `path`; `UsageError` if it names no format or the folder does not exist.

    For commands: to be asked before recording, not after.
    """
    extension = next((known for known in EXTENSIONS if path.name.endswith(known)), None)
    if extension is None:
        raise UsageError(
            f"{path}: the extension names the format; it must be one of {', '.join(EXTENSIONS)}"
        )
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")
    return extension


def write_profile(path: Path, profiles: Sequence[ResourceProfiles]) -> None:
    """Writes `profiles` to `path`, replacing what is there.

    Raises `UsageError` for an unknown extension, `EnvironmentProblem` if it cannot be written;
    in both cases a file that was there before is untouched.
    """
    module = import_module(f"{__package__}.{EXTENSIONS[check_path(path)]}")
    chunks: _Chunks = module.chunks
    part = path.with_name(f".{path.name[:200]}.{secrets.token_hex(6)}.part")
    try:
        try:
            with part.open("xb") as file:
                file.writelines(chunks(profiles))
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise EnvironmentProblem(f"cannot write {path}: {error.strerror or error}") from error
