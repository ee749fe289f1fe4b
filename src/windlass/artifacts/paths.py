"""Names of artifacts: parts between slashes, in one way of writing. Pure."""

from __future__ import annotations

from windlass.core.errors import InvalidInput

MOST_BYTES = 2_000  # of a whole path; databases have to find it in an index
_MOST_NAME_BYTES = 500


def clean_path(given: str) -> str:
    """Without empty parts and `.`; "" is the root. Raises InvalidInput."""
    parts = [part for part in given.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise InvalidInput(f"'{given}' leads outside: a path of an artifact has no '..'")
    path = "/".join(parts)
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{given!r} is no text that can be stored") from None
    if "\0" in path:
        raise InvalidInput(f"{given!r} has a zero byte")
    if size > MOST_BYTES:
        raise InvalidInput(f"the path '{path[:60]}...' has {size} bytes; at most {MOST_BYTES} can be kept")
    if long := next((part for part in parts if len(part.encode()) > _MOST_NAME_BYTES), None):
        raise InvalidInput(f"the name '{long[:60]}...' has more than {_MOST_NAME_BYTES} bytes")
    return path


def file_path(given: str) -> str:
    """As `clean_path`, of something that can be a file."""
    path = clean_path(given)
    if not path or given.endswith("/"):
        raise InvalidInput(f"'{given}' is a folder: a file's path ends with its name")
    return path


def split(path: str) -> tuple[str, str]:
    """(folder, name). Of a clean path that is not the root."""
    folder, _, name = path.rpartition("/")
    return folder, name


def joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def ancestors(path: str) -> list[str]:
    """The folders that `path` lies in, the outermost first, without the root."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]
