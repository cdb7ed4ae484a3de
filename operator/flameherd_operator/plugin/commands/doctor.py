"""Whether Flameherd works in this cluster, and how to mend what does not.

  kubectl flameherd doctor
  kubectl flameherd doctor --wait 5m     after an installation: until nothing is broken

Looks at the kinds, the operator and its Lease, its rights and the agents', their configuration, the
agents, the nodes that cannot run one, and the policies. Exit status 1 if something is broken.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Final

from flameherd_policy.durations import Duration

from flameherd_operator.errors import ApiFailure
from flameherd_operator.plugin.cluster import Cluster
from flameherd_operator.plugin.commands import Answer
from flameherd_operator.plugin.examine import Finding, Level, Places, installation, nodes, working
from flameherd_operator.plugin.output import count, table
from flameherd_operator.settings import Settings

Check = Callable[[Cluster, Places], Iterator[Finding]]

CHECKS: Final[tuple[tuple[str, Check], ...]] = (
    ("API server", installation.server),
    ("kinds", installation.kinds),
    ("namespaces", installation.namespaces),
    ("operator", installation.operator),
    ("rights", installation.rights),
    ("configuration", working.shards),
    ("agents", working.agents),
    ("reports", working.reports),
    ("backend", working.backend),
    ("nodes", nodes.nodes),
    ("policies", working.policies),
)
_AGAIN_S: Final = 2.0
_BINDINGS: Final = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


def add(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    found = "default: as the chart has bound it"
    parser.add_argument("--operator-namespace", default="", metavar="NAME", help=found)
    parser.add_argument("--agents-namespace", default="", metavar="NAME", help=found)
    parser.add_argument(
        "--wait",
        type=Duration.parse,
        default=Duration.parse("0s"),
        metavar="DURATION",
        help="look again for so long while something is broken, such as 5m",
    )


def run(cluster: Cluster, arguments: argparse.Namespace) -> Answer:
    """Raises `ApiFailure` if the API server does not answer at all."""
    until = time.monotonic() + arguments.wait.seconds
    while True:
        cluster.notes.clear()
        answer = _look(cluster, arguments)
        if not answer.exit_code or time.monotonic() >= until:
            return answer
        time.sleep(_AGAIN_S)


def _look(cluster: Cluster, arguments: argparse.Namespace) -> Answer:
    cluster.reader.get("/version")
    defaults = Settings()
    places = Places(
        operator=arguments.operator_namespace
        or _bound(cluster, "flameherd-operator", defaults.namespace),
        agents=arguments.agents_namespace
        or _bound(cluster, "flameherd-agent", defaults.agents_namespace),
    )
    found = [
        (title, finding) for title, check in CHECKS for finding in _run(check, cluster, places)
    ]
    data = [
        {"check": title, "level": f.level.value, "message": f.message, "mend": f.mend}
        for title, f in found
    ]
    rows = [(f.level.value, title, f.message) for title, f in found]
    mends = [f"{title}: {f.mend}" for title, f in found if f.mend]
    bad = [f for _, f in found if f.level is Level.FAIL]
    text = table(("", "CHECK", ""), rows)
    if mends:
        text += "\n\nTo do:\n" + "\n".join(f"- {line}" for line in dict.fromkeys(mends))
    last = f"{count(len(bad), 'thing')} broken." if bad else "Nothing is broken."
    return Answer(data, f"{text}\n\n{last}", tuple(cluster.notes), 1 if bad else 0)


def _run(check: Check, cluster: Cluster, places: Places) -> Iterator[Finding]:
    try:
        yield from check(cluster, places)
    except ApiFailure as error:
        if error.code == 404:
            yield Finding(Level.FAIL, str(error))
        elif error.code == 403:
            yield Finding(Level.UNKNOWN, f"you may not look: {error}")
        else:
            raise


def _bound(cluster: Cluster, name: str, default: str) -> str:
    """The namespace of the account that the chart's binding gives the role to."""
    try:
        found = cluster.reader.get(f"{_BINDINGS}/{name}")
    except ApiFailure as error:
        if error.code not in (403, 404):
            raise
        return default
    spaces = [subject.get("namespace") for subject in found.get("subjects") or ()]
    return str(next((space for space in spaces if space), default))
