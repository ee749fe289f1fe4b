"""Names of files that can be sent to a server and come back unchanged. Pure."""

from __future__ import annotations

from urllib.parse import unquote, urlparse, urlunparse

from windlass.core.errors import InvalidInput


def check_sendable(path: str) -> None:
    """Raises InvalidInput for what no address can say: there is no other way to ask for it again."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"the name {shown(path)} is not UTF-8: artifacts have names of text", hint=_RENAME) from None
    if bad := next((sign for sign in "\n\0" if sign in path), None):
        raise InvalidInput(f"the name {shown(path)} has {bad!r} in it, which no artifact's name may have", hint=_RENAME)


def keeps_its_name(path: str) -> bool:
    """Whether MLflow's servers give this file to who asks for it. They decode what they are asked for until nothing is
    left to decode, and lose what is empty in a URL: for `q%20.txt` they give `q .txt`."""
    try:
        return "#" not in path and urlunparse(urlparse(unquote(path))) == path
    except ValueError:
        return False


def shown(path: str) -> str:
    """With what no terminal can show told as escapes."""
    return repr(path) if not path.isprintable() else f"'{path}'"


_RENAME = "rename it, or leave it out"
