"""The process that talks to Ray for an engine: `python -m windlass.engines.ray.driver`.

Lines of JSON over one socket. In: `{"op": "launch" | "remove" | "follow", "id": N, ...}`, each done once and answered
by `{"done": N, "error": null | {"kind", "message"}}`. Out, besides: `{"tables": {...}}` again and again, and always
before the answer to what has changed them. It keeps nothing: killed at any moment, the next one goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.engines.ray.head import answers, local_head
from windlass.engines.ray.requests import GroupRequest

if TYPE_CHECKING:
    from windlass.engines.ray.cluster import Cluster

_LOOK_EVERY_S = 0.5
_LOOK_IDLY_EVERY_S = 2.0
_KNOCK_EVERY_S = 0.5
_CONNECT_WITHIN_S = 60


class Driver:
    def __init__(self, connection: socket.socket, cluster: Cluster) -> None:
        self._connection = connection
        self._cluster = cluster
        self._followed: list[str] = []
        self._rest = b""

    def serve(self) -> None:
        """Until the engine hangs up."""
        while True:
            began = time.monotonic()
            answers: list[dict[str, Any]] = []
            while lines := self._receive(timeout_s=0.0):
                answers += [self._perform(json.loads(line)) for line in lines]
            self._send({"tables": self._cluster.look(self._followed).to_json()})
            for answer in answers:
                self._send(answer)
            pause_s = _LOOK_EVERY_S if self._followed else _LOOK_IDLY_EVERY_S
            self._await_request(max(0.0, began + pause_s - time.monotonic()))

    def _perform(self, message: Mapping[str, Any]) -> dict[str, Any]:
        error = None
        try:
            if message["op"] == "follow":
                self._followed = list(message["groups"])
            elif message["op"] == "launch":
                self._cluster.launch(GroupRequest.from_json(message["request"]))
            elif message["op"] == "remove":
                self._cluster.remove(message["group"])
        except Exception as problem:
            # The process is a boundary: what Ray refuses for one attempt is no reason to end the work for all.
            error = {"kind": type(problem).__name__, "message": str(problem) or repr(problem)}
        return {"done": message["id"], "error": error}

    def _await_request(self, timeout_s: float) -> None:
        select.select([self._connection], [], [], timeout_s)

    def _receive(self, *, timeout_s: float) -> list[bytes]:
        readable, _, _ = select.select([self._connection], [], [], timeout_s)
        if not readable:
            return []
        data = self._connection.recv(1 << 20)
        if not data:
            raise EOFError
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines

    def _send(self, message: Mapping[str, Any]) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    connection = socket.socket(fileno=options.fd)
    connection.setblocking(True)
    address = options.address
    if address == "local":
        address = local_head(options.folder, cpus=options.cpus, gpus=options.gpus)
    try:
        _await_head(address, connection)
        from windlass.engines.ray.cluster import Cluster  # a second's work, of no use while nobody answers

        # Ray's library may wait for ever for a raylet that died as it connected to it. The signal ends this process,
        # whatever the library is about, and the engine starts another.
        signal.alarm(_CONNECT_WITHIN_S)
        cluster = Cluster(address, options.namespace, prefix=options.prefix)
        signal.alarm(0)
        Driver(connection, cluster).serve()
    except (EOFError, ConnectionError):
        pass
    # Detached actors stay. Ray's own way out waits for this and that, and nothing here needs it.
    os._exit(0)


def _await_head(address: str, connection: socket.socket) -> None:
    """Until somebody listens there. Raises EOFError when the engine hangs up."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    while port.isdigit() and not answers(host.strip("[]"), int(port)):
        if select.select([connection], [], [], _KNOCK_EVERY_S)[0] and not connection.recv(1, socket.MSG_PEEK):
            raise EOFError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="windlass-ray-driver", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the socket to the engine, inherited")
    parser.add_argument("--address", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--prefix", required=True, help="what names of this engine's groups and actors begin with")
    parser.add_argument("--folder", type=Path, required=True, help="where a head of our own keeps its files")
    parser.add_argument("--cpus", type=int)
    parser.add_argument("--gpus", type=int)
    return parser


if __name__ == "__main__":
    main()
