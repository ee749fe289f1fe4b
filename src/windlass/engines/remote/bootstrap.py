"""How a bare interpreter on a node becomes the agent: `python3 -c BOOTSTRAP` in the environment rendered here."""

from __future__ import annotations

# Standard library only, and short: it is part of every pod. The server may not be there yet, so it asks until it is.
# A container's first process ignores SIGTERM unless it says otherwise. Every run waits for this: so it asks with the
# bare modules of the interpreter, loads what the agent will need while the answer is on its way, and goes on in the
# same process. Loading makes no garbage, so nobody looks for it. A host's name is given as bytes: text is taken for an
# international one, whose tables are long to load.
_PROGRAM = """\
import _signal, _socket, gc, os, sys
gc.set_threshold(50_000)
_signal.signal(_signal.SIGTERM, lambda *_: sys.exit(143))
server = os.environ["WINDLASS_SERVER"].rstrip("/")
scheme, _, rest = server.partition("://")
authority, _, path = rest.partition("/")
authority = authority.rpartition("@")[2]
path = ("/" + path).rstrip("/") + "/api/nodes/agent.zip"
host, bracket, port = authority.rpartition("]")
if bracket:
    host, port = host[1:], port[1:]
else:
    host, _, port = port.partition(":")
secure = scheme.lower() == "https"
request = ["GET %s HTTP/1.1" % path, "Host: " + authority, "Connection: close", "", ""]

def ask():
    error = OSError("it has no address")
    name = host.encode() if host.isascii() else host
    for family, kind, protocol, _, address in _socket.getaddrinfo(
        name, int(port or (443 if secure else 80)), 0, _socket.SOCK_STREAM
    ):
        wire = _socket.socket(family, kind, protocol)
        try:
            wire.settimeout(30)
            wire.connect(address)
            break
        except OSError as problem:
            wire.close()
            error = problem
    else:
        raise error
    if not secure:
        wire.sendall("\\r\\n".join(request).encode())
    import ctypes, fcntl, json, mmap, re, select, signal, socket, time, typing, zlib
    wire = socket.socket(fileno=wire.detach())
    wire.settimeout(30)
    if secure:
        import ssl
        wire = ssl.create_default_context().wrap_socket(wire, server_hostname=host)
        wire.sendall("\\r\\n".join(request).encode())
    return wire

pause_s = 0.2
while True:
    try:
        with ask() as wire, wire.makefile("rb") as answer:
            status = answer.readline().decode("latin-1").strip()
            about = {}
            while True:
                name, colon, value = answer.readline().decode("latin-1").partition(":")
                if not colon:
                    break
                about[name.strip().lower()] = value.strip()
            if about.get("transfer-encoding", "").lower() == "chunked":
                data = b""
                while True:
                    size = int(answer.readline().partition(b";")[0], 16)
                    if not size:
                        break
                    data += answer.read(size)
                    answer.readline()
            else:
                data = answer.read(int(about.get("content-length", -1)))
        if status.split(" ")[1:2] == ["200"] and len(data) >= int(about.get("content-length", 1)):
            break
        error = status or "no answer"
    except (OSError, ValueError) as problem:
        error = problem
    sys.stderr.write("windlass: %s: %s\\n" % (server, error))
    import time
    time.sleep(pause_s)
    pause_s = min(5.0, pause_s * 2)
home = os.environ.get("WINDLASS_NODE_HOME")
if home:
    os.makedirs(home, exist_ok=True)
    folder = os.path.join(os.path.abspath(home), "windlass-" + os.urandom(8).hex())
    os.mkdir(folder, 0o700)
else:
    import tempfile
    folder = tempfile.mkdtemp(prefix="windlass-")
with open(folder + "/agent.zip", "wb") as file:
    file.write(data)
os.environ["WINDLASS_NODE_SCRATCH"] = folder
package = sys.modules["_windlass_agent"] = type(sys)("_windlass_agent")
package.__path__ = [folder + "/agent.zip/agent"]
from _windlass_agent.entry import start
start(["relay"] + sys.argv[1:])
"""


def render_bootstrap() -> str:
    """The program that downloads the agent from WINDLASS_SERVER and becomes its relay; arguments are passed on."""
    return _PROGRAM


def render_node_environ(*, server_url: str, attempt_id: str, node_rank: int, token: str) -> dict[str, str]:
    """What the program above is told by. The token is a secret of the attempt."""
    return {
        "WINDLASS_SERVER": server_url,
        "WINDLASS_NODE_ATTEMPT": attempt_id,
        "WINDLASS_NODE_RANK": str(node_rank),
        "WINDLASS_NODE_TOKEN": token,
    }
