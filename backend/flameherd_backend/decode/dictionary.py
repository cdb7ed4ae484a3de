"""The dictionary of one message: its tables checked, its locations and stacks as ids of the store.

Every entry is resolved once per message, and what the worker has seen before is not resolved at
all: a location is looked up by the ids of its parts (kind, mapping, address, functions and lines),
which are numbers, in one step. Only what is new costs Python objects.

Rules checked (`profiles.proto`): index 0 of each table is the zero value, every index lies in its
table. A dictionary that breaks one is refused as a whole, since nothing in it can be trusted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from flameherd_backend.decode import wire
from flameherd_backend.decode.attributes import Attributes, collect, cut, key_of, value_of
from flameherd_backend.decode.ids import Hasher, Recent
from flameherd_backend.errors import Refused

MAX_FRAMES: Final = 4096
"""Locations of one stack."""
MAX_LINES: Final = 256
"""Inlined functions of one location."""
MAX_NAME_BYTES: Final = 4096
TABLES: Final = ("mapping", "location", "function", "link", "string", "attribute", "stack")
"""In the order of their field numbers, from 1 on."""
_KIND: Final = b"profile.frame.type"
_BUILD_IDS: Final = tuple(
    f"process.executable.build_id.{k}".encode() for k in ("gnu", "go", "htlhash")
)
UNKNOWN_LINE: Final = (1 << 32) - 1


@dataclass(slots=True)
class NewRows:
    """Rows of the side tables that this worker has not written today."""

    functions: list[tuple[int, bytes, bytes, bytes, bytes, int, int]] = field(default_factory=list)
    """(id, name, file, mapping, kind, line, 1 if the name is an address)"""
    frames: list[tuple[Any, ...]] = field(default_factory=list)
    """(id, kind, address, mapping, gnu, go, htlhash, functions, system names, lines, columns, attributes, first lines)"""
    stacks: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    """(id, function ids, frame ids): the ids as little-endian bytes, leaf first"""
    resources: list[tuple[int, Attributes]] = field(default_factory=list)


class Known:
    """What this worker has seen, over all messages: content → id, and what it has written today."""

    def __init__(self, key: bytes, limit: int = 200_000) -> None:
        self.hash = Hasher(key)
        self.entries: Recent[bytes, int] = Recent(limit)
        self.locations: Recent[bytes, tuple[int, bytes]] = Recent(limit)
        self.functions: Recent[int, bool] = Recent(limit)
        self.stacks: Recent[int, bool] = Recent(limit)
        self.resources: Recent[int, bool] = Recent(limit // 10)
        self.origins: Recent[bytes, Any] = Recent(limit // 10)

    def forget_written(self) -> None:
        """Write everything again: a day has begun, or an insert failed."""
        for cache in (self.locations, self.functions, self.stacks, self.resources):
            cache.clear()


@dataclass(frozen=True, slots=True)
class _Mapping:
    id: int
    path: bytes
    build_ids: tuple[bytes, bytes, bytes]
    rest: Attributes


class Dictionary:
    """The tables of one message. `data` is the canonical serialisation of `message`.

    Raises `Refused` for a dictionary that breaks the rules.
    """

    def __init__(self, message: Any, data: bytes, known: Known, new: NewRows) -> None:
        self._message = message
        self._known = known
        self._new = new
        self._attributes: dict[int, tuple[bytes, bytes]] = {}
        self._check_zero_values()
        self._buffer = wire.view(data)
        tables = {}
        at = 0
        for number, name in enumerate(TABLES, 1):
            starts, ends, at = wire.split(data, at, len(data), number << 3 | 2)
            tables[name] = (starts, ends)
        self.strings = [
            data[start:end]
            for start, end in zip(*(side.tolist() for side in tables["string"]), strict=True)
        ] or [b""]
        self._cut_strings()
        self.links = len(tables["link"][0])
        self.attributes = len(tables["attribute"][0])
        self.stacks = max(1, len(tables["stack"][0]))
        self._mappings = [self._mapping(entry) for entry in message.mapping_table] or [
            _Mapping(0, b"", (b"", b"", b""), ())
        ]
        function_ids, names, systems, files, first_lines = self._read_functions(*tables["function"])
        self._functions = (names, systems, files, first_lines)
        self._read_locations(data, *tables["location"], function_ids)
        self._read_stacks(*tables["stack"])

    def _check_zero_values(self) -> None:
        message = self._message
        if message.string_table and message.string_table[0] != "":
            raise Refused("dictionary.string_table[0] must be the empty string")
        for name in ("mapping", "location", "function", "stack"):
            table = getattr(message, f"{name}_table")
            if table and table[0] != type(table[0])():
                raise Refused(f"dictionary.{name}_table[0] must be the zero value")
        if message.attribute_table:
            entry = message.attribute_table[0]
            if entry.key_strindex or entry.unit_strindex or entry.value.WhichOneof("value"):
                raise Refused("dictionary.attribute_table[0] must be the zero value")
        if message.link_table:
            link = message.link_table[0]
            if any(link.trace_id) or any(link.span_id):
                raise Refused("dictionary.link_table[0] must be the zero value")

    def _cut_strings(self) -> None:
        strings = self.strings
        for index, text in enumerate(strings):
            if len(text) > MAX_NAME_BYTES:
                strings[index] = cut(text, MAX_NAME_BYTES)

    def attribute(self, index: int) -> tuple[bytes, bytes]:
        """Key and value of an entry of the attribute table."""
        found = self._attributes.get(index)
        if found is None:
            if not 0 <= index < max(1, self.attributes):
                raise Refused(
                    f"attribute {index} is not in the attribute table of {self.attributes}"
                )
            if not self.attributes:
                return b"", b""
            entry = self._message.attribute_table[index]
            found = key_of(entry, self.strings), value_of(entry.value, self.strings)
            self._attributes[index] = found
        return found

    def attribute_set(self, indices: Sequence[int]) -> Attributes:
        """Several of them."""
        return collect(self.attribute(index) for index in indices)

    def string(self, index: int) -> bytes:
        """An entry of the string table."""
        if not 0 <= index < len(self.strings):
            raise Refused(f"string {index} is not in the string table of {len(self.strings)}")
        return self.strings[index]

    def _mapping(self, entry: Any) -> _Mapping:
        path = self.string(entry.filename_strindex)
        attributes = dict(self.attribute_set(entry.attribute_indices))
        build_ids = tuple(attributes.pop(key, b"") for key in _BUILD_IDS)
        rest = tuple(attributes.items())
        texts = (path, *build_ids, *(text for pair in rest for text in pair))
        assert len(build_ids) == 3
        return _Mapping(self._known.hash.of_texts(b"mapping", texts), path, build_ids, rest)

    def _in_table(self, indices: wire.Longs, size: int, what: str, table: str) -> wire.Positions:
        """Indices as positions. Raises `Refused` if one lies outside."""
        if indices.size and int(indices.max()) >= max(1, size):
            bad = indices[indices >= max(1, size)][0].astype(np.int64)
            raise Refused(
                f"a {what} refers to entry {bad} of dictionary.{table}_table, which has {size}"
            )
        return indices.astype(np.int64)

    def _read_functions(
        self, starts: wire.Positions, ends: wire.Positions
    ) -> tuple[wire.Longs, list[bytes], list[bytes], list[bytes], list[int]]:
        """Ids of the function table's entries by their content, and their texts."""
        records = wire.Records(self._buffer, starts, ends)
        columns = []
        for tag in (0x08, 0x10, 0x18):
            indices = self._in_table(records.varint(tag), len(self.strings), "function", "string")
            columns.append([self.strings[index] for index in indices.tolist()] or [b""])
        names, systems, files = columns
        lines: list[int] = records.varint(0x20).astype(np.int64).tolist() or [0]
        # Lengths first: no two entries have one key, whatever bytes the names hold.
        keys = [
            b"%d %d %d:%b%b%b" % (len(name), len(system), line, name, system, file)
            for name, system, file, line in zip(names, systems, files, lines, strict=True)
        ]
        cache = self._known.entries
        ids = cache.find(keys)
        for index, found in enumerate(ids):
            if found is None:
                ids[index] = number = self._known.hash.number(b"entry", keys[index])
                cache.put(keys[index], number)
        return np.array(ids, np.uint64), names, systems, files, lines

    def _read_locations(
        self, data: bytes, starts: wire.Positions, ends: wire.Positions, function_ids: wire.Longs
    ) -> None:
        """Ids of locations, and of the functions that each stands for."""
        records = wire.Records(self._buffer, starts, ends)
        mapping = self._in_table(records.varint(0x08), len(self._mappings), "location", "mapping")
        address = records.varint(0x10)
        try:
            owner, line_starts, line_ends = records.repeated(0x1A, MAX_LINES)
        except ValueError as error:
            raise Refused(f"a location has {error} lines") from error
        attribute_starts, attribute_ends = records.span(0x22)
        lines = wire.Records(self._buffer, line_starts, line_ends)
        function = self._in_table(lines.varint(0x08), len(function_ids), "line", "function")
        line, column = lines.varint(0x10), lines.varint(0x18)

        kinds: dict[bytes, tuple[int, bytes, Attributes]] = {}
        location_kinds = []
        for start, end in zip(attribute_starts.tolist(), attribute_ends.tolist(), strict=True):
            packed = data[start:end]
            kind = kinds.get(packed)
            if kind is None:
                kind = kinds[packed] = self._kind(packed)
            location_kinds.append(kind)

        count = len(records)
        per_location = np.bincount(owner, minlength=count).astype(np.int64)
        before = np.cumsum(per_location) - per_location
        begin = 3 * (np.arange(count) + before)
        flat = np.empty(3 * (count + len(owner)), np.uint64)
        flat[begin] = [kind[0] for kind in location_kinds]
        mapping_ids = np.array([entry.id for entry in self._mappings], np.uint64)
        flat[begin + 1] = mapping_ids[mapping]
        flat[begin + 2] = address
        at = begin[owner] + 3 + 3 * (np.arange(len(owner)) - before[owner])
        flat[at] = function_ids[function]
        flat[at + 1] = line
        flat[at + 2] = column
        raw = flat.tobytes()
        bounds = [*(8 * begin).tolist(), len(raw)]
        keys = [raw[bounds[index] : bounds[index + 1]] for index in range(count)]

        found = self._known.locations.find(keys)
        for index, entry in enumerate(found):
            if entry is None:
                first = int(before[index])
                last = first + int(per_location[index])
                found[index] = entry = self._new_location(
                    keys[index],
                    location_kinds[index],
                    self._mappings[mapping[index]],
                    int(address[index]),
                    function[first:last].tolist(),
                    line[first:last].astype(np.int64).tolist(),
                    column[first:last].astype(np.int64).tolist(),
                )
                self._known.locations.put(keys[index], entry)
        known = [entry for entry in found if entry is not None]
        self._location_ids = np.array([entry[0] for entry in known] or [0], np.uint64)
        self._location_functions = np.frombuffer(b"".join([entry[1] for entry in known]), "<u8")
        self._functions_of_location = np.maximum(per_location, 1)
        self._functions_before = (
            np.cumsum(self._functions_of_location) - self._functions_of_location
        )
        self.locations = count

    def _kind(self, packed: bytes) -> tuple[int, bytes, Attributes]:
        attributes = dict(self.attribute_set(wire.packed_indices(packed)))
        kind = attributes.pop(_KIND, b"")
        rest = tuple(attributes.items())
        texts = (kind, *(text for pair in rest for text in pair))
        return self._known.hash.of_texts(b"kind", texts), kind, rest

    def _new_location(
        self,
        key: bytes,
        kind: tuple[int, bytes, Attributes],
        mapping: _Mapping,
        address: int,
        functions: list[int],
        lines: list[int],
        columns: list[int],
    ) -> tuple[int, bytes]:
        """Notes the rows of a location; returns its id and the ids of its functions, packed."""
        hasher = self._known.hash
        names, systems, files, first_lines = self._functions
        ids, begins = [], []
        for index, line in zip(functions, lines, strict=True):
            first = first_lines[index] or line
            begins.append(first if 0 < first < UNKNOWN_LINE else 0)
            ids.append(
                self._function(names[index], files[index], mapping.path, kind[1], first, address)
            )
        if not functions:
            ids.append(self._function(b"", b"", mapping.path, kind[1], 0, address))
        identity = hasher.number(b"frame", key)
        attributes = (*kind[2], *mapping.rest)
        system_names = [systems[index] for index in functions]
        self._new.frames.append(
            (
                identity,
                kind[1],
                address,
                mapping.path,
                *mapping.build_ids,
                ids,
                system_names,
                lines,
                columns,
                attributes,
                begins,
            )
        )
        return identity, np.array(ids, "<u8").tobytes()

    def _function(
        self, name: bytes, file: bytes, mapping: bytes, kind: bytes, line: int, address: int
    ) -> int:
        shown = name or unnamed(mapping, address)
        identity = self._known.hash.of_texts(b"function", (shown, kind, mapping, file))
        if self._known.functions.get(identity) is None:
            known_line = line if 0 < line < UNKNOWN_LINE else UNKNOWN_LINE
            self._new.functions.append(
                (identity, shown, file, mapping, kind, known_line, 0 if name else 1)
            )
            self._known.functions.put(identity, True)
        return identity

    def _read_stacks(self, starts: wire.Positions, ends: wire.Positions) -> None:
        records = wire.Records(self._buffer, starts, ends)
        indices, offsets = wire.unpack_varints(self._buffer, *records.span(0x0A))
        self._stack_locations = self._in_table(indices, self.locations, "stack", "location")
        self._stack_offsets = offsets if len(offsets) > 1 else np.zeros(2, np.int64)
        depth = np.diff(self._stack_offsets)
        if int(depth.max()) > MAX_FRAMES:
            raise Refused(
                f"a stack has {int(depth.max())} locations; at most {MAX_FRAMES} are taken"
            )

    def stack_ids(self, used: wire.Positions) -> wire.Longs:
        """Ids of the stacks at these (distinct) indices; notes the rows of new ones."""
        starts = self._stack_offsets[used]
        lengths = self._stack_offsets[used + 1] - starts
        locations = self._stack_locations[wire.flat_positions(starts, lengths)]
        raw = self._location_ids[locations].tobytes()
        ends = np.cumsum(lengths)
        bounds = [0, *(8 * ends).tolist()]
        number = self._known.hash.number
        ids = [number(b"stack", raw[bounds[i] : bounds[i + 1]]) for i in range(len(used))]
        fresh = [i for i, seen in enumerate(self._known.stacks.find(ids)) if seen is None]
        if fresh:
            per_stack_before = ends - lengths
            chosen = np.array(fresh)
            flat = locations[wire.flat_positions(per_stack_before[chosen], lengths[chosen])]
            counts = self._functions_of_location[flat]
            functions = self._location_functions[
                wire.flat_positions(self._functions_before[flat], counts)
            ].tobytes()
            cut_at = np.concatenate(([0], np.cumsum(counts)))[
                np.concatenate(([0], np.cumsum(lengths[chosen])))
            ]
            cuts = (8 * cut_at).tolist()
            for place, index in enumerate(fresh):
                self._known.stacks.put(ids[index], True)
                self._new.stacks.append(
                    (
                        ids[index],
                        functions[cuts[place] : cuts[place + 1]],
                        raw[bounds[index] : bounds[index + 1]],
                    )
                )
        return np.array(ids, np.uint64)

    def link(self, index: int) -> tuple[bytes, bytes]:
        """Trace and span id, of 16 and 8 bytes. Raises `Refused` for others."""
        if not self.links:
            return bytes(16), bytes(8)
        entry = self._message.link_table[index]
        trace, span = entry.trace_id or bytes(16), entry.span_id or bytes(8)
        if len(trace) != 16 or len(span) != 8:
            raise Refused(
                f"dictionary.link_table[{index}] has ids of {len(trace)} and {len(span)} bytes, not 16 and 8"
            )
        return trace, span


def unnamed(mapping: bytes, address: int) -> bytes:
    """The shown name of code without one."""
    base = mapping.rpartition(b"/")[2]
    return b"%b+0x%x" % (base, address) if base else b"0x%x" % address
