"""What is wrong with a policy, told by file, document and field.

`PolicyError` carries every problem that was found, not only the first, so that one edit can mend
them all. It derives from `ValueError`, not from the agent's tree: this package imports nothing of
ours.
"""

from collections.abc import Iterable

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong: `spec.cpu.frequencyHz: 0 is not between 1 and 997 (Hz)`."""

    path: str
    """The field as it is written in YAML:

    `spec.export.tls.caSecretRef.name`, `policies[0].name`; "" = all of it.
    """
    message: str
    file: str = ""
    document: int = 0
    """1-based index of the document in the file; 0 = not of one document."""
    label: str = ""
    """Kind and name of the document, as far as they can be read."""

    def __str__(self) -> str:
        where = self.file
        if self.document:
            where += f"{', ' if where else ''}document {self.document}"
        if self.label:
            where += f" ({self.label})" if where else self.label
        return ": ".join(part for part in (where, self.path, self.message) if part)


class PolicyError(ValueError):
    """A policy, or a file of policies, cannot be used; `problems` lists why, one by one."""

    exit_code = 2

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
