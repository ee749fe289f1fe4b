"""How a bare interpreter on a node becomes the agent: `python3 -c BOOTSTRAP` in the environment rendered here."""

from __future__ import annotations

# Standard library only, and short: it is part of every pod. The server may not be there yet, so it asks until it is.
# A container's first process ignores SIGTERM unless it says otherwise.
_PROGRAM = """\
import http.client, io, os, signal, sys, tempfile, time, urllib.request, zipfile
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
home = os.environ.get("WINDLASS_NODE_HOME")
if home:
    os.makedirs(home, exist_ok=True)
folder = tempfile.mkdtemp(prefix="windlass-", dir=home)
url = os.environ["WINDLASS_SERVER"].rstrip("/") + "/api/nodes/agent.zip"
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
pause_s = 0.2
while True:
    try:
        data = direct.open(url, timeout=30).read()
        break
    except (OSError, http.client.HTTPException) as error:
        sys.stderr.write("windlass: %s: %s\\n" % (url, error))
        time.sleep(pause_s)
        pause_s = min(5.0, pause_s * 2)
zipfile.ZipFile(io.BytesIO(data)).extractall(folder)
os.environ["WINDLASS_NODE_SCRATCH"] = folder
python = sys.executable or "python3"
os.execvp(python, [python, folder + "/agent/__main__.py", "relay"] + sys.argv[1:])
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
