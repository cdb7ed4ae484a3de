"""`python -m tests.cluster.relay FD HOST PORT`: passes connections on to HOST:PORT.

A socket belongs to the network namespace in which it was made. So when this is started inside a
node's, with a listening socket FD from outside, it leads from outside to inside.
"""

import asyncio
import contextlib
import socket
import sys

_CHUNK = 1 << 16


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):  # one side hung up: so does the other
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def _serve(fd: int, host: str, port: int) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()  # nobody listens: the client sees a connection that ends
            return
        try:
            await asyncio.gather(_copy(reader, back), _copy(there, writer))
        finally:
            back.close()
            writer.close()

    server = await asyncio.start_server(handle, sock=socket.socket(fileno=fd))
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
