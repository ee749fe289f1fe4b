"""Where the server is and which token it wants: given, from the environment, or the embedded one of a home folder.

Owns the reading of `server.json`; starting and stopping that server is `embedded`'s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from windlass.agent import kernel
from windlass.core.errors import InvalidInput, ServerUnreachable

LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))


class Endpoint(NamedTuple):
    url: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r})"  # tokens are nobody's business

    @property
    def is_local(self) -> bool:
        return urlsplit(self.url).hostname in LOOPBACK


class ServerRecord(NamedTuple):
    """What an embedded server writes into `server.json` once it answers."""

    url: str
    pid: int
    pid_start: int
    version: str


def resolve_endpoint(url: str | None, token: str | None, home: Path, environ: Mapping[str, str]) -> Endpoint:
    """Raises ServerUnreachable if no url is known and no server runs for `home`."""
    url = url or environ.get("WINDLASS_URL") or None
    token = token or environ.get("WINDLASS_TOKEN") or None
    if url is not None:
        if not _is_server_url(url):
            raise InvalidInput(f"{url!r} is not a server url; write for example http://127.0.0.1:8470")
        return Endpoint(url=url.rstrip("/"), token=token or read_token(home))
    server = running_server(home)
    if server is None:
        raise ServerUnreachable(
            f"no server is running for {home}", hint="start one with `windlass up --daemon`, or set WINDLASS_URL"
        )
    return Endpoint(url=server.url.rstrip("/"), token=token or read_token(home))


def _is_server_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, brackets that do not close
        return False


def read_token(home: Path) -> str | None:
    try:
        return (home / "token").read_text().strip() or None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInput(f"the token in {home / 'token'} cannot be read: {error.strerror}") from error


def running_server(home: Path) -> ServerRecord | None:
    """The home's server if its process lives; a record left behind by a dead one counts as none."""
    record = read_server_record(home)
    return record if record is not None and process_start(record.pid) == record.pid_start else None


def read_server_record(home: Path) -> ServerRecord | None:
    try:
        data = json.loads((home / "server.json").read_text())
        return ServerRecord(
            url=str(data["url"]), pid=int(data["pid"]), pid_start=int(data["pid_start"]), version=str(data["version"])
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InvalidInput(f"{home / 'server.json'} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError):
        return None  # half-written or of another program: as good as none


def process_start(pid: int) -> int | None:
    """When a living process started: with it, a pid names one process for good."""
    found = kernel.stat(pid)
    return None if found is None or found.state in "ZX" else found.start  # a zombie answers nobody any more
