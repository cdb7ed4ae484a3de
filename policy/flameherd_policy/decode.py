"""Plain data (parsed YAML or JSON) → structs of the model, with every problem named by its field.

msgspec's own decoder stops at the first error and speaks of Python types; a policy's author wants
all errors at once, in the words of the file. So the types are walked here, by `msgspec.inspect`,
and bounds, patterns and checks come from the same annotations that the reference docs are made of.

Strict (files): an unknown field is a problem. Lenient (the Kubernetes API): it is left out and
listed, so that an agent can read what a newer operator writes.
"""

import functools
from collections.abc import Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

import msgspec.inspect as mi

from flameherd_policy.base import Model
from flameherd_policy.durations import Duration
from flameherd_policy.errors import PolicyError, Problem
from flameherd_policy.quantities import Quantity

MAX_PROBLEMS: Final = 50
_MAX_SHOWN: Final = 60
_INVALID: Final = object()
M = TypeVar("M", bound=Model)
T_co = TypeVar("T_co", covariant=True)

type_info = functools.cache(mi.type_info)


class Decoded(NamedTuple, Generic[T_co]):
    """A struct, and the paths of the fields that were left out because this version does not know
    them.
    """

    value: T_co
    unknown: tuple[str, ...]


def decode(model: type[M], data: object, *, lenient: bool = False) -> Decoded[M]:
    """`data` (dicts, lists, strings, numbers) as a `model`;

    raises `PolicyError` with every problem.
    """
    walk = _Walk(lenient)
    value = walk.value(type_info(model), data, "", None)
    if walk.found:
        raise PolicyError(walk.found)
    return Decoded(cast(M, value), tuple(walk.unknown))


def suggestion(word: str, known: list[str]) -> str:
    """`; did you mean …?` or, where nothing comes close, the list of what is known."""
    import difflib  # only when something is wrong: the agent's memory counts

    lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {lower[close[0]]}?"
    return f"; known: {', '.join(known)}" if known else ""


def shown(value: object) -> str:
    """A value as an error message shows it: as JSON has it, cut short."""
    if isinstance(value, Mapping):
        return "a map"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value) if isinstance(value, str | int | float) else type(value).__name__
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


class _Walk:
    """One decoding: collects problems and unknown fields on the way down."""

    def __init__(self, lenient: bool) -> None:
        self.lenient = lenient
        self.found: list[Problem] = []
        self.unknown: list[str] = []

    def problem(self, path: str, message: str) -> object:
        if len(self.found) < MAX_PROBLEMS:
            self.found.append(Problem(path, message))
        return _INVALID

    def value(
        self, kind: mi.Type, data: object, path: str, extra: Mapping[str, Any] | None
    ) -> object:
        """`data` as `kind`, or `_INVALID` after the problem was noted."""
        match kind:
            case mi.Metadata():
                return self.value(kind.type, data, path, {**(extra or {}), **(kind.extra or {})})
            case mi.UnionType():  # only `X | None`: absent is allowed, an explicit null is not
                inner = next(t for t in kind.types if not isinstance(t, mi.NoneType))
                return self.value(inner, data, path, extra)
            case mi.StructType():
                return self.struct(kind, data, path)
            case mi.DictType():
                return self.mapping(kind, data, path)
            case mi.VarTupleType():
                return self.sequence(kind, data, path, extra or {})
            case mi.EnumType():
                known = [str(member.value) for member in kind.cls]
                if isinstance(data, str) and data in known:
                    return kind.cls(data)
                hint = suggestion(data, known) if isinstance(data, str) else ""
                return self.problem(path, f"{shown(data)} is not one of {', '.join(known)}{hint}")
            case mi.CustomType():
                return self.custom(kind, data, path, extra or {})
            case mi.BoolType():
                if isinstance(data, bool):
                    return data
                return self.problem(path, f"{shown(data)} is not true or false")
            case mi.IntType():
                return self.integer(kind, data, path, extra or {})
            case mi.StrType():
                return self.string(kind, data, path, extra or {})
        raise TypeError(f"{path}: the model uses {type(kind).__name__}, which decode does not know")

    def struct(self, kind: mi.StructType, data: object, path: str) -> object:
        if data is None:
            return self.problem(path, "null: write {} for the defaults, or leave the field out")
        if not isinstance(data, Mapping):
            return self.problem(path, f"{shown(data)} is not a map of fields")
        fields = {field.encode_name: field for field in kind.fields}
        values: dict[str, object] = {}
        for name, item in data.items():
            field = fields.get(name) if isinstance(name, str) else None
            if field is None:
                self.unknown_field(_join(path, str(name)[:_MAX_SHOWN]), str(name), list(fields))
            elif item is None and self.lenient and not field.required:
                continue  # the API prunes nulls of optional fields
            else:
                values[field.name] = self.value(
                    field.type, item, _join(path, field.encode_name), None
                )
        for field in kind.fields:
            if field.required and field.encode_name not in data:
                values[field.name] = self.problem(_join(path, field.encode_name), "is required")
        if any(value is _INVALID for value in values.values()):
            return _INVALID
        struct = kind.cls(**values)
        cross = list(struct.problems()) if isinstance(struct, Model) else []
        for name, message in cross:
            self.problem(_join(path, name) if name else path, message)
        return _INVALID if cross else struct

    def unknown_field(self, path: str, name: str, known: list[str]) -> None:
        if self.lenient:
            if len(self.unknown) < MAX_PROBLEMS:
                self.unknown.append(path)
        else:
            self.problem(path, f"unknown field{suggestion(name, known)}")

    def mapping(self, kind: mi.DictType, data: object, path: str) -> object:
        if not isinstance(data, Mapping):
            return self.problem(path, f"{shown(data)} is not a map")
        if not self.length(kind, len(data), path, "entries"):
            return _INVALID
        result: dict[object, object] = {}
        for key, item in data.items():
            key_path = f"{path}[{str(key)[:_MAX_SHOWN]}]"
            good = self.value(kind.key_type, key, key_path, None)
            value = self.value(kind.value_type, item, key_path, None)
            if good is not _INVALID:
                result[good] = value
        complete = len(result) == len(data) and _INVALID not in result.values()
        return result if complete else _INVALID

    def sequence(
        self, kind: mi.VarTupleType, data: object, path: str, extra: Mapping[str, Any]
    ) -> object:
        if not isinstance(data, list | tuple):
            return self.problem(path, f"{shown(data)} is not a list")
        if not self.length(kind, len(data), path, "entries"):
            return _INVALID
        items = [self.value(kind.item_type, v, f"{path}[{n}]", None) for n, v in enumerate(data)]
        if any(item is _INVALID for item in items):
            return _INVALID
        if extra.get("set"):
            for n, item in enumerate(items):
                if item in items[:n]:
                    return self.problem(f"{path}[{n}]", f"{shown(item)} is there twice")
        return tuple(items)

    def custom(
        self, kind: mi.CustomType, data: object, path: str, extra: Mapping[str, Any]
    ) -> object:
        if kind.cls not in (Duration, Quantity):
            raise TypeError(
                f"{path}: the model uses {kind.cls.__name__}, which decode does not know"
            )
        try:
            value = kind.cls.parse(data)
        except ValueError as error:
            return self.problem(path, str(error))
        low, high = extra.get("ge", value), extra.get("le", value)
        if not low <= value <= high:
            return self.problem(path, f"{value} is not between {low} and {high}")
        return value

    def integer(
        self, kind: mi.IntType, data: object, path: str, extra: Mapping[str, Any]
    ) -> object:
        unit = f" ({extra['unit']})" if "unit" in extra else ""
        if isinstance(data, bool) or not isinstance(data, int):
            return self.problem(path, f"{shown(data)} is not a whole number{unit}")
        low = data if kind.ge is None else kind.ge
        high = data if kind.le is None else kind.le
        if not low <= data <= high:
            return self.problem(path, f"{shown(data)} is not between {low} and {high}{unit}")
        return data

    def string(self, kind: mi.StrType, data: object, path: str, extra: Mapping[str, Any]) -> object:
        if not isinstance(data, str):
            hint = " (quote it)" if isinstance(data, bool | int | float) else ""
            return self.problem(path, f"{shown(data)} is not text{hint}")
        if not self.length(kind, len(data), path, "characters"):
            return _INVALID
        if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in data):
            return self.problem(path, f"{shown(data)} holds a character that is not text")
        check = extra.get("check")
        wrong = check(data) if check else None
        if wrong is not None:
            return self.problem(path, wrong)
        return data

    def length(
        self, kind: mi.StrType | mi.DictType | mi.VarTupleType, length: int, path: str, what: str
    ) -> bool:
        if kind.max_length is not None and length > kind.max_length:
            self.problem(path, f"{length} {what} are more than {kind.max_length}")
            return False
        if kind.min_length is not None and length < kind.min_length:
            self.problem(path, f"{length} {what} are fewer than {kind.min_length}")
            return False
        return True
