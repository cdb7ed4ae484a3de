"""The status Service's only endpoint: this process, which holds the Lease.

The Service has no selector. Readiness would not do: a replica that waits is well, and a Deployment
with one that is never ready never becomes available. Labels on pods would outlive their process.
"""

import ipaddress
from typing import Any, Final

from flameherd_operator.settings import MANAGED_BY, MANAGER, STATUS_SERVICE

PORT_NAME: Final = "status"


def endpoint_slice(namespace: str, address: str, port: int, service_uid: str) -> dict[str, Any]:
    """The whole EndpointSlice; owned by the Service, so that it goes with it. Pure."""
    version = ipaddress.ip_address(address).version
    owner = {"apiVersion": "v1", "kind": "Service", "name": STATUS_SERVICE, "uid": service_uid}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": STATUS_SERVICE,
            "namespace": namespace,
            "labels": {
                "kubernetes.io/service-name": STATUS_SERVICE,
                "endpointslice.kubernetes.io/managed-by": MANAGER,
                MANAGED_BY: MANAGER,
            },
            "ownerReferences": [owner],
        },
        "addressType": f"IPv{version}",
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        "ports": [{"name": PORT_NAME, "port": port, "protocol": "TCP"}],
    }
