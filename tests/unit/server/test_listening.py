"""Where a server listens, and that its connections send what they have at once: an answer's head and body must not wait
for each other."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from windlass.core.errors import InvalidInput
from windlass.server import homefolder
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


def served_at(home: Path, port: int | None = None) -> int:
    with _listening(Settings(home=home, database_url="sqlite://", port=port)) as listening:
        found: int = listening.getsockname()[1]
        homefolder.write_note(home, f"http://127.0.0.1:{found}")
    return found


@pytest.mark.parametrize("end", ["orderly", "killed", "killed, of the version before"])
def test_the_next_server_is_where_clients_know_it(tmp_path: Path, end: str) -> None:
    port = served_at(tmp_path, 0)
    if end == "orderly":
        homefolder.remove_note(tmp_path)
    elif "before" in end:
        (tmp_path / "server.port").unlink()
    assert served_at(tmp_path) == port


def test_a_port_that_somebody_else_has_by_now_is_left(tmp_path: Path) -> None:
    port = served_at(tmp_path, 0)
    with socket.create_server(("127.0.0.1", port)):
        other = served_at(tmp_path)
        with pytest.raises(InvalidInput, match=f"port {port} on 127.0.0.1 cannot be used"):
            served_at(tmp_path, port)
    assert other != port
    assert served_at(tmp_path) == other


@pytest.mark.parametrize("note", ["", "none", "0", "-1", "99999999"])
def test_a_port_that_cannot_be_read_is_none(tmp_path: Path, note: str) -> None:
    (tmp_path / "server.port").write_text(note)
    assert homefolder.last_port(tmp_path) is None
