"""A control plane for tests: etcd and kube-apiserver on loopback ports, with nothing on disk but a
scratch folder.

No controllers, no scheduler and no node: objects stay as they are written, which is what a test of
an operator's own writes wants. Users are told apart by bearer tokens: `admin` may do everything.
The programs die with the test run, however it ends.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import time
import urllib.error
from pathlib import Path

from tests.cluster.api import Api, Refused
from tests.collector.certificates import issue, make_ca
from tests.collector.collector import free_port

_READY_S = 180
_AUDIT_POLICY = """
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: None, users: ["system:apiserver", admin]}
- {level: Metadata}
"""


class ControlPlane:
    """etcd and kube-apiserver; `start` them, talk to them as `admin`."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self._binary = binary
        self._folder = folder
        self._ports = {name: free_port() for name in ("etcd", "peer", "api")}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ca = make_ca(folder)
        self._server = issue(folder, self._ca, "apiserver", "DNS:localhost,IP:127.0.0.1")
        self.token = secrets.token_hex(16)
        tokens = folder / "tokens.csv"
        tokens.write_text(f'{self.token},admin,admin,"system:masters"\n')
        (folder / "audit.yaml").write_text(_AUDIT_POLICY)
        self.audit_log = folder / "audit.log"
        key = folder / "accounts.key"
        command = ["openssl", "genrsa", "-out", str(key), "2048"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._ports['api']}"

    @property
    def admin(self) -> Api:
        return Api(self.url, self._ca.cert, self.token)

    @property
    def kubeconfig(self) -> Path:
        """A file by which kubectl and client libraries are `admin`."""
        return self.kubeconfig_for("admin", self.token)

    def kubeconfig_for(self, user: str, token: str) -> Path:
        path = self._folder / f"{user}.kubeconfig"
        path.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n"
            f"clusters: [{{name: test, cluster: {{server: '{self.url}', "
            f"certificate-authority: '{self._ca.cert}'}}}}]\n"
            f"users: [{{name: {user}, user: {{token: '{token}'}}}}]\n"
            f"contexts: [{{name: test, context: {{cluster: test, user: {user}}}}}]\n"
        )
        return path

    def start(self) -> None:
        """Both programs, until the API server is ready."""
        self.start_etcd()
        self.start_apiserver()

    def start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{self._ports[name]}" for name in ("etcd", "peer"))
        self._spawn(
            "etcd",
            f"--data-dir={self._folder / 'etcd'}",
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            f"--initial-cluster=default={peer}",
            *("--unsafe-no-fsync", "--log-level=warn"),
        )

    def start_apiserver(self) -> None:
        key = self._folder / "accounts.key"
        self._spawn(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._ports['etcd']}",
            *("--bind-address=127.0.0.1", f"--secure-port={self._ports['api']}"),
            # A loopback address cannot be an endpoint of the Service `kubernetes`.
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.96.0.0/16",
            *(f"--tls-cert-file={self._server.cert}", f"--tls-private-key-file={self._server.key}"),
            f"--token-auth-file={self._folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={key}",
            f"--service-account-key-file={key}",
            *(f"--audit-policy-file={self._folder / 'audit.yaml'}", "--audit-log-mode=blocking"),
            f"--audit-log-path={self.audit_log}",
            "--profiling=false",
        )
        self._wait_ready()

    def stop_apiserver(self) -> None:
        """The API server goes away; etcd keeps what there is."""
        self._stop("kube-apiserver")

    def stop(self) -> None:
        for name in ("kube-apiserver", "etcd"):
            self._stop(name)

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

    def _spawn(self, name: str, *arguments: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", str(self._binary), name, *arguments],
                stdout=log,
                stderr=log,
            )

    def _stop(self, name: str) -> None:
        process = self._running.pop(name, None)
        if process is None:
            return
        process.send_signal(signal.SIGKILL)  # nothing to tidy up: all of it is scratch
        process.wait(timeout=60)

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + _READY_S
        while time.monotonic() < deadline:
            for name, process in self._running.items():
                if process.poll() is not None:
                    log = (self._folder / f"{name}.log").read_text(errors="replace")
                    raise RuntimeError(f"{name} ended with {process.returncode}:\n{log[-3000:]}")
            with contextlib.suppress(urllib.error.URLError, Refused, ConnectionError, TimeoutError):
                if self.admin.get("/readyz")["text"] == "ok":
                    return
            time.sleep(0.1)
        raise RuntimeError(f"kube-apiserver is not ready after {_READY_S} s")
