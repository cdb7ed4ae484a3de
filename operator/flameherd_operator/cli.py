"""`flameherd-operator`."""

import argparse
import asyncio
import logging
import os
import platform
import secrets
import sys
import time
from pathlib import Path
from typing import Final

from flameherd_policy.durations import Duration
from flameherd_policy.errors import PolicyError, Problem
from flameherd_policy.resources import RESOURCES

from flameherd_operator.client import Client, connect
from flameherd_operator.defaults import read as read_defaults
from flameherd_operator.errors import ApiFailure, OperatorError
from flameherd_operator.handlers import Watches
from flameherd_operator.lease import Lease
from flameherd_operator.receive.server import Receiver
from flameherd_operator.receive.serving import Certificate, keep_endpoint
from flameherd_operator.receive.tokens import Tokens
from flameherd_operator.reconcile import Reconciler, Reporting
from flameherd_operator.reports import Reports
from flameherd_operator.settings import Settings

logger = logging.getLogger(__name__)

DESCRIPTION: Final = """\
Turns ProfilingPolicies, ClusterProfilingPolicies and AgentPools into agents on nodes and their
configuration. Runs in the cluster as its ServiceAccount, or elsewhere by --kubeconfig."""
_WAIT_S: Final = 2.0


def main() -> None:
    """The console script."""
    sys.exit(run(parser().parse_args()))


def parser() -> argparse.ArgumentParser:
    defaults = Settings()
    made = argparse.ArgumentParser("flameherd-operator", description=DESCRIPTION)
    made.add_argument("--kubeconfig", type=Path, metavar="FILE", help="default: the pod's account")
    made.add_argument("--namespace", default=defaults.namespace, help="the operator's own")
    made.add_argument("--agents-namespace", default=defaults.agents_namespace)
    made.add_argument(
        "--service-account", default=defaults.service_account, help="the agents'; owns what we make"
    )
    made.add_argument("--image", default=defaults.image, help="of agents whose pool names none")
    made.add_argument("--pull-secret", action="append", default=[], help="of agents; repeatable")
    made.add_argument(
        "--cluster-name", default="", metavar="NAME", help="k8s.cluster.name of every profile"
    )
    for option, seconds, what in (
        (
            "--idle-after",
            defaults.idle_s,
            "no policy for so long: pools with whenIdle: Remove empty",
        ),
        (
            "--lease-duration",
            defaults.lease_s,
            "an operator that is silent for so long is replaced",
        ),
        ("--resync-every", defaults.resync_s, "list everything that is watched afresh"),
        ("--secrets-every", defaults.secrets_s, "read Secrets of exports again"),
    ):
        default = Duration(round(seconds * 1e9))
        made.add_argument(
            option, type=Duration.parse, default=default, metavar="DURATION",
            help=f"{what} (default: {default})",
        )  # fmt: skip
    made.add_argument("--selinux-type", default=defaults.se_linux_type, help="of agents")
    made.add_argument(
        "--apparmor-profile",
        default=defaults.app_armor_profile,
        help="of agents: Unconfined, RuntimeDefault or Localhost/NAME",
    )
    made.add_argument(
        "--defaults", type=Path, metavar="FILE",
        help="the AgentPool and ClusterProfilingPolicy `default`, to be kept so "
        "(without: an AgentPool where there is none)",
    )  # fmt: skip
    made.add_argument(
        "--status-listen", default="", metavar="ADDRESS:PORT",
        help="take reports of agents there, such as 0.0.0.0:8443 (default: agents do not report)",
    )  # fmt: skip
    made.add_argument(
        "--status-address", default=os.environ.get("FLAMEHERD_POD_IP", ""), metavar="IP",
        help="where the Service flameherd-status shall lead (default: $FLAMEHERD_POD_IP)",
    )  # fmt: skip
    made.add_argument("--liveness", metavar="URL", help="such as http://0.0.0.0:8080/healthz")
    made.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    return made


def run(arguments: argparse.Namespace) -> int:
    """Until a signal; 0 then, 1 if something went wrong that a restart may mend."""
    logging.basicConfig(
        level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("kopf").setLevel(logging.WARNING)
    if arguments.kubeconfig is not None:
        os.environ["KUBECONFIG"] = str(arguments.kubeconfig)  # kopf reads no other
    try:
        settings = settings_of(arguments)
        asyncio.run(operate(settings, arguments.kubeconfig, arguments.liveness))
    except (OperatorError, PolicyError) as error:
        logger.error("%s", error)
        return 1
    return 0


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The command line's. Raises `PolicyError`."""
    host, _, port = arguments.status_listen.rpartition(":")
    if arguments.status_listen and not (host and port.isdigit()):
        said = f"{arguments.status_listen!r} is not ADDRESS:PORT, as 0.0.0.0:8443"
        raise PolicyError([Problem("--status-listen", said)])
    return Settings(
        status_host=host.strip("[]"),
        status_port=int(port or Settings().status_port),
        status_address=arguments.status_address,
        namespace=arguments.namespace,
        agents_namespace=arguments.agents_namespace,
        service_account=arguments.service_account,
        image=arguments.image,
        pull_secrets=tuple(arguments.pull_secret),
        cluster_name=arguments.cluster_name,
        se_linux_type=arguments.selinux_type,
        app_armor_profile=arguments.apparmor_profile,
        defaults=None if arguments.defaults is None else read_defaults(arguments.defaults),
        idle_s=arguments.idle_after.seconds,
        lease_s=arguments.lease_duration.seconds,
        resync_s=arguments.resync_every.seconds,
        secrets_s=arguments.secrets_every.seconds,
    )


async def operate(settings: Settings, kubeconfig: Path | None, liveness: str | None) -> None:
    """Watch and reconcile until a signal comes. Raises `OperatorError`."""
    client = connect(kubeconfig)
    await _wait_for_kinds(client)
    identity = f"{platform.node()}_{secrets.token_hex(4)}"
    lease = Lease(client, settings.namespace, identity, settings.lease_s)
    await lease.acquire()
    watches: Watches
    certificate = await _certificate(client, settings)
    reporting = (
        Reporting(Reports(time.time()), certificate.renew) if certificate is not None else None
    )
    reconciler = Reconciler(client, settings, lambda: watches.watched(), reporting)
    watches = Watches(settings, reconciler.poke)
    tasks = [
        asyncio.create_task(watches.run(kubeconfig, liveness)),
        asyncio.create_task(reconciler.run()),
        asyncio.create_task(lease.keep()),
    ]
    if certificate is not None and reporting is not None:
        account = f"system:serviceaccount:{settings.agents_namespace}:{settings.service_account}"
        tokens = Tokens(client.token_review, account)
        receiver = Receiver(reporting.reports, tokens.node_of, reconciler.poke)
        serving = receiver.serve(settings.status_host, settings.status_port, certificate.context)
        tasks.append(asyncio.create_task(serving))
        tasks.append(asyncio.create_task(keep_endpoint(client, settings)))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(lease.release)


async def _certificate(client: Client, settings: Settings) -> Certificate | None:
    """Of the server that agents report to, ready to be served; None where they do not report."""
    if not settings.status_host:
        return None
    made = Certificate(client, settings)
    await asyncio.to_thread(made.renew)
    return made


async def _wait_for_kinds(client: Client) -> None:
    """Watches of kinds that are not served would look like kinds without objects."""
    told = False
    while True:
        try:
            served = await asyncio.to_thread(client.served)
            missing = [r.plural for r in RESOURCES if r.plural not in served]
            said = f"not served yet: {', '.join(missing)}; `kubectl apply -f crds/` makes them"
        except ApiFailure as error:
            missing, said = ["?"], str(error)
        if not missing:
            return
        if not told:
            logger.warning("waiting: %s", said)
            told = True
        await asyncio.sleep(_WAIT_S)
