"""Uploads in parts: each part is a blob as soon as it has come, so an upload goes on where it broke off, at any
server. Completing one writes the file from its parts.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import closing

from windlass.artifacts import uploadstore
from windlass.artifacts.paths import file_path
from windlass.artifacts.service import ArtifactService
from windlass.artifacts.types import Artifact, Part, Upload
from windlass.blobs.contract import Blobs, Intake
from windlass.core.clock import Clock
from windlass.core.errors import InvalidInput, NotFound
from windlass.db.database import Database

MOST_PARTS = 10_000


class UploadService:
    def __init__(self, *, db: Database, clock: Clock, blobs: Blobs, artifacts: ArtifactService) -> None:
        self._db = db
        self._clock = clock
        self._blobs = blobs
        self._artifacts = artifacts

    def begin(self, path: str) -> Upload:
        """Its id is a secret that lets whoever knows it send parts."""
        now = self._clock.now()
        upload = Upload(id=secrets.token_hex(24), path=file_path(path), created_at=now, parts=())
        with self._db.write() as tx:
            uploadstore.put_upload(tx, upload)
        return upload

    def load(self, upload_id: str) -> Upload:
        with self._db.read() as tx:
            upload = uploadstore.load_upload(tx, upload_id)
        if upload is None:
            raise _no_upload(upload_id)
        return upload

    def check_awaited(self, upload_id: str, number: int) -> None:
        """Before a byte of a part is taken in: nobody fills the disk for an upload that there is not."""
        check_number(number)
        with self._db.read() as tx:
            if not uploadstore.has_upload(tx, upload_id):
                raise _no_upload(upload_id)

    def put_part(self, upload_id: str, number: int, intake: Intake) -> Part:
        """The same number again replaces what it had."""
        self.check_awaited(upload_id, number)  # what nobody waits for is not placed
        part = Part(number=number, digest=self._artifacts.place(intake), size_bytes=intake.size_bytes)
        with self._db.write() as tx:
            if not uploadstore.put_part(tx, upload_id, part, now=self._clock.now()):
                raise _no_upload(upload_id)
        return part

    def complete(
        self,
        upload_id: str,
        *,
        path: str | None = None,
        parts: Sequence[tuple[int, str]] = (),
        digest: str | None = None,
    ) -> Artifact:
        """Name the file that its parts make, in the order of their numbers. What the sender counts on is checked:
        `path` where it should go, `parts` as (number, digest), `digest` of the whole. Raises InvalidInput."""
        upload = self.load(upload_id)
        if path is not None and file_path(path) != upload.path:
            raise InvalidInput(f"upload '{upload_id}' is of '{upload.path}', not of '{path}'")
        _check_parts(upload, parts)
        if len(upload.parts) == 1:
            [only] = upload.parts
            _check_whole(upload, only.digest, digest)
            return self._artifacts.name(upload.path, only.digest, only.size_bytes, upload_id=upload_id)
        with closing(self._artifacts.intake()) as intake:
            for part in upload.parts:
                for piece in self._blobs.stream(part.digest):
                    intake.write(piece)
            _check_whole(upload, intake.seal(), digest)
            claimed_at = self._clock.now()
            placed = self._artifacts.place(intake)
            return self._artifacts.name(
                upload.path, placed, intake.size_bytes, claimed_at=claimed_at, upload_id=upload_id
            )

    def abort(self, upload_id: str) -> None:
        """Nothing happens if it is over."""
        with self._db.write() as tx:
            uploadstore.delete_upload(tx, upload_id, now=self._clock.now())


def _no_upload(upload_id: str) -> NotFound:
    return NotFound(f"there is no upload '{upload_id}'", hint="it was completed, aborted or given up")


def check_number(number: int) -> None:
    if not 1 <= number <= MOST_PARTS:
        raise InvalidInput(f"there is no part {number}: they are numbered from 1 to {MOST_PARTS}")


def _check_whole(upload: Upload, found: str, wanted: str | None) -> None:
    if wanted is not None and found != wanted:
        raise InvalidInput(f"the parts of '{upload.path}' make {found}, not {wanted}", hint="the file has changed")


def _check_parts(upload: Upload, wanted: Sequence[tuple[int, str]]) -> None:
    here = {part.number: part.digest for part in upload.parts}
    if not here:
        raise InvalidInput(f"upload '{upload.id}' has no parts yet")
    if missing := sorted(set(range(1, max(here) + 1)) - set(here)):
        raise InvalidInput(f"upload '{upload.id}' lacks part {missing[0]} of {max(here)}")
    for number, digest in wanted:
        if here.get(number) != digest:
            raise InvalidInput(f"part {number} of upload '{upload.id}' is {here.get(number)}, not {digest}")
    if wanted and len(wanted) != len(here):
        raise InvalidInput(f"upload '{upload.id}' has {len(here)} parts, not {len(wanted)}")
