"""Where an `artifact_uri` points: into our own tree, into a folder of this machine, or elsewhere. Pure.

mlflow-artifacts:/0/RUN/artifacts                            Ours("0/RUN/artifacts")
http://HOST/api/2.0/mlflow-artifacts/artifacts/0/RUN         Ours("0/RUN")
file:///data/0/RUN, /data/0/RUN                              Folder("/data/0/RUN")
s3://bucket/0/RUN                                            Elsewhere: clients read and write it themselves
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from windlass.artifacts.paths import clean_path

_SERVED = "/mlflow-artifacts/artifacts"


@dataclass(frozen=True, slots=True)
class Ours:
    path: str


@dataclass(frozen=True, slots=True)
class Folder:
    path: Path


@dataclass(frozen=True, slots=True)
class Elsewhere:
    uri: str


Location: TypeAlias = Ours | Folder | Elsewhere


def locate(uri: str) -> Location:
    parts = urlsplit(uri)
    if parts.scheme == "mlflow-artifacts":
        return Ours(clean_path(parts.path))
    if parts.scheme in ("http", "https"):
        _, found, path = parts.path.partition(_SERVED)
        return Ours(clean_path(path)) if found and path[:1] in ("", "/") else Elsewhere(uri)
    if parts.scheme == "file":
        return Folder(Path(unquote(parts.path))) if parts.netloc in ("", "localhost") else Elsewhere(uri)
    if not parts.scheme and uri.startswith("/"):
        return Folder(Path(uri))
    return Elsewhere(uri)
