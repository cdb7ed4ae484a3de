"""A ClickHouse server or cluster over its HTTP interface, with the same SQL as the embedded engine.

One URL says it all: `https://user:password@clickhouse.obs.svc:8443/flameherd`. A connection is kept
for each thread. The user needs CREATE, INSERT, SELECT and ALTER on that database.
"""

import http.client
import ssl
import threading
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import unquote, urlencode, urlsplit

from flameherd_backend.errors import StoreError, UsageError
from flameherd_backend.store import results
from flameherd_backend.store.database import (
    DATABASE,
    DEFAULT_LIMITS,
    QueryLimits,
    Value,
    failure,
    parameter,
)

_MAX_ERROR_BYTES: Final = 4096
_TIMEOUT_S: Final = 60.0


class ServerDatabase:
    """`url`: `http[s]://[user[:password]@]host[:port][/database]`. Raises `UsageError` for another form."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or parts.query
            or parts.fragment
        ):
            raise UsageError(
                "--store: a ClickHouse server is http[s]://[user[:password]@]host[:port][/database]"
            )
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = parts.port or (8443 if self._secure else 8123)
        self._database = parts.path.strip("/") or DATABASE
        if not self._database.isidentifier():
            raise UsageError(f"--store: {self._database!r} is not a database's name")
        user, password = unquote(parts.username or "default"), unquote(parts.password or "")
        self._authorization = "Basic " + b64encode(f"{user}:{password}".encode()).decode()
        self._of_thread = threading.local()
        try:
            self._post(
                "CREATE DATABASE IF NOT EXISTS " + self._database, {"database": "default"}, b""
            )
        except StoreError:
            self.close()
            raise

    def execute(self, sql: str, parameters: Mapping[str, Value] | None = None) -> None:
        self._post(sql, self._texts(parameters), b"")

    def query(
        self,
        sql: str,
        parameters: Mapping[str, Value] | None = None,
        limits: QueryLimits = DEFAULT_LIMITS,
    ) -> results.Table:
        options = {**self._texts(parameters), **limits.settings(), "default_format": "Native"}
        return results.read(self._post(sql, options, b""))

    def insert(self, table: str, blocks: Sequence[bytes]) -> None:
        self._post(f"INSERT INTO {table} FORMAT Native", {}, b"".join(blocks))

    def close(self) -> None:
        """Connections of other threads end with their threads."""
        connection = getattr(self._of_thread, "connection", None)
        if connection is not None:
            connection.close()

    def _texts(self, parameters: Mapping[str, Value] | None) -> dict[str, str]:
        return {f"param_{name}": parameter(value) for name, value in (parameters or {}).items()}

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._of_thread, "connection", None)
        if connection is None:
            connection = (
                http.client.HTTPSConnection(
                    self._host, self._port, timeout=_TIMEOUT_S, context=ssl.create_default_context()
                )
                if self._secure
                else http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
            )
            self._of_thread.connection = connection
        return connection

    def _post(self, sql: str, options: Mapping[str, str], body: bytes) -> bytes:
        chosen = {"database": self._database, "wait_end_of_query": "1", **options}
        if body:
            chosen["query"] = sql
        path = "/?" + urlencode(chosen)
        connection = self._connection()
        try:
            connection.request(
                "POST", path, body or sql.encode(), {"Authorization": self._authorization}
            )
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self._of_thread.connection = None
            raise StoreError(
                f"ClickHouse at {self._host}:{self._port}: {error or type(error).__name__}"
            ) from error
        if response.status != 200:
            text = answer[:_MAX_ERROR_BYTES].decode("utf-8", "replace")
            raise failure(text, f"ClickHouse at {self._host}:{self._port}")
        return answer
