"""Where a version may come from. A source on the server's own disk must be among the artifacts of its run or logged
model: else whoever may register models could read any file.
"""

from __future__ import annotations

import os
import posixpath
import re
import urllib.parse
import urllib.request
from dataclasses import dataclass

from windlass.core.errors import InvalidInput, WindlassError
from windlass.registry.naming import version_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelUri:
    """`models:/<logged model>`, or a registered model with a version, a stage, an alias, or nothing: the latest."""

    model_id: str | None = None
    name: str = ""
    version: int | None = None
    stage: str | None = None
    alias: str | None = None


def check_pattern(source: str, pattern: str | None) -> None:
    if pattern and not re.search(pattern, source):
        raise InvalidInput(f"Invalid model version source: '{source}'.")


def check_prompt_source(source: str) -> None:
    scheme = _parsed(source).scheme
    if scheme == "file" or (not scheme and source.startswith("/")):
        raise InvalidInput(f"Invalid prompt source: '{source}'. Local source paths are not allowed for prompts.")
    if scheme:
        check_remote(source)


def is_local(uri: str) -> bool:
    """Raises WindlassError for files of another machine."""
    parsed = _parsed(uri)
    if not parsed.scheme:
        return True
    host = parsed.hostname
    here = not host or host == "." or host.startswith(("localhost", "127.0.0.1"))
    if parsed.scheme == "file":
        if not here:
            raise WindlassError(
                f"{uri} is not a valid remote uri. For remote access on windows, please consider using a different"
                " scheme such as SMB (e.g. smb://<hostname>/<path>)."
            )
        return True
    return False


def check_local(source: str, root: str | None, given: str) -> None:
    """`root` is where the artifacts of the run or model are; `given` the parameter that names it."""
    shown = source
    if root is not None:
        shown = local_path(source)
        if is_local(root) and os.path.commonpath([shown, local_path(root)]) == local_path(root):
            return
    raise InvalidInput(
        f"Invalid model version source: '{shown}'. To use a local path as a model version source, the {given} request"
        " parameter has to be specified and the local path has to be contained within the artifact directory of the"
        f" run specified by the {given}."
    )


def local_path(uri: str) -> str:
    path = _parsed(uri).path if uri.startswith("file:") else uri
    plain = urllib.request.url2pathname(path)
    if "\x00" in plain:  # which no file can have in its name
        raise InvalidInput(f"Invalid model version source: '{uri}': a path has no NUL.")
    return os.path.realpath(plain)


def check_remote(source: str) -> None:
    """No steps upwards, however they are written."""
    whole = source
    while (plain := urllib.parse.unquote_plus(whole)) != whole:
        whole = plain
    path = re.sub(r"/+", "/", _parsed(whole).path.rstrip("/"))
    if "\x00" in path or ".." in whole.split("/") or posixpath.normpath(path) != path or not path.startswith("/"):
        raise InvalidInput(
            f"Invalid model version source: '{source}'. If supplying a source as an http, https, local file path, ftp,"
            " objectstore, or mlflow-artifacts uri, an absolute path must be provided without relative path references"
            " present. Please provide an absolute path."
        )


def read_model_uri(uri: str) -> ModelUri | None:
    """None if it is of another scheme. Raises InvalidInput for one that names nothing."""
    parsed = _parsed(uri, allow_fragments=False)
    if parsed.scheme != "models":
        return None
    parts = parsed.path.lstrip("/").split("/")
    if not parsed.path.startswith("/") or len(parts) > 2 or not all(part.strip() for part in parts):
        raise InvalidInput(
            f"Not a proper models:/ URI: {uri}. Models URIs must be of the form 'models:/model_id',"
            " 'models:/model_name/suffix' or 'models:/model_name@alias' where suffix is a model version, stage, or the"
            " string 'latest' and where alias is a registered model alias. Only one of suffix or alias can be defined"
            " at a time."
        )
    if len(parts) == 2:
        name, suffix = parts
        if suffix.isdecimal():
            return ModelUri(name=name, version=version_of(suffix))
        return ModelUri(name=name, stage=None if suffix.lower() == "latest" else suffix)
    name, at, alias = parts[0].rpartition("@")
    return ModelUri(name=name, alias=alias) if at and alias.strip() else ModelUri(model_id=parts[0])


def _parsed(uri: str, *, allow_fragments: bool = True) -> urllib.parse.ParseResult:
    try:
        return urllib.parse.urlparse(uri, allow_fragments=allow_fragments)
    except ValueError as error:
        raise InvalidInput(f"Invalid model version source: '{uri}': {error}") from None
