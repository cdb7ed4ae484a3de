"""ClickHouse's HTTP interface, as far as the backend speaks it, in front of a real engine (chDB).

A ClickHouse server is not to be had as a package here. The engine, its SQL, its formats and its errors
are the real ones; what stands in is the transport: query in the URL or the body, `param_…`, settings,
`X-ClickHouse-Exception-Code` left out, errors as 500 with the engine's text, Basic authorization.

    python -m tests.backend.clickhouse_http FOLDER USER PASSWORD
"""

import base64
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from flameherd_backend.store.database import settings_clause

_OWN = {"query", "database", "default_format", "wait_end_of_query"}


def serve(folder: Path, user: str, password: str) -> None:
    """Prints its port, then serves until it is killed."""
    from chdb import _chdb

    connect = vars(_chdb)["connect"]
    writer, reader = connect(str(folder)), connect(str(folder))
    lock = threading.Lock()
    expected = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Authorization") != expected:
                self._answer(403, b"Code: 516. DB::Exception: Authentication failed")
                return
            given = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
            parameters = {
                k.removeprefix("param_"): v for k, v in given.items() if k.startswith("param_")
            }
            settings = {
                k: v for k, v in given.items() if k not in _OWN and not k.startswith("param_")
            }
            try:
                with lock:
                    self._answer(200, self._run(given, parameters, settings, body))
            except RuntimeError as error:
                self._answer(500, str(error).encode())

        def _run(
            self,
            given: dict[str, str],
            parameters: dict[str, str],
            settings: dict[str, str],
            body: bytes,
        ) -> bytes:
            database = given["database"]
            if "query" in given:
                writer.query(f"USE {database}")
                head, _, form = given["query"].partition(" FORMAT ")
                stream = writer.send_insert(head, form)
                writer.insert_append(stream, body)
                writer.insert_done(stream)
                return b""
            connection = reader if "default_format" in given else writer
            connection.query(f"USE {database}")
            text = body.decode() + (settings_clause(settings) if settings else "")
            result: bytes = connection.query(
                text, given.get("default_format", "CSV"), params=parameters
            ).bytes()
            return result

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
