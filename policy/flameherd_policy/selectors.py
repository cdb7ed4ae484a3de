"""Label selectors, with the syntax and the meaning that Kubernetes gives them.

Facts from apimachinery's `labels` package: `NotIn` and `DoesNotExist` also match when the key is
absent; `In` and `NotIn` need values, `Exists` and `DoesNotExist` must have none; all requirements
must hold; an empty selector matches everything.
"""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta

from flameherd_policy.base import Model

_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_DNS_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_MAX_SUBDOMAIN: Final = 253


def check_dns_label(text: str) -> str | None:
    """RFC 1123 label: the names of namespaces and containers."""
    if _DNS_LABEL.fullmatch(text):
        return None
    return (
        "must be at most 63 lower-case letters, digits and '-', and begin and end with a "
        "letter or digit"
    )


def check_dns_subdomain(text: str) -> str | None:
    """RFC 1123 subdomain: the names of most objects."""
    if len(text) <= _MAX_SUBDOMAIN and all(_DNS_LABEL.fullmatch(part) for part in text.split(".")):
        return None
    return (
        "must be at most 253 lower-case letters, digits, '-' and '.', and begin and end with "
        "a letter or digit"
    )


def check_label_key(text: str) -> str | None:
    """`name` or `prefix/name`."""
    prefix, slash, name = text.rpartition("/")
    if slash and check_dns_subdomain(prefix) is not None:
        return f"{text!r} is not a label key: {prefix!r} before the '/' must be a DNS name"
    if not _NAME.fullmatch(name):
        return (
            f"{text!r} is not a label key: 1 to 63 letters, digits, '-', '_', '.', with a "
            "letter or digit at both ends"
        )
    return None


def check_label_value(text: str) -> str | None:
    """Like a key's name, but may be empty."""
    if not text or _NAME.fullmatch(text):
        return None
    return (
        f"{text!r} is not a label value: at most 63 letters, digits, '-', '_', '.', with a "
        "letter or digit at both ends"
    )


class Operator(StrEnum):
    """How `key` and `values` of a requirement relate."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


LabelKey = Annotated[str, Meta(max_length=317, extra={"check": check_label_key})]
LabelValue = Annotated[str, Meta(max_length=63, extra={"check": check_label_value})]


class LabelRequirement(Model, frozen=True):
    """One condition on the labels of an object."""

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
