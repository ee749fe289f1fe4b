"""Where artifacts of experiments, runs and models are kept, as URIs. The server keeps them itself (`mlflow-artifacts:`)
unless a client or the config names another place. Pure but for the working folder, which relative paths start from.
"""

from __future__ import annotations

import posixpath
from pathlib import Path
from urllib.parse import unquote, urlparse, urlsplit, urlunparse, urlunsplit
from urllib.request import url2pathname

from windlass.core.errors import InvalidInput
from windlass.experiments.rules import LONGEST_LOCATION

_LOCAL = ("", "file")


def own_location(experiment_id: int, root: str | None = None) -> str:
    """Without a `root` that whoever runs the server has chosen, the server's own."""
    return extended(root or "mlflow-artifacts:/", str(experiment_id))


def run_location(experiment_location: str, run_id: str) -> str:
    return extended(experiment_location, run_id, "artifacts")


def model_location(experiment_location: str, model_id: str) -> str:
    return extended(experiment_location, "models", model_id, "artifacts")


def checked_location(given: str) -> str:
    """With a relative path made absolute. Raises InvalidInput."""
    parsed = urlparse(given)
    if parsed.fragment or parsed.params:
        raise InvalidInput("'artifact_location' URL can't include fragments or params.")
    _check_query(parsed.query)
    if given.startswith("runs:"):
        raise InvalidInput(f"Artifact location cannot be a runs:/ URI. Given: '{given}'")
    location = _absolute(given)
    if max(len(given), len(location)) > LONGEST_LOCATION:
        raise InvalidInput(
            "Invalid artifact path length. The length of the artifact path cannot be greater than"
            f" {LONGEST_LOCATION} characters. To configure this limit, please set the"
            " MLFLOW_ARTIFACT_LOCATION_MAX_LENGTH environment variable."
        )
    return location


def extended(uri: str, *parts: str) -> str:
    """`uri` with more of a path; its query stays at the end."""
    more = "/".join(parts)
    parsed = urlparse(uri)
    _check_query(parsed.query)
    if not parsed.scheme:
        return _joined(uri, more)
    prefix = ""
    if not parsed.path.startswith("/"):
        # Put together again, a relative path would become an absolute one.
        prefix, parsed = f"{parsed.scheme}:", parsed._replace(scheme="")
    return prefix + urlunparse(parsed._replace(path=_joined(parsed.path, more)))


def _joined(path: str, more: str) -> str:
    if not path:
        return more
    return posixpath.join(path, more)


def _absolute(given: str) -> str:
    split = urlsplit(given)
    if split.scheme not in _LOCAL or split.netloc not in ("", "localhost"):
        return given
    path = url2pathname(split.path) if split.scheme else given
    if Path(path).is_absolute():
        return given
    whole = Path.cwd().joinpath(path).as_posix()
    if not split.scheme:
        return whole
    return urlunsplit((split.scheme, "", whole, split.query, split.fragment))


def _check_query(query: str) -> None:
    """What climbs out of a folder may hide behind several layers of escaping."""
    for _ in range(10):
        if ".." in query:
            raise InvalidInput("Invalid query string")
        plain = unquote(query)
        if plain == query:
            return
        query = plain
    raise InvalidInput("Invalid query string")
