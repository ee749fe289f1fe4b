"""Connections to the server send what they have at once: an answer's head and body must not wait for each other."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from windlass.server.main import _listening
from windlass.server.settings import Settings


def test_connections_do_not_hold_back_what_is_small(tmp_path: Path) -> None:
    async def nodelay(listening: socket.socket) -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            found.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        async with await asyncio.start_server(answer, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname()[:2])
            writer.close()
            return await found

    with _listening(Settings(home=tmp_path, database_url="sqlite://", port=0)) as listening:
        assert asyncio.run(nodelay(listening)) != 0
