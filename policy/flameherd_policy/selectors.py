"""Label selectors, with the syntax and the meaning that Kubernetes gives them.

Facts from apimachinery's `labels` package: `NotIn` and `DoesNotExist` also match when the key is
absent; `In` and `NotIn` need values, `Exists` and `DoesNotExist` must have none; all requirements
must hold; an empty selector matches everything.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta

from flameherd_policy.base import Model
from flameherd_policy.rules import Rule, text

_LABEL_NAME: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_PART: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_PART}(?:\.{_PART})*"
"""As Kubernetes has it: only the whole is bounded, not each part."""
_MAX_SUBDOMAIN: Final = 253

DNS_LABEL: Final = text(
    _LABEL,
    "must be at most 63 lower-case letters, digits and '-', and begin and end with a letter or "
    "digit",
)
"""RFC 1123 label: the names of namespaces and containers."""

DNS_SUBDOMAIN: Final = text(
    _SUBDOMAIN,
    "must be at most 253 lower-case letters, digits, '-' and '.', and begin and end with a letter "
    "or digit",
)
"""RFC 1123 subdomain: the names of most objects."""

_WRONG_KEY: Final = (
    "is not a label key: 1 to 63 letters, digits, '-', '_', '.', with a letter or digit at both "
    "ends; before it there may be a DNS name and '/'"
)
_KEY: Final = text(
    f"(?:{_SUBDOMAIN}/)?{_LABEL_NAME}",
    _WRONG_KEY,
    Rule(f"self.indexOf('/') <= {_MAX_SUBDOMAIN}", "has more than 253 characters before the '/'"),
)
_VALUE: Final = text(
    f"(?:{_LABEL_NAME})?",
    "is not a label value: at most 63 letters, digits, '-', '_', '.', with a letter or digit at "
    "both ends",
)


def check_label_key(key: str) -> str | None:
    """`name` or `prefix/name`."""
    if key.find("/") > _MAX_SUBDOMAIN:
        return f"{key!r} has more than {_MAX_SUBDOMAIN} characters before the '/'"
    wrong: str | None = _KEY["check"](key)
    return wrong


def check_label_value(value: str) -> str | None:
    """Like a key's name, but may be empty."""
    wrong: str | None = _VALUE["check"](value)
    return wrong


class Operator(StrEnum):
    """How `key` and `values` of a requirement relate."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


LabelKey = Annotated[str, Meta(max_length=317, extra=_KEY | {"check": check_label_key})]
LabelValue = Annotated[str, Meta(max_length=63, extra=_VALUE)]


class LabelRequirement(Model, frozen=True):
    """One condition on the labels of an object."""

    RULES = (
        Rule(
            "!(self.operator in ['In', 'NotIn']) || (has(self.values) && size(self.values) > 0)",
            "operators In and NotIn need at least one value: add values, or write Exists or "
            "DoesNotExist",
        ),
        Rule(
            "self.operator in ['In', 'NotIn'] || !has(self.values) || size(self.values) == 0",
            "operators Exists and DoesNotExist take no values: leave values out",
        ),
    )

    key: Annotated[LabelKey, Meta(description="The label that is looked at.")]
    operator: Annotated[Operator, Meta(description="How the label's value is compared.")]
    values: Annotated[
        tuple[LabelValue, ...],
        Meta(max_length=64, description="For `In` and `NotIn`: at least one. Else: none."),
    ] = ()

    def problems(self) -> Iterator[tuple[str, str]]:
        takes_values = self.operator in (Operator.IN, Operator.NOT_IN)
        if takes_values and not self.values:
            yield "values", f"operator {self.operator.value} needs at least one value"
        if not takes_values and self.values:
            yield "values", f"operator {self.operator.value} takes no values"

    def matches(self, labels: Mapping[str, str]) -> bool:
        match self.operator:
            case Operator.IN:
                return self.key in labels and labels[self.key] in self.values
            case Operator.NOT_IN:
                return self.key not in labels or labels[self.key] not in self.values
            case Operator.EXISTS:
                return self.key in labels
            case Operator.DOES_NOT_EXIST:
                return self.key not in labels


class LabelSelector(Model, frozen=True):
    """Which objects are meant, by their labels.

    All conditions must hold; `{}` selects everything.
    """

    match_labels: Annotated[
        dict[LabelKey, LabelValue],
        Meta(max_length=32, description="Labels that must have this value."),
    ] = {}
    match_expressions: Annotated[
        tuple[LabelRequirement, ...], Meta(max_length=32, description="Further conditions.")
    ] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """True if an object with these labels is selected."""
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            requirement.matches(labels) for requirement in self.match_expressions
        )
