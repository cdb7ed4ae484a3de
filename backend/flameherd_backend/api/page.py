"""The page: static files that were built with the package, read once, served from memory.

What is not in the folder at the start does not exist: there is no path to walk out of.
"""

import mimetypes
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final, NamedTuple

NOT_BUILT: Final = "The page is not built: `make ui` builds it, then start the backend again. The API is at /api/v1/openapi.json.\n"
_MAX_FILE: Final = 8 << 20


class File(NamedTuple):
    """A file as it is sent."""

    body: bytes
    media_type: str
    immutable: bool


def load(folder: Traversable | None = None) -> dict[str, File]:
    """URL path → file; {} if the page is not built."""
    folder = folder or resources.files("flameherd_backend") / "static"
    files: dict[str, File] = {}
    _walk(folder, "/", files)
    if "/index.html" in files:
        files["/"] = files.pop("/index.html")
    return files


def _walk(folder: Traversable, path: str, files: dict[str, File]) -> None:
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if entry.is_dir():
            _walk(entry, f"{path}{entry.name}/", files)
        elif not entry.name.startswith("."):
            body = entry.read_bytes()
            if len(body) <= _MAX_FILE:
                kind = mimetypes.guess_type(entry.name)[0] or "application/octet-stream"
                shown = f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
                files[path + entry.name] = File(body, shown, path.startswith("/assets/"))
