"""Names of files as MLflow's clients send them and want them back: which are refused, what kind of file a name stands
for, and how it is said in a header. Pure."""

from __future__ import annotations

import mimetypes
import ntpath
import re
import unicodedata
from pathlib import PurePosixPath, PureWindowsPath
from urllib.parse import quote, unquote, urlparse, urlunparse

from windlass.core.errors import InvalidInput

# Shown as text, whatever the system's table says of them.
# fmt: off
_TEXT = frozenset((
    "txt", "log", "err", "cfg", "conf", "cnf", "cf", "ini", "properties", "prop", "hocon", "toml", "yaml", "yml", "xml",
    "json", "js", "py", "py3", "csv", "tsv", "md", "rst", "ipynb", "MLmodel", "mlproject",
))
# fmt: on
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+\-.^_`|~]+")


def safe_path(given: str) -> str:
    """What can be joined to a folder without leaving it, however often it was escaped. Raises InvalidInput."""
    path = _escaped(_decoded(given))
    if (
        "#" in path
        or urlparse(path).scheme == "file"
        or ".." in path.split("/")
        or PureWindowsPath(path).is_absolute()
        or PurePosixPath(path).is_absolute()
    ):
        raise InvalidInput("Invalid path")
    return path


def safe_name(given: str) -> str:
    """The last part of a path, of whatever system it is. Raises InvalidInput."""
    name = ntpath.basename(given)
    name = ntpath.basename(safe_path(name)) if name else ""
    if name in ("", ".", ".."):
        raise InvalidInput("Invalid path")
    return name


def media_type(name: str) -> str:
    """By its name alone: what the sender said of it could make a browser run it."""
    ending = name.rpartition(".")[2] if "." in name.lstrip(".") else name
    if ending in _TEXT:
        return "text/plain"
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


def attachment(name: str) -> str:
    """A Content-Disposition: with what is not ASCII once more, in RFC 5987's way."""
    if name.isascii():
        return f"attachment; filename={_quoted(name)}"
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode() or "download"
    return f"attachment; filename={_quoted(plain)}; filename*=UTF-8''{quote(name, safe='!#$&+-.^_`|~')}"


def download_headers(name: str) -> dict[str, str]:
    """Always to be saved: shown on the server's own pages, a file could act in its user's name."""
    return {
        "Content-Type": media_type(name),
        "Content-Disposition": attachment(name),
        "X-Content-Type-Options": "nosniff",
    }


def _quoted(name: str) -> str:
    if _TOKEN.fullmatch(name):
        return name
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _decoded(text: str) -> str:
    for _ in range(10):
        try:
            plain = urlunparse(urlparse(unquote(text)))
        except ValueError:
            break
        if plain == text:
            return text
        text = plain
    raise InvalidInput("Invalid path")


def _escaped(text: str) -> str:
    """Control characters become what they are in a URL."""
    return "".join(f"%{ord(sign):02x}" if ord(sign) < 32 or ord(sign) == 127 else sign for sign in text)
