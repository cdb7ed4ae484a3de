"""`python -m tests.cluster.dns ADDRESS KUBECONFIG`: answers `NAME.NAMESPACE.svc.cluster.local` on port 53.

As much of a cluster's DNS as pods need to find Services: A records over UDP, from the API server at
each question. Other types have no data, other names do not exist.
"""

import socket
import struct
import sys
from pathlib import Path

import yaml

from tests.cluster.api import Api, Refused

_A, _ANY_CLASS = 1, 1
_NO_ERROR, _SERVER_FAILURE, _NO_SUCH_NAME = 0, 2, 3
_TTL_S = 2
ZONE = ("svc", "cluster", "local")


def addresses(api: Api, labels: list[str]) -> list[str] | None:
    """Where the Service is; None if there is no such name."""
    if len(labels) != 5 or tuple(labels[2:]) != ZONE:
        return None
    name, namespace = labels[:2]
    service = api.find(f"/api/v1/namespaces/{namespace}/services/{name}")
    if service is None:
        return None
    address = service["spec"].get("clusterIP", "None")
    if address != "None":
        return [address]
    slices = api.items(
        f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
        labelSelector=f"kubernetes.io/service-name={name}",
    )
    return [a for s in slices for endpoint in s["endpoints"] or () for a in endpoint["addresses"]]


def answer(api: Api, question: bytes) -> bytes:
    """The reply to one message. Raises `IndexError` or `struct.error` on what is none."""
    ident, _, count = struct.unpack_from(">HHH", question)
    labels, at = [], 12
    while length := question[at]:
        labels.append(question[at + 1 : at + 1 + length].decode("ascii", "replace").lower())
        at += 1 + length
    kind, _ = struct.unpack_from(">HH", question, at + 1)
    end = at + 5
    code, found = _NO_ERROR, None
    try:
        found = addresses(api, labels)
        if found is None:
            code = _NO_SUCH_NAME
    except (OSError, Refused):
        code = _SERVER_FAILURE
    records = [socket.inet_aton(a) for a in found or ()] if kind == _A else []
    flags = 0x8580 | code  # an authoritative answer
    head = struct.pack(">HHHHHH", ident, flags, min(count, 1), len(records), 0, 0)
    body = b"".join(
        struct.pack(">HHHIH", 0xC00C, _A, _ANY_CLASS, _TTL_S, 4) + record for record in records
    )
    return head + question[12:end] + body


def main() -> None:
    config = yaml.safe_load(Path(sys.argv[2]).read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    api = Api(cluster["server"], Path(cluster["certificate-authority"]), user["token"])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((sys.argv[1], 53))
        while True:
            question, client = server.recvfrom(4096)
            try:
                reply = answer(api, question)
            except (IndexError, struct.error) as error:
                print(f"{client}: not a question: {error}", flush=True)
                continue
            server.sendto(reply, client)


if __name__ == "__main__":
    main()
