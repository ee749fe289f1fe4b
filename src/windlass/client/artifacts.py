"""`client.artifacts(RUN)`: the files of a run, up and down. Both ways go on where they broke off, and what arrives is
compared with its hash.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from windlass.client.answers import read
from windlass.core.artifactnames import check_sendable
from windlass.core.errors import InvalidInput, NotFound, ServerUnreachable, WindlassError

if TYPE_CHECKING:
    from windlass.client.client import Client
    from windlass.wire.artifacts import ArtifactList, ArtifactView

PART_BYTES = 32 << 20
_WHOLE_BYTES = 2 * PART_BYTES  # what is not larger goes at once
_PIECE_BYTES = 1 << 20
_MOST_PARTS = 10_000
_NOTHING_THERE = "the server answered 416"  # to who asks for what lies behind the end of a file
_TRIES_S = (0.2, 0.5, 1.0, 2.0, 4.0)
_COMPLETING_S = 3_600.0  # the server puts the parts together

Progress = Callable[[int], None]  # so many bytes more


class Artifacts:
    """Of one run, which may be one that an MLflow client made, or of a logged model (`m-…`), to read."""

    def __init__(self, client: Client, ref: str) -> None:
        self._client = client
        self._transport = client.transport
        self._ref = ref

    @cached_property
    def _base(self) -> str:
        return self._client.place_of(self._ref)

    def list(self, path: str = "", *, recursive: bool = False) -> ArtifactList:
        """What lies in a folder; with `recursive` all files below it."""
        from windlass.wire.artifacts import ArtifactList

        query = {"path": path or None, "recursive": "true" if recursive else None}
        return read(ArtifactList, self._transport.get(f"{self._base}/artifacts", query))

    def put(
        self, file: str | Path, path: str | None = None, *, progress: Progress = lambda _more: None
    ) -> ArtifactView:
        """Send a file; `path` is its name within the run, by default its own. What is there is replaced."""
        from windlass.wire.artifacts import ArtifactView

        source = Path(file)
        if not source.is_file():
            raise InvalidInput(f"'{source}' is not a file")
        path = path or source.name
        check_sendable(path)
        if source.stat().st_size > _WHOLE_BYTES:
            return self._put_parts(source, path, progress)
        made = self._transport.put(self._place(path), lambda: _reported(_pieces(source), progress))
        return read(ArtifactView, made)

    def put_folder(
        self, folder: str | Path, path: str = "", *, progress: Progress = lambda _more: None
    ) -> Sequence[ArtifactView]:
        """Send all files of a folder, under `path`."""
        root = Path(folder)
        files = sorted(item for item in root.rglob("*") if item.is_file())
        above = f"{path.rstrip('/')}/" if path.strip("/") else ""
        paths = [above + item.relative_to(root).as_posix() for item in files]
        for name in paths:
            check_sendable(name)  # of all, before half of the folder is sent
        return [self.put(item, name, progress=progress) for item, name in zip(files, paths, strict=True)]

    def get(self, path: str, to: str | Path | None = None, *, progress: Progress = lambda _more: None) -> Path:
        """Fetch a file; `to` is a file or a folder that is there, by default the current one. What an earlier try has
        left beside it (`.part`) is made use of."""
        target = Path(to or ".")
        if target.is_dir():
            target = target / path.rstrip("/").rpartition("/")[2]
        target.parent.mkdir(parents=True, exist_ok=True)
        waits = iter(_TRIES_S)
        while True:
            try:
                self._fetch(path, target, progress)
                return target
            except ServerUnreachable:
                if (wait_s := next(waits, None)) is None:
                    raise
                time.sleep(wait_s)

    @contextmanager
    def reading(self, path: str) -> Iterator[Iterator[bytes]]:
        """The content of a file, in pieces as they come."""
        with self._transport.reading(self._place(path), {}) as answer:
            yield answer.iter_bytes(_PIECE_BYTES)

    def get_folder(self, path: str, to: str | Path, *, progress: Progress = lambda _more: None) -> Sequence[Path]:
        """Fetch all files below a folder of the run."""
        above = path.strip("/")
        fetched = []
        for item in self.list(above, recursive=True).files:
            inside = item.path.removeprefix(above).lstrip("/")
            fetched.append(self.get(item.path, _within(Path(to), inside), progress=progress))
        return fetched

    def remove(self, path: str) -> int:
        """A file, or a folder and all that is in it: how many files. Raises NotFound."""
        return int(self._transport.delete(self._place(path))["files"])

    def _place(self, path: str) -> str:
        return f"{self._base}/artifacts/{quote(path)}"

    def _fetch(self, path: str, target: Path, progress: Progress) -> None:
        partial_file = target.with_name(f"{target.name}.part")
        note = target.with_name(f"{target.name}.part.tag")
        tag = note.read_text() if note.exists() and partial_file.exists() else ""
        start = partial_file.stat().st_size if tag else 0
        headers = {"Range": f"bytes={start}-", "If-Range": tag} if start else {}
        try:
            with self._transport.reading(self._place(path), headers) as answer:
                is_rest = answer.status_code == 206
                note.write_text(answer.headers.get("ETag", ""))
                progress(start if is_rest else 0)
                with partial_file.open("ab" if is_rest else "wb") as file:
                    for piece in answer.iter_bytes(_PIECE_BYTES):
                        file.write(piece)
                        progress(len(piece))
        except WindlassError as error:
            if not start or not error.message.startswith(_NOTHING_THERE):
                raise
            if _hash(partial_file) != tag.strip('"'):
                partial_file.unlink()  # there is more of it than of the file
                note.unlink()
                return self._fetch(path, target, progress)
            progress(start)  # all of it was here already
        self._check(path, partial_file, note)
        os.replace(partial_file, target)
        note.unlink()
        return None

    def _check(self, path: str, file: Path, note: Path) -> None:
        wanted = note.read_text().strip('"')
        if len(wanted) != 64:  # files that the server reads from a folder have no hash
            return
        if (found := _hash(file)) != wanted:
            file.unlink()
            note.unlink()
            raise WindlassError(f"'{path}' arrived as {found}, not as {wanted}", hint="fetch it again")

    # ---- in parts ----------------------------------------------------------------------------------------------------

    def _put_parts(self, source: Path, path: str, progress: Progress) -> ArtifactView:
        """An upload that was gone on with may end meanwhile: the server may be completing it still after an earlier try
        lost the connection."""
        note, told = self._note(source, path), _Told(progress)
        upload = self._resumed(note) or self._begun(note, path)
        try:
            return self._send_parts(source, path, upload, note, told.more)
        except NotFound:
            note.unlink(missing_ok=True)
            if (kept := self._kept(path, _hash(source))) is not None:
                told.more(source.stat().st_size - told.sum)
                return kept
            told.more(-told.sum)
            return self._send_parts(source, path, self._begun(note, path), note, told.more)

    def _kept(self, path: str, digest: str) -> ArtifactView | None:
        """The file of this path, if it has this content."""
        files = self.list(_clean(path).rpartition("/")[0]).files
        return next((one for one in files if (one.path, one.digest) == (_clean(path), digest)), None)

    def _send_parts(
        self, source: Path, path: str, upload: Mapping[str, Any], note: Path, progress: Progress
    ) -> ArtifactView:
        """Raises NotFound if there is no such upload any more."""
        from windlass.wire.artifacts import ArtifactView

        there = {part["number"]: part["digest"] for part in upload["parts"]}
        base, whole = f"/api/artifact-uploads/{upload['id']}", hashlib.sha256()
        size = source.stat().st_size
        part_size = part_bytes(size)
        for number, start in enumerate(range(0, size, part_size), 1):
            digest = hashlib.sha256()
            for piece in _pieces(source, start, part_size):
                digest.update(piece)
                whole.update(piece)
            if there.get(number) == digest.hexdigest():
                progress(min(part_size, size - start))
                continue
            chunks = partial(_pieces, source, start, part_size)
            self._transport.put(f"{base}/parts/{number}", partial(_made, chunks, progress))
        made = self._transport.post(f"{base}/complete", {"digest": whole.hexdigest()}, patience_s=_COMPLETING_S)
        note.unlink(missing_ok=True)
        return read(ArtifactView, {**made, "path": _clean(path)})

    def _note(self, source: Path, path: str) -> Path:
        """Where the id of the upload of this very file is remembered."""
        found = source.stat()
        facts = [self._client.url, self._base, path, str(source.absolute()), found.st_size, found.st_mtime_ns]
        name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
        return self._client.home / "uploads" / name

    def _resumed(self, note: Path) -> dict[str, Any] | None:
        if not note.exists():
            return None
        try:
            found: dict[str, Any] = self._transport.get(f"/api/artifact-uploads/{quote(note.read_text(), safe='')}")
        except (NotFound, InvalidInput):
            return None
        return found

    def _begun(self, note: Path, path: str) -> dict[str, Any]:
        made: dict[str, Any] = self._transport.post(f"{self._base}/artifact-uploads", {"path": path})
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(made["id"])
        return made


class _Told:
    """How much progress was told."""

    def __init__(self, progress: Progress) -> None:
        self.sum = 0
        self._progress = progress

    def more(self, size: int) -> None:
        self.sum += size
        self._progress(size)


def _clean(path: str) -> str:
    """As the server has it."""
    return "/".join(part for part in path.split("/") if part not in ("", "."))


def part_bytes(size: int) -> int:
    """In parts of which a file is sent: larger ones when it would have more than the server takes. Pure."""
    least = -(-size // _MOST_PARTS)
    return max(PART_BYTES, -(-least // _PIECE_BYTES) * _PIECE_BYTES)


def _hash(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _within(folder: Path, path: str) -> Path:
    """A server's word is not taken for where files go."""
    target = (folder / path).resolve()
    if not target.is_relative_to(folder.resolve()):
        raise WindlassError(f"the server sent a file for '{path}', which is outside '{folder}'")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _pieces(source: Path, start: int = 0, size: int | None = None) -> Iterator[bytes]:
    with source.open("rb") as file:
        file.seek(start)
        left = size
        while piece := file.read(_PIECE_BYTES if left is None else min(left, _PIECE_BYTES)):
            left = None if left is None else left - len(piece)
            yield piece


def _made(chunks: Callable[[], Iterator[bytes]], progress: Progress) -> Iterator[bytes]:
    return _reported(chunks(), progress)


def _reported(pieces: Iterator[bytes], progress: Progress) -> Iterator[bytes]:
    """A try that is made again takes back what the one before has said."""
    sent = 0
    finished = False
    try:
        for piece in pieces:
            yield piece
            sent += len(piece)
            progress(len(piece))
        finished = True
    finally:
        if not finished:
            progress(-sent)
