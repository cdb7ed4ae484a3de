"""What a reconcile thinks of one object. Pure data: `status` makes conditions of it."""

from typing import Final

import msgspec
from flameherd_policy.status import Effective


class Outcome(msgspec.Struct, frozen=True):
    """One condition: whether it holds, why in a word, and why in a sentence."""

    good: bool | None
    """None = it is not known."""
    reason: str
    message: str = ""


ACCEPTED: Final = Outcome(True, "Accepted", "the policy can be carried out")
RESOLVED: Final = Outcome(True, "Resolved", "every Secret that is named can be used")
NOT_TRIED: Final = Outcome(
    False, "NotAccepted", "the object is not accepted, so it goes no further"
)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one object."""

    accepted: Outcome = ACCEPTED
    resolved: Outcome = RESOLVED
    programmed: Outcome = NOT_TRIED
    effective: Effective | None = None

    @property
    def ready(self) -> Outcome:
        """The first thing that is missing, or what says that nothing is."""
        for outcome in (self.accepted, self.resolved):
            if not outcome.good:
                return outcome
        return self.programmed
