"""The decoding worker: a child process that reads messages of senders on stdin and answers blocks on stdout.

    python -m flameherd_backend.decode.worker

Its memory is bounded (RLIMIT_AS), its time by the parent, who starts another one when it dies. The first
frame is its settings. A message that is refused is an answer; a mistake of ours in decoding one is
too, so that it costs that message only.
"""

import gc
import json
import resource
import sys
import traceback
from collections.abc import Sequence
from typing import Any, BinaryIO, Final

from flameherd_backend.decode.message import Decoder, Limits
from flameherd_backend.decode.protocol import PREFIX, pack, unpack_prefix, unpack_sizes
from flameherd_backend.errors import Refused, TooLarge

_GC_THRESHOLD: Final = 200_000


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise EOFError
    return data


def receive(stream: BinaryIO) -> tuple[dict[str, Any], list[bytes]]:
    """One frame. Raises EOFError at the end."""
    head_bytes, count = unpack_prefix(_read(stream, PREFIX.size))
    sizes = unpack_sizes(_read(stream, 8 * count))
    head = json.loads(_read(stream, head_bytes))
    return head, [_read(stream, size) for size in sizes]


def send(stream: BinaryIO, head: dict[str, Any], parts: Sequence[bytes] = ()) -> None:
    """One frame."""
    for piece in pack(head, parts):
        stream.write(piece)
    stream.flush()


def answer(
    decoder: Decoder, head: dict[str, Any], body: bytes
) -> tuple[dict[str, Any], list[bytes]]:
    """The response to one request."""
    namespaces = head["namespaces"]
    try:
        decoded = decoder.decode(
            body,
            gzipped=head["gzipped"],
            is_json=head["json"],
            epoch=head["epoch"],
            namespaces=None if namespaces is None else frozenset(namespaces),
        )
    except TooLarge as error:
        return {"too_large": str(error)}, []
    except Refused as error:
        return {"refused": str(error)}, []
    except MemoryError:
        decoder.forget()
        return {"too_large": "decoding the message takes more memory than a worker may use"}, []
    except Exception:  # noqa: BLE001 - whatever a message breaks here costs that message, and is told
        decoder.forget()
        return {"failed": traceback.format_exc(limit=-4)}, []
    tables = list(decoded.blocks)
    meta = {
        "tables": tables,
        "profiles": decoded.profiles,
        "rejected": decoded.rejected,
        "reason": decoded.reason,
        "rows": decoded.rows,
    }
    return meta, [decoded.blocks[table] for table in tables]


def main() -> int:
    """Until stdin ends."""
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    settings, (key,) = receive(stdin)
    if settings["memory_bytes"]:
        resource.setrlimit(resource.RLIMIT_AS, (settings["memory_bytes"],) * 2)
    decoder = Decoder(key, Limits(settings["max_bytes"], settings["max_age_s"]))
    # What is remembered is many small tuples without cycles: walking them is wasted time.
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, 50, 1000)
    while True:
        try:
            head, (body,) = receive(stdin)
        except EOFError:
            return 0
        send(stdout, *answer(decoder, head, body))


if __name__ == "__main__":
    sys.exit(main())
