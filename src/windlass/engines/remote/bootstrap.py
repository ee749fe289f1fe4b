"""How a bare interpreter on a node becomes the agent: `python3 -c BOOTSTRAP` in the environment rendered here."""

from __future__ import annotations

# Standard library only, and short: it is part of every pod. The server may not be there yet, so it asks until it is.
# A container's first process ignores SIGTERM unless it says otherwise. It goes on in the same interpreter, and loads no
# more than it must: every run waits for this.
_PROGRAM = """\
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
import importlib, socket, time, types, urllib.parse
home = os.environ.get("WINDLASS_NODE_HOME")
if home:
    os.makedirs(home, exist_ok=True)
    folder = os.path.join(os.path.abspath(home), "windlass-" + os.urandom(8).hex())
    os.mkdir(folder, 0o700)
else:
    import tempfile
    folder = tempfile.mkdtemp(prefix="windlass-")
url = urllib.parse.urlsplit(os.environ["WINDLASS_SERVER"].rstrip("/") + "/api/nodes/agent.zip")
port = url.port or (443 if url.scheme == "https" else 80)
pause_s = 0.2
while True:
    try:
        wire = socket.create_connection((url.hostname, port), 30)
        if url.scheme == "https":
            import ssl
            wire = ssl.create_default_context().wrap_socket(wire, server_hostname=url.hostname)
        with wire, wire.makefile("rb") as answer:
            host = url.netloc.rpartition("@")[2]
            lines = ["GET %s HTTP/1.1" % url.path, "Host: " + host, "Connection: close", "", ""]
            wire.sendall("\\r\\n".join(lines).encode())
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
    sys.stderr.write("windlass: %s: %s\\n" % (url.geturl(), error))
    time.sleep(pause_s)
    pause_s = min(5.0, pause_s * 2)
with open(folder + "/agent.zip", "wb") as file:
    file.write(data)
os.environ["WINDLASS_NODE_SCRATCH"] = folder
package = sys.modules["_windlass_agent"] = types.ModuleType("_windlass_agent")
package.__path__ = [folder + "/agent.zip/agent"]
importlib.import_module("_windlass_agent.entry").start(["relay"] + sys.argv[1:])
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
