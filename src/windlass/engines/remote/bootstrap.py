"""How a bare interpreter on a node becomes the agent: `python3 -c BOOTSTRAP` in the environment rendered here."""

from __future__ import annotations

# Standard library only, and short: it is part of every pod. The server may not be there yet, so it asks until it is.
# A container's first process ignores SIGTERM unless it says otherwise. It goes on in the same interpreter, and loads no
# more than it must: every run waits for this.
_PROGRAM = """\
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
server = os.environ["WINDLASS_SERVER"].rstrip("/")
if server.startswith("http:"):
    sys.modules["ssl"] = None  # long to load, and not needed
import http.client, importlib, time, types, urllib.parse
home = os.environ.get("WINDLASS_NODE_HOME")
if home:
    os.makedirs(home, exist_ok=True)
    folder = os.path.join(os.path.abspath(home), "windlass-" + os.urandom(8).hex())
    os.mkdir(folder, 0o700)
else:
    import tempfile
    folder = tempfile.mkdtemp(prefix="windlass-")
url = urllib.parse.urlsplit(server + "/api/nodes/agent.zip")
pause_s = 0.2
while True:
    try:
        kind = http.client.HTTPConnection if url.scheme == "http" else http.client.HTTPSConnection
        connection = kind(url.hostname, url.port, timeout=30)
        connection.request("GET", url.path)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        if response.status == 200:
            break
        error = "%d %s" % (response.status, response.reason)
    except (OSError, http.client.HTTPException) as problem:
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
