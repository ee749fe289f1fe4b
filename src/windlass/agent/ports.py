"""Ports that are free: for ranks to meet at, for servers of clusters and tests."""

from __future__ import annotations

import os
import socket

_LOWEST_PORT = 20_000


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on now, nor on the one before it (see `gang.line_port`), below those that the kernel gives
    to outgoing connections, which would take it before the ranks come to use it."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        highest = int(file.read().split()[0])
    span = max(highest - _LOWEST_PORT, 1000)
    for _ in range(100):
        port = _LOWEST_PORT + int.from_bytes(os.urandom(4), "big") % span
        if _is_free(host, port) and _is_free(host, port - 1):
            return port
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def free_ports(count: int) -> list[int]:
    """So many, all different, of this machine."""
    found: dict[int, None] = {}
    while len(found) < count:
        found[free_port()] = None
    return list(found)


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
            return True
        except OSError:
            return False
