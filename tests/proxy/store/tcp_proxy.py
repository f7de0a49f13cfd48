"""A TCP proxy between the store and Redis that records requests and can lose answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TcpProxy:
    """`sent` is all that clients sent. With `lose_answers` a connection is cut instead of given an answer."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self.sent = bytearray()
        self.lose_answers = False
        self._target_port = target_port

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = await asyncio.open_connection("127.0.0.1", self._target_port)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._questions(reader, target[1]))
                group.create_task(self._answers(target[0], writer))
        except* ConnectionError:
            pass
        finally:
            target[1].close()
            writer.close()

    async def _questions(self, client: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        while data := await client.read(65536):
            self.sent += data
            server.write(data)
        raise ConnectionResetError

    async def _answers(self, server: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        while data := await server.read(65536):
            if self.lose_answers:
                break
            client.write(data)
        raise ConnectionResetError


@asynccontextmanager
async def tcp_proxy(target_port: int) -> AsyncIterator[TcpProxy]:
    proxy = TcpProxy(target_port)
    server = await asyncio.start_server(proxy.handle, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await server.wait_closed()
