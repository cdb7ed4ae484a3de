"""Certificate and endpoint of the status server, kept up: the side of the receiver that talks to the
API server.
"""

import asyncio
import logging
import ssl
from datetime import UTC, datetime
from typing import Final

from flameherd_operator.client import Client
from flameherd_operator.errors import ApiFailure
from flameherd_operator.observed import Serving
from flameherd_operator.receive.endpoint import endpoint_slice
from flameherd_operator.receive.keys import Pems, bundle, kept, load
from flameherd_operator.settings import STATUS_SECRET, STATUS_SERVICE, Settings

logger = logging.getLogger(__name__)

_ENDPOINT_S: Final = 30.0


class Certificate:
    """`context` serves with what `renew` keeps. `renew` before serving; it may block."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self._pems: Pems | None = None
        self._serving: Serving | None = None
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2

    def renew(self) -> Serving:
        """What should be kept and handed out now. The first time it is read from the cluster."""
        if self._pems is None:
            place = self._settings.agents_namespace
            self._pems = self._client.secret_data(place, STATUS_SECRET)
        pems = kept(self._pems, self._settings.status_names, datetime.now(UTC))
        if self._serving is None or pems != self._pems:
            load(self.context, pems)
            self._pems = pems
            self._serving = Serving(pems, bundle(pems))
        return self._serving


async def keep_endpoint(client: Client, settings: Settings) -> None:
    """The Service leads here, until cancelled. Without an address (outside of a cluster) it is left
    alone.
    """
    told = ""
    place = f"/namespaces/{settings.namespace}"
    while settings.status_address:
        try:
            uid = await asyncio.to_thread(client.uid, f"/api/v1{place}/services/{STATUS_SERVICE}")
            made = endpoint_slice(
                settings.namespace, settings.status_address, settings.status_port, uid
            )
            path = f"/apis/discovery.k8s.io/v1{place}/endpointslices/{STATUS_SERVICE}"
            await asyncio.to_thread(client.apply_at, path, made)
            told = ""
        except ApiFailure as error:
            if str(error) != told:
                logger.warning("agents cannot report: the Service leads nowhere: %s", error)
                told = str(error)
        await asyncio.sleep(_ENDPOINT_S)
    await asyncio.Event().wait()
