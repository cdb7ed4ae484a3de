"""One fuzzing run of one target by atheris: `python -m tests.fuzz.child NAME [libFuzzer options]`.

The address space may grow by as much as the agent's worker lets a request have, so that what would
cost the worker a file is a finding here. Warnings (numpy's of overflow, say) are findings too.
"""

import operator
import resource
import sys
import warnings
from typing import Any

import atheris
import numpy as np

_OPERATORS = (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)
"""In the order of Python's rich comparisons, which atheris counts them by."""


def spare_arrays() -> None:
    """atheris 3.0 keeps the result of each comparison of arrays for ever (10 KB a run and more).

    It learns nothing from them either: they are compared without it.
    """
    traced = atheris._trace_cmp

    def compare(left: Any, right: Any, how: int, place: int, is_constant: bool) -> Any:
        if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
            return _OPERATORS[how](left, right)
        return traced(left, right, how, place, is_constant)

    atheris._trace_cmp = compare


def main() -> None:
    """Runs until libFuzzer ends the process."""
    with atheris.instrument_imports(include=["flameherd_agent", "flameherd_backend", "tests.fuzz"]):
        from flameherd_agent.worker.limits import MemoryLimit

        from tests.fuzz.registry import TARGETS
    warnings.simplefilter("error")
    target = TARGETS[sys.argv[1]]
    started = False

    def run(data: bytes) -> None:
        nonlocal started
        if not started:
            started = True
            spare_arrays()  # here, since atheris.Fuzz() puts the function in
        target.run(data)

    atheris.Setup([f"fuzz-{target.name}", *sys.argv[2:]], run)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    MemoryLimit()
    atheris.Fuzz()


if __name__ == "__main__":
    main()
