"""Ids by content: equal things of any sender, message or day get equal ids, with no table to ask.

An id is 64 bits of keyed BLAKE2b. The key is the store's own secret: without it a sender could search
for a function whose id equals another tenant's and have its name shown there. What is hashed holds
the ids of its parts, so a stack's id stands for every name in it.
"""

import hashlib
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_GENERATION: Final = 2


class Hasher:
    """Ids under one store's key. `what` keeps kinds of things apart."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def digest(self, what: bytes, data: bytes) -> bytes:
        """Eight bytes."""
        return hashlib.blake2b(data, digest_size=8, key=self._key, person=what).digest()

    def number(self, what: bytes, data: bytes) -> int:
        """The same as an unsigned number."""
        return int.from_bytes(self.digest(what, data), "little")

    def of_texts(self, what: bytes, texts: Sequence[bytes]) -> int:
        """The id of a sequence of texts: their lengths keep ("ab", "c") and ("a", "bc") apart."""
        head = ",".join(str(len(text)) for text in texts).encode()
        return self.number(what, b"".join((head, b":", *texts)))


class Recent(Generic[K, V]):
    """A bounded dict that forgets what was not used lately, at the price of a plain dict.

    Two generations: what is found in the old one moves to the young one; when that is full it
    becomes the old one. So between `limit`/2 and `limit` of the entries used last are known.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit // _GENERATION
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def find(self, keys: Sequence[K]) -> list[V | None]:
        """The value of each key, None where it is not known."""
        found: list[V | None] = list(map(self._young.get, keys))
        if None in found and self._old:
            old = self._old
            for index, value in enumerate(found):
                if value is None and (known := old.get(keys[index])) is not None:
                    found[index] = known
                    self.put(keys[index], known)
        return found

    def get(self, key: K) -> V | None:
        """The value of one key, or None."""
        return self.find((key,))[0]

    def put(self, key: K, value: V) -> None:
        """Remember it."""
        if len(self._young) >= self._limit:
            self._old, self._young = self._young, {}
        self._young[key] = value

    def clear(self) -> None:
        """Forget all."""
        self._young.clear()
        self._old.clear()

    def __len__(self) -> int:
        return len(self._young) + len(self._old)
