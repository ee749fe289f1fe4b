"""Which reader a source wants."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from windlass.core.errors import InvalidInput
from windlass.imports.records import Source

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")


def open_source(given: str, environ: Mapping[str, str]) -> Source:
    """`given` as MLflow takes it for MLFLOW_TRACKING_URI. Raises InvalidInput."""
    split = urlsplit(given)
    if split.scheme in ("http", "https"):
        from windlass.imports.rest import RestSource

        return RestSource(given, environ)
    if split.scheme.partition("+")[0] in _DATABASES:
        raise InvalidInput(
            f"'{split.scheme}:' is a database of MLflow's, which only MLflow itself should read",
            hint=f"`mlflow server --backend-store-uri {given} --port 5001`, then import from http://127.0.0.1:5001",
        )
    if split.scheme not in ("", "file"):
        raise InvalidInput(
            f"'{split.scheme}:' cannot be imported from", hint="give http://HOST:PORT, https://... or a folder `mlruns`"
        )
    from windlass.imports.filestore import FolderSource

    return FolderSource(Path(url2pathname(split.path)) if split.scheme else Path(given))
