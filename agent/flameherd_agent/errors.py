"""The exceptions that Flameherd raises on purpose.

    FlameherdError                 what was tried, on what, and what to do
    ├── UsageError                 the caller's command line or configuration is wrong     exit code 2
    ├── EnvironmentProblem         the kernel, container or tool lacks something           exit code 3
    │   └── AlreadyRunning         another agent holds the host lock                       exit code 4
    ├── ElfError                   an ELF file is malformed, too large or unreadable       (one file is skipped)
    ├── ProcessGone                a process ended while it was being read                 (one process is skipped)
    └── ExportError                an endpoint refused data                                (one batch is counted)

Libraries raise, `cli.main` prints the message without a traceback and exits with the code.
"""


class FlameherdError(Exception):
    """Base of every error that is raised on purpose."""

    exit_code = 1


class UsageError(FlameherdError):
    """The caller asked for something that cannot be: the message names the argument or field."""

    exit_code = 2


class EnvironmentProblem(FlameherdError):
    """The kernel, the container or a tool lacks a capability: the message tells how to mend it."""

    exit_code = 3


class AlreadyRunning(EnvironmentProblem):
    """Another agent holds the host lock."""

    exit_code = 4


class ElfError(FlameherdError):
    """An ELF file is malformed, over a cap, or cannot be opened safely."""


class ProcessGone(FlameherdError):
    """A process ended while it was being read."""


class ExportError(FlameherdError):
    """An endpoint refused data or cannot be reached."""
