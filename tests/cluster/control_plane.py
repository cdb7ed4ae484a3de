"""A control plane for tests: etcd and kube-apiserver, with nothing on disk but a scratch folder.

By itself it has no controllers, no scheduler and no node: objects stay as they are written, which
is what a test of an operator's own writes wants. `node.Node` adds those. Users are told apart by
bearer tokens: `admin` may do everything. The programs die with the test run, however it ends.
"""

import contextlib
import os
import secrets
import subprocess
import time
import urllib.error
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.api import Api, Refused
from tests.cluster.programs import Programs
from tests.collector.certificates import issue, make_ca
from tests.collector.collector import free_port

_READY_S = 180
SERVICE_ADDRESSES = "10.96.0.0/16"
_AUDIT_POLICY = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, users: ["system:apiserver", admin]}
- {level: None, userGroups: ["system:nodes"]}
- {level: Metadata}
"""


class ControlPlane:
    """etcd and kube-apiserver; `start` them, talk to them as `admin`."""

    def __init__(
        self,
        binary: Path,
        folder: Path,
        *,
        programs: Programs | None = None,
        address: str = "",
        users: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        """`programs` starts them elsewhere than here; `address` is then where nodes and pods reach the
        API server. `users` are more of them: name → (user, group).
        """
        self._binary = binary
        self._folder = folder
        self._address = address
        self._programs = programs or Programs(folder)
        self._ports = {name: free_port() for name in ("etcd", "peer", "api")}
        self._ca = make_ca(folder)
        names = "DNS:localhost,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:10.96.0.1"
        names += f",IP:{address}" if address else ""
        self._server = issue(folder, self._ca, "apiserver", names)
        self._client = issue(folder, self._ca, "kubelet-client")
        every = {"admin": ("admin", "system:masters"), **(users or {})}
        self._tokens = {name: secrets.token_hex(16) for name in every}
        (folder / "tokens.csv").write_text(
            "".join(
                f'{self._tokens[name]},{user},{user},"{group}"\n'
                for name, (user, group) in every.items()
            )
        )
        (folder / "audit.yaml").write_text(_AUDIT_POLICY)
        self.audit_log = folder / "audit.log"
        self.accounts_key = folder / "accounts.key"
        command = ["openssl", "genrsa", "-out", str(self.accounts_key), "2048"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    @property
    def port(self) -> int:
        return self._ports["api"]

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca(self) -> Path:
        """Signed the API server's certificate, and the one by which it asks kubelets."""
        return self._ca.cert

    @property
    def token(self) -> str:
        """`admin`'s."""
        return self._tokens["admin"]

    @property
    def admin(self) -> Api:
        return Api(self.url, self._ca.cert, self.token)

    @property
    def kubeconfig(self) -> Path:
        """A file by which kubectl and client libraries are `admin`."""
        return self.kubeconfig_for("admin")

    def kubeconfig_for(self, user: str, token: str = "") -> Path:
        """`token`: of an account; else `user` is one of those that this was made with."""
        path = self._folder / f"{user}.kubeconfig"
        path.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n"
            f"clusters: [{{name: test, cluster: {{server: '{self.url}', "
            f"certificate-authority: '{self._ca.cert}'}}}}]\n"
            f"users: [{{name: {user}, user: {{token: '{token or self._tokens[user]}'}}}}]\n"
            f"contexts: [{{name: test, context: {{cluster: test, user: {user}}}}}]\n"
        )
        return path

    def start(self) -> None:
        """Both programs, until the API server is ready."""
        self.start_etcd()
        self.start_apiserver()

    def start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{self._ports[name]}" for name in ("etcd", "peer"))
        self._start(
            "etcd",
            f"--data-dir={self._folder / 'etcd'}",
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            f"--initial-cluster=default={peer}",
            *("--unsafe-no-fsync", "--log-level=warn"),
        )

    def start_apiserver(self) -> None:
        if self._address:
            where = [
                "--bind-address=0.0.0.0",
                f"--advertise-address={self._address}",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
                f"--kubelet-client-certificate={self._client.cert}",
                f"--kubelet-client-key={self._client.key}",
                "--kubelet-preferred-address-types=InternalIP",
            ]
        else:
            # A loopback address cannot be an endpoint of the Service `kubernetes`.
            where = ["--bind-address=127.0.0.1", "--endpoint-reconciler-type=none"]
            where += ["--authorization-mode=RBAC"]
        self._start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}",
            *where,
            f"--secure-port={self.port}",
            f"--service-cluster-ip-range={SERVICE_ADDRESSES}",
            *(f"--tls-cert-file={self._server.cert}", f"--tls-private-key-file={self._server.key}"),
            f"--token-auth-file={self._folder / 'tokens.csv'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={self.accounts_key}",
            f"--service-account-key-file={self.accounts_key}",
            *(f"--audit-policy-file={self._folder / 'audit.yaml'}", "--audit-log-mode=blocking"),
            f"--audit-log-path={self.audit_log}",
            "--profiling=false",
        )
        self._wait_ready()

    def stop_apiserver(self) -> None:
        """The API server goes away; etcd keeps what there is."""
        self._programs.stop("kube-apiserver")

    def stop(self) -> None:
        self._programs.stop_all()

    def kubectl(self, *arguments: str, stdin: str = "", check: bool = True) -> str:
        """What kubectl prints; its own error fails the test unless `check` is off."""
        result = subprocess.run(
            [str(self._binary), "kubectl", *arguments],
            input=stdin,
            env={"KUBECONFIG": str(self.kubeconfig), "HOME": str(self._folder), "PATH": os.defpath},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if check and result.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {result.stderr}")
        return result.stdout + result.stderr

    def _start(self, name: str, *arguments: str) -> None:
        self._programs.start(name, self._binary, name, *arguments)

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            self._programs.check()
            with contextlib.suppress(urllib.error.URLError, Refused, ConnectionError, TimeoutError):
                if self.admin.get("/readyz")["text"] == "ok":
                    return
            time.sleep(0.1)
        raise RuntimeError(f"kube-apiserver is not ready after {_READY_S} s")
