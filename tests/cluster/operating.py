"""A running operator, as its own account with the rights that the chart grants."""

import base64
import json
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import yaml
from flameherd_operator.settings import MANAGER, SHARD_COUNT, SHARD_KEY, shard_name

from tests.cluster.api import Api, Json, Refused, eventually
from tests.cluster.control_plane import ControlPlane

ROLES = Path(__file__).parents[2] / "charts/flameherd/files/roles.yaml"
SYSTEM, AGENTS = "flameherd-system", "flameherd-agents"
ACCOUNT = f"system:serviceaccount:{SYSTEM}:{MANAGER}"
AGENT_ACCOUNT = f"system:serviceaccount:{AGENTS}:flameherd-agent"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"


def grant(api: Api) -> None:
    """Namespaces, accounts and rights, as the chart makes them."""
    rules = yaml.safe_load(ROLES.read_text())
    for namespace in (SYSTEM, AGENTS):
        api.namespace(namespace)
    for namespace, name in ((SYSTEM, MANAGER), (AGENTS, "flameherd-agent")):
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
        api.apply(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}", account)
    for name, key in (
        *((name, name) for name in ("operator", "view", "edit")),
        ("secret-reader", "secretReader"),
    ):
        _rbac(api, "ClusterRole", f"flameherd-{name}", rules=rules[key])
    _rbac(api, "Role", "flameherd-operator", AGENTS, rules=rules["operatorInAgentsNamespace"])
    _rbac(api, "Role", "flameherd-operator", SYSTEM, rules=rules["operatorInOwnNamespace"])
    bind(api, "Role", "flameherd-operator", SYSTEM)
    bind(api, "ClusterRole", "flameherd-operator")
    bind(api, "Role", "flameherd-operator", AGENTS)
    bind(api, "ClusterRole", "flameherd-secret-reader", SYSTEM)
    _rbac(api, "ClusterRole", "flameherd-agent", rules=rules["agent"])
    _rbac(api, "Role", "flameherd-agent", AGENTS, rules=rules["agentInAgentsNamespace"])
    bind(api, "ClusterRole", "flameherd-agent", user=AGENT_ACCOUNT)
    bind(api, "Role", "flameherd-agent", AGENTS, user=AGENT_ACCOUNT)


def bind(api: Api, kind: str, role: str, namespace: str = "", user: str = ACCOUNT) -> None:
    """Give the role to a user, in one namespace or everywhere."""
    name = f"{role}-{user.rpartition(':')[2]}"
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    bound = "RoleBinding" if namespace else "ClusterRoleBinding"
    _rbac(api, bound, name, namespace, roleRef=reference, subjects=[subject])


def _rbac(api: Api, kind: str, name: str, namespace: str = "", **body: Any) -> None:
    middle = f"/namespaces/{namespace}" if namespace else ""
    made = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}}
    api.apply(f"{_RBAC}{middle}/{kind.lower()}s/{name}", made | body)


class Operator:
    """`flameherd-operator` as a process. `start` it; read what it has made."""

    def __init__(self, control_plane: ControlPlane, folder: Path, *options: str) -> None:
        self._plane = control_plane
        self._options = options
        self.api = control_plane.admin
        self.log = folder / "operator.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        request = {"spec": {"expirationSeconds": 36000}}
        path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{MANAGER}/token"
        token = self.api.create(path, request)["status"]["token"]
        program = Path(sys.executable).with_name("flameherd-operator")
        command = ["setpriv", "--pdeathsig", "KILL", str(program)]
        command += ["--kubeconfig", str(self._plane.kubeconfig_for("operator", token))]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--image", "registry.example/agent:1", *self._options],
                stdout=log,
                stderr=log,
            )

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Its exit status."""
        if self._process is None:
            return 0
        self._process.send_signal(how)
        status = self._process.wait(timeout=60)
        self._process = None
        return status

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def owned(self, kind: str) -> dict[str, Json]:
        """Objects of the agents' namespace, by name."""
        group = "/apis/apps/v1" if kind == "daemonsets" else "/api/v1"
        items = self.api.items(f"{group}/namespaces/{AGENTS}/{kind}")
        return {item["metadata"]["name"]: item for item in items}

    def configs(self) -> list[Json]:
        """The AgentConfig of every shard."""
        found = self.owned("configmaps")
        names = [shard_name(number) for number in range(SHARD_COUNT)]
        if any("binaryData" not in found.get(name, {}) for name in names):
            return []  # made, or mended, in this moment
        return [unpack(found[name]) for name in names]

    def slots(self) -> dict[str, Json]:
        """Every slot that agents are told of, by name."""
        return {slot["name"]: slot for c in self.configs() for slot in c.get("policies", [])}

    def conditions(self, path: str) -> dict[str, tuple[str, str]]:
        """type → (status, reason) of an object; nothing if it is of an older generation."""
        try:
            found = self.api.get(path)
        except Refused as error:
            if error.code == 404:
                return {}
            raise
        status = found.get("status", {})
        if status.get("observedGeneration") != found["metadata"]["generation"]:
            return {}
        return {c["type"]: (c["status"], c["reason"]) for c in status.get("conditions", [])}

    def waits_for(self, path: str, kind: str, status: str, reason: str) -> str:
        """The condition's message, once it is so."""
        eventually(
            lambda: self.conditions(path).get(kind) == (status, reason),
            f"{path}: {kind} is {status}, {reason}; is {self.conditions(path)}",
        )
        conditions = self.api.get(path)["status"]["conditions"]
        return str(next(c["message"] for c in conditions if c["type"] == kind))


def unpack(config_map: Json) -> Json:
    """The AgentConfig of a shard."""
    data = base64.b64decode(config_map["binaryData"][SHARD_KEY])
    made: Json = json.loads(zlib.decompress(data))
    return made
