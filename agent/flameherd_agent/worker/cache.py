"""The directory of finished tables and names. Only the worker writes it; the agent maps its files.

Files appear whole (written under another name, then renamed) and never change. When they exceed the
cap together, those that were not used for the longest go first; the agent keeps what it has mapped.
A cache directory that cannot be written (read-only, full, foreign) is replaced by a private one in
memory or in the temporary directory, which the client removes; that is said once.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from flameherd_agent.errors import FlameherdError

DEFAULT_MAX_BYTES = 512 << 20
_EVICT_EVERY = 32 << 20
_YOUNG_S = 120
"""Files this young stay: an answer that names them may be under way."""
_SUFFIXES = (".rows", ".names", ".kallsyms")


def fallback_places(name: str) -> list[Path]:
    """Where a private directory of that name may be."""
    return [Path("/dev/shm") / name, Path(tempfile.gettempdir()) / name]  # noqa: S108


class CacheError(FlameherdError):
    """A result cannot be stored anywhere."""


class Cache:
    """Finished files by name. `fallback` names the private directory, made only when needed."""

    def __init__(self, path: Path, fallback: str, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._path = path
        self._fallback = fallback
        self._max_bytes = max_bytes
        self._written = _EVICT_EVERY
        self.warning = ""
        """Why the private directory is used; "" while it is not."""

    def find(self, name: str) -> Path | None:
        """A finished file, marked as used now."""
        path = self._path / name
        try:
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError:  # read-only: its age does not matter then
            return path if path.is_file() else None
        return path

    def add(self, name: str, write: Callable[[Path], object]) -> Path:
        """Lets `write` make the file under a temporary name, then shows it.

        Raises `CacheError` if no directory takes it; errors of `write` other than `OSError` pass.
        """
        try:
            return self._add(name, write)
        except OSError as error:
            if self.warning:
                raise CacheError(f"cannot write {self._path / name}: {error.strerror}") from error
            cause = error
        self._use_private(cause)
        try:
            return self._add(name, write)
        except OSError as error:
            raise CacheError(f"cannot write {self._path / name}: {error.strerror}") from error

    def _add(self, name: str, write: Callable[[Path], object]) -> Path:
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self._path.stat()
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o002:
            raise PermissionError(0, "another user can write the directory")
        path = self._path / name
        temporary = self._path / f".{name}.{os.getpid()}"
        try:
            write(temporary)
            size = temporary.stat().st_size
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        self._written += size
        if self._written >= _EVICT_EVERY:
            self._written = 0
            self.evict()
        return path

    def _use_private(self, cause: OSError) -> None:
        for place in fallback_places(self._fallback):
            try:
                place.mkdir(mode=0o700, exist_ok=True)
            except OSError:
                continue
            if place.stat().st_uid == os.geteuid():
                self.warning = (
                    f"the cache directory {self._path} cannot be used ({cause.strerror}): "
                    f"tables are made anew into {place} and lost when the agent ends"
                )
                self._path = place
                return
        raise CacheError(f"cannot write {self._path}: {cause.strerror}, nor a temporary directory")

    def evict(self) -> None:
        """Removes the files that were not used for the longest until the cap holds."""
        now = time.time()
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        for used, size, path in files:
            if total <= self._max_bytes:
                break
            if now - used > _YOUNG_S:
                path.unlink(missing_ok=True)
                total -= size

    def _files(self) -> Iterator[tuple[float, int, Path]]:
        """(last use, bytes, path) of finished files, and of temporary ones that a crash left."""
        for entry in os.scandir(self._path):
            if entry.name.endswith(_SUFFIXES) or entry.name.startswith("."):
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                yield status.st_mtime, status.st_size, Path(entry.path)
