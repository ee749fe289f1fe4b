"""The line between the supervisors of a gang: the first node's listens, the others call. Over it they agree to start
all ranks again; nobody else is asked, so it works while the server is away.

Whoever calls proves that it knows the plan's key before it is heard. Only numbers of files are kept, never socket
objects: a warm rank inherits what the supervisor holds, and an object that is collected there would close what has its
number by then. A line that breaks is renewed; meanwhile nothing can be agreed on, and a failure ends the attempt.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import time
from typing import Any, Callable, Mapping, NamedTuple, Union

_CALL_EVERY_S = 0.5
_LONGEST_PAUSE_S = 30.0  # between two questions for the hub's address
_LONGEST_LINE = 64 * 1024
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))

Message = dict[str, Any]


class Said(NamedTuple):
    node: int
    message: Message


def line_port(master_port: int) -> int:
    """Below that of the first generation's ranks: `free_port` looks at both."""
    return master_port - 1


def open_line(plan: Mapping[str, Any]) -> Union[Hub, Member, None]:
    """None for a node that is alone, or where ranks do not start again in place."""
    told = plan.get("recovery")
    if int(plan["nnodes"]) == 1 or not told or not told.get("key"):
        return None
    port, key = line_port(int(plan["master_port"])), str(told["key"]).encode()
    if int(plan["node_rank"]):
        return Member(str(plan["master_addr"]), port, key, int(plan["node_rank"]))
    try:
        return Hub(str(plan["master_addr"]), port, key, int(plan["nnodes"]))
    except OSError as error:
        sys.stderr.write("no line to the other nodes, so no restart in place: port %d: %s\n" % (port, error))
        return None


class _Ends:
    """Files that are read when there is something, by whoever's selector it is at the time."""

    def __init__(self) -> None:
        self._selector: selectors.BaseSelector | None = None
        self._readers: dict[int, Callable[[], Any]] = {}

    def attach(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        for fd, reader in self._readers.items():
            selector.register(fd, selectors.EVENT_READ, reader)

    def detach(self) -> None:
        """The files stay open; what comes meanwhile waits in them."""
        if self._selector is not None:
            for fd in self._readers:
                self._selector.unregister(fd)
        self._selector = None

    def add(self, fd: int, reader: Callable[[], Any]) -> None:
        self._readers[fd] = reader
        if self._selector is not None:
            self._selector.register(fd, selectors.EVENT_READ, reader)

    def remove(self, fd: int) -> None:
        if self._selector is not None:
            self._selector.unregister(fd)
        del self._readers[fd]
        os.close(fd)

    def close(self) -> None:
        for fd in list(self._readers):
            end = socket.socket(fileno=fd)
            try:
                end.shutdown(socket.SHUT_RDWR)  # a warm rank may hold it too: closing alone would tell nobody
            except OSError:
                pass  # nobody is at the other end
            end.detach()
            self.remove(fd)


class _Wire:
    """Messages over one connection, a line of JSON each."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._pending = b""

    def send(self, message: Message) -> bool:
        """False if the connection is broken. Messages are small: one that does not fit at once never will."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        try:
            return os.write(self.fd, data) == len(data)
        except OSError:
            return False

    def receive(self) -> list[Message] | None:
        """What has come; None: nothing more will."""
        try:
            data = os.read(self.fd, _LONGEST_LINE)
        except BlockingIOError:
            return []
        except OSError:
            return None
        self._pending += data
        *lines, self._pending = self._pending.split(b"\n")
        try:
            found = [json.loads(line) for line in lines]
        except ValueError:
            return None
        fits = len(self._pending) < _LONGEST_LINE and all(isinstance(message, dict) for message in found)
        return found if data and fits else None


class _Caller:
    """Somebody at the hub's end; a node once it has proved which."""

    def __init__(self, fd: int) -> None:
        self.wire = _Wire(fd)
        self.nonce = os.urandom(16).hex()
        self.node: int | None = None


class Hub:
    """The first node's end."""

    def __init__(self, address: str, port: int, key: bytes, nnodes: int) -> None:
        self._key = key
        self._nnodes = nnodes
        self._ends = _Ends()
        self._callers: dict[int, _Caller] = {}
        self._said: list[Said] = []
        self._listener = _listen(address, port, nnodes)
        self._ends.add(self._listener, self._accept)

    def close(self) -> None:
        """For good. The others see it at once."""
        self._ends.close()
        self._callers.clear()

    def attach(self, selector: selectors.BaseSelector) -> None:
        self._ends.attach(selector)

    def detach(self) -> None:
        self._ends.detach()

    def tick(self, now: float) -> None:
        """Others call; there is nothing to do."""

    def next_at(self) -> float | None:
        return None

    def take(self) -> list[Said]:
        said, self._said = self._said, []
        return said

    def missing(self) -> list[int]:
        """Nodes that cannot be told anything now."""
        return sorted(set(range(1, self._nnodes)) - {caller.node for caller in self._callers.values()})

    def tell_all(self, message: Message) -> None:
        for caller in list(self._callers.values()):
            if caller.node is not None and not caller.wire.send(message):
                self._hang_up(caller)

    def _accept(self) -> bool:
        listener = socket.socket(fileno=self._listener)
        try:
            connection, _ = listener.accept()
        except OSError:
            return False
        finally:
            listener.detach()
        if len(self._callers) >= 4 * self._nnodes:  # strangers who do not go away
            connection.close()
            return True
        caller = _Caller(_tuned(connection))
        self._callers[caller.wire.fd] = caller
        self._ends.add(caller.wire.fd, lambda: self._hear(caller))
        caller.wire.send({"nonce": caller.nonce})
        return True

    def _hear(self, caller: _Caller) -> bool:
        messages = caller.wire.receive()
        if messages is None:
            self._hang_up(caller)
            return False
        for message in messages:
            if caller.node is not None:
                self._said.append(Said(caller.node, message))
            elif not self._introduce(caller, message):
                self._hang_up(caller)
                return False
        return False

    def _introduce(self, caller: _Caller, message: Message) -> bool:
        node, proof = message.get("node"), message.get("proof")
        if not isinstance(node, int) or not isinstance(proof, str) or not 0 < node < self._nnodes:
            return False
        import hmac

        if not hmac.compare_digest(proof, _proof(self._key, caller.nonce, node)):
            return False
        for former in [one for one in self._callers.values() if one.node == node]:
            self._hang_up(former)  # it calls again because that connection is broken
        caller.node = node
        return True

    def _hang_up(self, caller: _Caller) -> None:
        if self._callers.pop(caller.wire.fd, None) is not None:
            self._ends.remove(caller.wire.fd)


class Member:
    """Any other node's end."""

    def __init__(self, address: str, port: int, key: bytes, node: int) -> None:
        self._address = (address, port)
        self._key = key
        self._node = node
        self._ends = _Ends()
        self._wire: _Wire | None = None
        self._is_known = False
        self._found: Any = None  # the hub's address: asked for until there is one, and then no more
        self._call_at = 0.0
        self._pause_s = _CALL_EVERY_S
        self._said: list[Said] = []

    def close(self) -> None:
        """For good. The hub sees it at once."""
        self._ends.close()
        self._wire, self._is_known, self._call_at = None, False, float("inf")

    def attach(self, selector: selectors.BaseSelector) -> None:
        self._ends.attach(selector)

    def detach(self) -> None:
        self._ends.detach()

    def tick(self, now: float) -> None:
        if self._wire is None and now >= self._call_at:
            self._call()

    def next_at(self) -> float | None:
        return self._call_at if self._wire is None else None

    def take(self) -> list[Said]:
        said, self._said = self._said, []
        return said

    @property
    def is_up(self) -> bool:
        return self._wire is not None and self._is_known

    def tell(self, message: Message) -> bool:
        """Whether the hub may have heard it."""
        return self._wire is not None and self._is_known and self._wire.send(message)

    def _call(self) -> None:
        """Begin to; the hub speaks first, and until then the connection is silent or broken."""
        try:
            self._found = self._found or socket.getaddrinfo(*self._address, type=socket.SOCK_STREAM)[0]
            connection = socket.socket(self._found[0], self._found[1])
            connection.setblocking(False)
            connection.connect_ex(self._found[4])
        except OSError:
            # No such name yet, or no route. To ask for a name may take long, and the ranks are not heard meanwhile.
            self._call_at = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            return
        self._wire = wire = _Wire(_tuned(connection))
        self._ends.add(wire.fd, lambda: self._hear(wire))

    def _hear(self, wire: _Wire) -> bool:
        messages = wire.receive()
        if messages is None:
            self._ends.remove(wire.fd)
            self._wire, self._is_known = None, False
            self._call_at = time.monotonic() + _CALL_EVERY_S
            return False
        for message in messages:
            if self._is_known:
                self._said.append(Said(0, message))
            elif isinstance(nonce := message.get("nonce"), str):
                wire.send({"node": self._node, "proof": _proof(self._key, nonce, self._node)})
                self._is_known = True
        return False


def _listen(address: str, port: int, backlog: int) -> int:
    """On this machine alone if all nodes are on it; else wherever they may come from: names lead to many addresses."""
    is_local = address.startswith("127.")
    both = not is_local and socket.has_dualstack_ipv6()
    with socket.socket(socket.AF_INET6 if both else socket.AF_INET) as listener:
        if both:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address if is_local else "", port))
        listener.listen(backlog)
        listener.setblocking(False)
        return listener.detach()


def _proof(key: bytes, nonce: str, node: int) -> str:
    import hmac  # loads OpenSSL, and most runs have one node

    return hmac.new(key, ("%s:%d" % (nonce, node)).encode(), "sha256").hexdigest()


def _tuned(connection: socket.socket) -> int:
    """Its number, set to notice a peer that is gone without a word."""
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection.detach()
