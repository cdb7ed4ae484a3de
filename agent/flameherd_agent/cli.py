"""The `flameherd` command. Commands are modules with `register(subparsers)`; the list is below."""

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence
from typing import Final

from flameherd_agent import __version__
from flameherd_agent.errors import FlameherdError

COMMANDS: Final = (
    "flameherd_agent.commands.agent",
    "flameherd_agent.commands.record",
    "flameherd_agent.commands.top",
    "flameherd_agent.commands.up",
    "flameherd_agent.commands.doctor",
    "flameherd_agent.commands.unwind_table",
)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="flameherd",
        description="Profiles whole machines and clusters with nothing installed in the workloads.",
    )
    top.add_argument("--version", action="version", version=f"flameherd {__version__}")
    subparsers = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in COMMANDS:
        importlib.import_module(name).register(subparsers)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Errors that are raised on purpose become one message and an exit code."""
    options = parser().parse_args(arguments)
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
