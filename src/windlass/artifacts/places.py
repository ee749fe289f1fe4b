"""Artifacts by the `artifact_uri` of whom they belong to: our own tree and folders of this machine look the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from windlass.artifacts.folders import ArtifactFolder
from windlass.artifacts.locations import Folder, Ours, locate
from windlass.artifacts.paths import clean_path, joined
from windlass.artifacts.service import ArtifactService
from windlass.artifacts.types import Content, Entry
from windlass.core.errors import InvalidInput


class ArtifactPlaces:
    def __init__(self, artifacts: ArtifactService, *, home: Path | None, folders: bool) -> None:
        """`folders`: whether those of this machine may be read and written. Who can have commands run on it could do so
        anyhow; nobody else should."""
        self._artifacts = artifacts
        self._home = home
        self._folders = folders

    def children(self, uri: str, path: str = "") -> Sequence[Entry]:
        """What lies right in a folder, by name. Paths are those below `uri`."""
        match found := self._find(uri):
            case ArtifactFolder():
                return found.children(path)
            case _:
                path = clean_path(path)
                entries = self._artifacts.children(joined(found.path, path) if path else found.path)
                return [replace(entry, path=joined(path, entry.name)) for entry in entries]

    def files_below(self, uri: str, path: str = "") -> Sequence[Entry]:
        """All files in a folder and its folders, by path."""
        match found := self._find(uri):
            case ArtifactFolder():
                return sorted(found.files_below(path), key=lambda entry: entry.path)
            case _:
                above = joined(found.path, clean_path(path)).rstrip("/")
                entries = self._artifacts.files_below(above)
                cut = len(found.path) + 1 if found.path else 0
                return [replace(entry, path=entry.path[cut:]) for entry in entries]

    def open(self, uri: str, path: str) -> Content:
        """Raises NotFound, and Conflict for a folder."""
        match found := self._find(uri):
            case ArtifactFolder():
                return found.open(path)
            case _:
                return self._artifacts.open(joined(found.path, clean_path(path)))

    def put_bytes(self, uri: str, path: str, data: bytes) -> None:
        match found := self._find(uri):
            case ArtifactFolder():
                found.put_bytes(path, data)
            case _:
                self._artifacts.put_bytes(joined(found.path, path), data)

    def _find(self, uri: str) -> Ours | ArtifactFolder:
        match where := locate(uri):
            case Ours():
                return where
            case Folder() if self._folders:
                return ArtifactFolder(where.path, home=self._home)
            case Folder():
                raise InvalidInput(f"this server reads no artifacts from its own folders, as '{uri}' is one")
            case _:
                raise InvalidInput(f"this server keeps no artifacts at '{uri}': read them from there")
