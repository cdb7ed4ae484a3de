"""Reads many protobuf messages of one kind at once, as numpy arrays.

A profile message is thousands of small records (samples, stacks, locations, functions). A Python
object for each is what makes a plain loop slow. Here one array holds the position in every record,
and each field is read from all records in one step: first the tag is compared, then the varint is
taken byte by byte, again for all.

This works on *canonical* bytes only: those that our own protobuf library has just serialised, with
fields in order of their numbers, repeated scalars packed and nothing malformed. Bytes of a sender
never come here; they are parsed by the library first. Positions are still checked by numpy, so
that a mistake is an IndexError and never a read outside of the buffer.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Longs = NDArray[np.uint64]
Positions = NDArray[np.int64]

_PADDING: Final = bytes(16)
_MAX_VARINT_BYTES: Final = 10


def view(data: bytes) -> Bytes:
    """`data` as an array, padded so that a position at its end can be looked at."""
    return np.frombuffer(data + _PADDING, np.uint8)


def split(data: bytes, at: int, end: int, tag: int) -> tuple[Positions, Positions, int]:
    """Bounds of consecutive length-delimited fields with the one-byte `tag` in data[at:end].

    Returns starts and ends of their contents, and where the first other field begins.
    """
    starts: list[int] = []
    ends: list[int] = []
    starting, ending = starts.append, ends.append
    while at < end and data[at] == tag:
        length = data[at + 1]
        at += 2
        if length > 127:
            length &= 127
            shift = 7
            while True:
                byte = data[at]
                at += 1
                length |= (byte & 127) << shift
                if byte < 128:
                    break
                shift += 7
        starting(at)
        at += length
        ending(at)
    return np.array(starts, np.int64), np.array(ends, np.int64), at


def read_varints(buffer: Bytes, at: Positions) -> tuple[Longs, Positions]:
    """The varint at each position, and the positions after them."""
    byte = buffer[at]
    value = (byte & 127).astype(np.uint64)
    at = at + 1
    active = np.flatnonzero(byte >= 128)
    shift = 7
    while active.size:
        if shift >= 7 * _MAX_VARINT_BYTES:
            raise ValueError("a varint is longer than ten bytes")
        byte = buffer[at[active]]
        value[active] |= (byte & 127).astype(np.uint64) << np.uint64(shift)
        at[active] += 1
        active = active[byte >= 128]
        shift += 7
    return value, at


def packed_indices(data: bytes) -> list[int]:
    """The numbers in one packed field: for few and short ones quicker than an array."""
    out = []
    number = shift = 0
    for byte in data:
        number |= (byte & 127) << shift
        if byte < 128:
            out.append(number)
            number = shift = 0
        else:
            shift += 7
    return out


def flat_positions(starts: Positions, lengths: Positions) -> Positions:
    """start, start + 1, … of each range, one range after the other."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()), dtype=np.int64)


def unpack_varints(buffer: Bytes, starts: Positions, ends: Positions) -> tuple[Longs, Positions]:
    """All varints of all ranges, and where each range's begin among them (one more than ranges)."""
    lengths = ends - starts
    bounds = np.concatenate(([0], np.cumsum(lengths)))
    data = buffer[flat_positions(starts, lengths)]
    last = np.flatnonzero(data < 128)
    first = np.concatenate(([0], last[:-1] + 1)) if last.size else last
    sizes = last - first + 1
    padded = np.concatenate((data, np.zeros(_MAX_VARINT_BYTES, np.uint8)))
    value = (padded[first] & 127).astype(np.uint64)
    for index in range(1, int(sizes.max()) if sizes.size else 0):
        active = np.flatnonzero(sizes > index)
        value[active] |= (padded[first[active] + index] & 127).astype(np.uint64) << np.uint64(
            7 * index
        )
    return value, np.searchsorted(last, bounds).astype(np.int64)


def unpack_fixed64(buffer: Bytes, starts: Positions, ends: Positions) -> tuple[Longs, Positions]:
    """As `unpack_varints`, for packed fixed64."""
    lengths = ends - starts
    data = np.ascontiguousarray(buffer[flat_positions(starts, lengths)])
    offsets = np.concatenate(([0], np.cumsum(lengths // 8))).astype(np.int64)
    return data.view("<u8").astype(np.uint64), offsets


class Records:
    """Records of one message type; read their fields in ascending order of number."""

    def __init__(self, buffer: Bytes, starts: Positions, ends: Positions) -> None:
        self.buffer = buffer
        self._at = starts.copy()
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    def _with(self, tag: int) -> Positions:
        return np.flatnonzero((self._at < self._ends) & (self.buffer[self._at] == tag))

    def varint(self, tag: int) -> Longs:
        """A scalar field; 0 where it is absent. Negative numbers are their two's complement."""
        out = np.zeros(len(self), np.uint64)
        found = self._with(tag)
        if found.size:
            out[found], self._at[found] = read_varints(self.buffer, self._at[found] + 1)
        return out

    def span(self, tag: int) -> tuple[Positions, Positions]:
        """Bounds of a length-delimited field; an empty range where it is absent."""
        starts = self._at.copy()
        ends = starts.copy()
        found = self._with(tag)
        if found.size:
            length, begin = read_varints(self.buffer, self._at[found] + 1)
            starts[found] = begin
            ends[found] = begin + length.astype(np.int64)
            self._at[found] = ends[found]
        return starts, ends

    def repeated(self, tag: int, limit: int) -> tuple[Positions, Positions, Positions]:
        """A repeated submessage: (record of each, starts, ends), by record, in their order.

        Raises ValueError where a record has more than `limit` of them.
        """
        owners, starts, ends = [], [], []
        for _ in range(limit):
            found = self._with(tag)
            if not found.size:
                break
            length, begin = read_varints(self.buffer, self._at[found] + 1)
            self._at[found] = begin + length.astype(np.int64)
            owners.append(found)
            starts.append(begin)
            ends.append(self._at[found])
        else:
            if self._with(tag).size:
                raise ValueError(f"more than {limit}")
        if not owners:
            empty = np.zeros(0, np.int64)
            return empty, empty, empty
        owner = np.concatenate(owners)
        order = np.argsort(owner, kind="stable")
        return owner[order], np.concatenate(starts)[order], np.concatenate(ends)[order]

    def unread(self) -> Positions:
        """The tag byte that each record stopped at; -1 where it was read to its end."""
        rest = self._at < self._ends
        return np.where(
            rest, self.buffer[np.minimum(self._at, len(self.buffer) - 1)].astype(np.int64), -1
        )
