"""`kubectl flameherd`."""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from importlib.metadata import version
from types import ModuleType
from typing import Final

from flameherd_policy.errors import PolicyError

from flameherd_operator.errors import ApiFailure
from flameherd_operator.plugin.cluster import Cluster
from flameherd_operator.plugin.commands import Answer, doctor, dry_run, explain, status
from flameherd_operator.plugin.output import as_json
from flameherd_operator.plugin.reader import InCluster, Kubectl, Reader

COMMANDS: Final[dict[str, ModuleType]] = {
    "status": status,
    "explain": explain,
    "doctor": doctor,
    "dry-run": dry_run,
}
_PASSED_ON: Final = ("kubeconfig", "context", "cluster", "user", "as", "as-group", "server")
"""Options that are kubectl's own."""


def main() -> None:
    """The console script `kubectl-flameherd`, which kubectl finds by its name."""
    sys.exit(run())


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        "kubectl flameherd", description="What the cluster profiles, why, and at what cost."
    )
    made.add_argument("--version", action="version", version=version("flameherd-operator"))
    common = argparse.ArgumentParser(add_help=False)
    group = common.add_argument_group("for every command")
    group.add_argument("-n", "--namespace", metavar="NAME", help="default: the context's")
    group.add_argument("-o", "--output", choices=["table", "json"], default="table")
    group.add_argument("--kubectl", default="kubectl", metavar="PROGRAM", help="the kubectl to ask")
    group.add_argument("--in-cluster", action="store_true", help="in a pod, as its account")
    for option in _PASSED_ON:
        group.add_argument(f"--{option}", metavar="VALUE", help="as kubectl's own")
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        text = module.__doc__ or ""
        command = commands.add_parser(
            name,
            help=text.splitlines()[0],
            description=text,
            parents=[common],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add(command)
    return made


def run(arguments: Sequence[str] | None = None) -> int:
    """0; 1 if something is wrong in the cluster; 2 if the question could not be answered."""
    chosen = parser().parse_args(arguments)
    try:
        with contextlib.closing(_reader(chosen)) as reader:
            answer: Answer = COMMANDS[chosen.command].run(Cluster(reader), chosen)
    except (ApiFailure, PolicyError) as error:
        sys.stderr.write(f"kubectl flameherd {chosen.command}: {error}\n")
        return 2
    for note in answer.notes:
        sys.stderr.write(f"note: {note}\n")
    shown = as_json(answer.data) if chosen.output == "json" else answer.text
    sys.stdout.write(f"{shown}\n")
    return answer.exit_code


def _reader(chosen: argparse.Namespace) -> Reader:
    if chosen.in_cluster:
        return InCluster()
    given = ((option, getattr(chosen, option.replace("-", "_"))) for option in _PASSED_ON)
    return Kubectl([f"--{name}={value}" for name, value in given if value], chosen.kubectl)
