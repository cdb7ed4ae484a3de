"""What goes wrong with the API server.

OperatorError
├── ApiFailure     the API server refused a request, or did not answer
├── LeaseLost      another operator works now
└── WatchSilent    watches show less than a fresh list: only a restart mends that
"""


class OperatorError(Exception):
    """Base of all of these."""


class ApiFailure(OperatorError):
    """A request failed. `code` is the HTTP status; 0 = there was no answer."""

    def __init__(self, code: int, what: str, message: str) -> None:
        self.code = code
        self.what = what
        super().__init__(f"{what}: {message}")


class WatchSilent(OperatorError):
    """Objects exist that no watch has told of."""


class LeaseLost(OperatorError):
    """We may not write any more."""
