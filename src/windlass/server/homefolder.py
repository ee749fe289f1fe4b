"""The server's folder: who owns it, its token, and the note that tells clients where the server is."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import windlass
from windlass.agent import kernel
from windlass.core.errors import Conflict, InvalidInput


def prepare(home: Path) -> None:
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in ("runs", "blobs"):
            (home / name).mkdir(exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{home} cannot be used: {error.strerror}", hint="choose another with --home") from error


@contextlib.contextmanager
def owned(home: Path) -> Iterator[None]:
    """Hold the folder for as long as the server lives; a second server for it is refused."""
    with (home / "server.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            where = read_note(home).get("url", "starting")
            raise Conflict(f"a server runs for {home} already ({where})", hint="`windlass down` stops it") from error
        yield


def load_token(home: Path, environ: Mapping[str, str], token_file: Path | None = None) -> str:
    """WINDLASS_TOKEN, or the one in `token_file` or the folder; made on first use."""
    if token := environ.get("WINDLASS_TOKEN"):
        return token
    path = token_file or home / "token"
    with contextlib.suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(32))
    token = path.read_text().strip()
    if not token:
        raise InvalidInput(f"{path} is empty", hint="delete it: the server makes a new one")
    return token


def write_note(home: Path, url: str) -> None:
    """The port is kept when the note goes: clients that were told the address find the next server there."""
    me = kernel.stat(os.getpid())
    note = {"url": url, "pid": os.getpid(), "pid_start": me.start if me else 0, "version": windlass.__version__}
    _put(home / "server.port", str(urlsplit(url).port))
    _put(home / "server.json", json.dumps(note))


def _put(file: Path, text: str) -> None:
    temporary = file.with_name(f".{file.stem}.{os.getpid()}")
    temporary.write_text(text)
    os.replace(temporary, file)


def read_note(home: Path) -> dict[str, Any]:
    try:
        note = json.loads((home / "server.json").read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def last_port(home: Path) -> int | None:
    """Where a server of this folder has listened last. The version before has noted it with its address alone."""
    try:
        port = int((home / "server.port").read_text())
    except (OSError, ValueError):
        with contextlib.suppress(ValueError):
            return urlsplit(str(read_note(home).get("url", ""))).port
        return None
    return port if 0 < port < 2**16 else None


def remove_note(home: Path) -> None:
    if read_note(home).get("pid") == os.getpid():
        (home / "server.json").unlink(missing_ok=True)
