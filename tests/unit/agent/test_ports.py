"""Ports that are free."""

from __future__ import annotations

import socket
from pathlib import Path

from windlass.agent.ports import free_ports


def test_free_ports_differ_and_no_outgoing_connection_takes_them() -> None:
    found = free_ports(20)
    assert len(set(found)) == 20
    lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(port < lowest_outgoing for port in found)
    with socket.create_server(("127.0.0.1", found[0])):
        assert found[0] not in free_ports(5)
