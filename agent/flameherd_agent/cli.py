"""The `flameherd` command. Commands are modules with `register(subparsers)`; the list is below."""

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Final

from flameherd_agent import __version__
from flameherd_agent.errors import FlameherdError

COMMANDS: Final = {
    "agent": "flameherd_agent.commands.agent",
    "record": "flameherd_agent.commands.record",
    "top": "flameherd_agent.commands.top",
    "up": "flameherd_agent.commands.up",
    "doctor": "flameherd_agent.commands.doctor",
    "unwind-table": "flameherd_agent.commands.unwind_table",
}


def parser(command: str | None = None) -> argparse.ArgumentParser:
    """The command line: of one command, whose module alone is imported then, or of all."""
    top = argparse.ArgumentParser(
        prog="flameherd",
        description="Profiles whole machines and clusters with nothing installed in the workloads.",
    )
    top.add_argument("--version", action="version", version=f"flameherd {__version__}")
    subparsers = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, module in COMMANDS.items():
        if command not in COMMANDS or command == name:
            importlib.import_module(module).register(subparsers)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Errors that are raised on purpose become one message and an exit code."""
    # numpy's linear algebra, which nothing here uses, would start a thread for each CPU.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser(given[0] if given else None).parse_args(given)
    logging.basicConfig(level=logging.WARNING, format="flameherd: %(message)s")
    try:
        code: int = options.run(options)
    except FlameherdError as error:
        sys.stderr.write(f"flameherd: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    return code
