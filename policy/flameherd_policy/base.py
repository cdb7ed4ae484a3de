"""The base of every struct of the model, and its wire form.

Structs are frozen; fields are snake_case in Python and camelCase on the wire; what equals its
default is left out. `Annotated[…, msgspec.Meta(description=…, extra=…)]` is the one source of a
field's documentation, its unit and its checks; `decode` and the reference docs read it. Keys of
`extra`:

    unit    printed behind the bounds: "Hz"
    check   str -> str | None: what is wrong with the text, or None
    cel     Rules that the API server checks on this field
    ge, le  bounds of a Duration
    set     True: the entries of a list must differ
    key     the field that tells the entries of a list of structs apart
    format  of a text, for the API server: "date-time"
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from flameherd_policy.durations import Duration
from flameherd_policy.quantities import Quantity
from flameherd_policy.rules import Rule

API_VERSION = "flameherd.dev/v1alpha1"


class Model(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of every struct of the model."""

    RULES: ClassVar[tuple[Rule, ...]] = ()
    """What the API server checks across fields; `problems` repeats it."""

    def problems(self) -> Iterator[tuple[str, str]]:
        """What is wrong across fields: (path relative to this struct, message)."""
        return iter(())


def _encode_value(value: object) -> str:
    if isinstance(value, Duration | Quantity):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no wire form")


def to_wire(value: Model) -> dict[str, Any]:
    """The struct as plain dicts, lists, strings, numbers: what JSON and YAML writers take."""
    # By way of JSON: to_builtins leaves tuples, which are not equal to the lists that come back.
    wire: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value, enc_hook=_encode_value))
    return wire


def to_document(value: Model) -> dict[str, Any]:
    """`to_wire` with the `apiVersion` and `kind` in front, as a file or the API has it."""
    return {"apiVersion": API_VERSION, "kind": type(value).__name__, **to_wire(value)}
