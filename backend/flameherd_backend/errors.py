"""The exceptions that the backend raises on purpose.

BackendError                   what was tried, on what, and what to do
├── UsageError                 command line or settings are wrong                     exit code 2
├── EnvironmentProblem         a port, folder or the store cannot be used             exit code 3
├── Refused                    a message of a sender cannot be taken, ever            HTTP 400, INVALID_ARGUMENT
│   ├── TooLarge               it is over a size limit                                HTTP 413, RESOURCE_EXHAUSTED
│   ├── Unauthenticated        no or an unknown token                                 HTTP 401, UNAUTHENTICATED
│   └── Unsupported            a content type or encoding that we do not speak        HTTP 415, UNIMPLEMENTED
├── Busy                       not now: the sender should come again after a delay    HTTP 429/503, UNAVAILABLE
├── AccessUnknown              who decides what a viewer may see does not answer      HTTP 503
├── StoreError                 a statement failed
│   ├── StoreFull              no room on the disk or in memory                       (ingest: as Busy)
│   ├── NotSummedUp            rows are stored, their sums by minute are not          (ingest: stored)
│   └── QueryTimeout           it ran over its time                                   HTTP 504
└── Problem                    a request to the API that cannot be answered           (its own status)
"""


class BackendError(Exception):
    """Base of every error that is raised on purpose."""

    exit_code = 1


class UsageError(BackendError):
    """The command line or the settings cannot work: the message names the option."""

    exit_code = 2


class EnvironmentProblem(BackendError):
    """A port, a folder or the store cannot be used."""

    exit_code = 3


class Refused(BackendError):
    """A sender's message cannot be taken, and sending it again would not help."""


class TooLarge(Refused):
    """A message is over a limit on its size."""


class Unauthenticated(Refused):
    """A token is missing or not known."""


class Unsupported(Refused):
    """A content type or an encoding is none that we speak."""


class Busy(BackendError):
    """Nothing is wrong with the message: come again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float, *, throttled: bool = False) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.throttled = throttled
        """True: the sender's rate is the cause (429); False: our own state is (503)."""


class AccessUnknown(BackendError):
    """What a person may see cannot be found out, so that nothing is shown."""


class StoreError(BackendError):
    """A statement failed; the message is the engine's, shortened."""


class StoreFull(StoreError):
    """There is no room: on the disk, or under the memory cap."""


class NotSummedUp(StoreError):
    """All rows are stored, but a view that derives from them failed."""


class QueryTimeout(StoreError):
    """A query ran over its time."""


class Problem(BackendError):
    """A request to the API that gets an error document (RFC 9457)."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        parameter: str | None = None,
        retry_after_s: int | None = None,
    ):
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.parameter = parameter
        self.retry_after_s = retry_after_s
