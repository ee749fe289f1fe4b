"""What can be done with artifacts. A file is claimed, placed and named, in this order: dying in between leaves a blob
that nobody sees, and that is collected after a while.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import BinaryIO

from windlass.artifacts import store, uploadstore
from windlass.artifacts.paths import clean_path, file_path
from windlass.artifacts.types import Artifact, Content, Entry, Keeping
from windlass.blobs.contract import Blobs, Intake
from windlass.core.clock import Clock
from windlass.core.errors import Conflict, NotFound, Unavailable
from windlass.db.database import Database

log = logging.getLogger(__name__)

_PIECE_BYTES = 1 << 20
_AT_ONCE = 200


class ArtifactService:
    """For any number of threads, and of servers on one database."""

    def __init__(self, *, db: Database, clock: Clock, blobs: Blobs, keeping: Keeping | None = None) -> None:
        """`blobs` is a room that nobody else uses: what artifacts do not name is deleted there."""
        self._db = db
        self._clock = clock
        self._blobs = blobs
        self._keeping = keeping or Keeping()

    # ---- writing -----------------------------------------------------------------------------------------------------

    def intake(self) -> Intake:
        """To write a file to, and hand over to `put`. The caller closes it."""
        return self._blobs.intake()

    def put(self, path: str, intake: Intake) -> Artifact:
        """When this returns, the file is on disk and has its name; before, nobody sees anything of it. A file that is
        there is replaced. Raises Conflict where a folder has that name, or a file is where a folder should be."""
        path, claimed_at = file_path(path), self._clock.now()
        artifact = self.name(path, self.place(intake), intake.size_bytes, claimed_at=claimed_at)
        log.debug("artifact %s is %s, %d bytes", path, artifact.digest, artifact.size_bytes)
        return artifact

    def put_bytes(self, path: str, data: bytes) -> Artifact:
        with closing(self.intake()) as intake:
            intake.write(data)
            return self.put(path, intake)

    def put_stream(self, path: str, stream: BinaryIO) -> Artifact:
        with closing(self.intake()) as intake:
            while piece := stream.read(_PIECE_BYTES):
                intake.write(piece)
            return self.put(path, intake)

    def place(self, intake: Intake) -> str:
        """Its digest. It is kept for a while, for whoever names it."""
        digest = intake.seal()
        with self._db.write() as tx:
            store.claim_blob(tx, digest, intake.size_bytes, now=self._clock.now())
        # After the claim: before it, the one that is here might be on its way out.
        if not self._is_there(digest):
            intake.place()
        return digest

    def _is_there(self, digest: str) -> bool:
        """By asking: `has` may go by memory."""
        try:
            self._blobs.size(digest)
        except NotFound:
            return False
        return True

    def name(
        self,
        path: str,
        digest: str,
        size_bytes: int,
        *,
        claimed_at: float | None = None,
        upload_id: str | None = None,
    ) -> Artifact:
        """Name a blob that has been placed; `upload_id` is over with that. `claimed_at`: not after it was placed; None:
        it is one that something points to already."""
        artifact = Artifact(path=path, digest=digest, size_bytes=size_bytes, created_at=self._clock.now())
        with self._db.write() as tx:
            if not store.put_file(tx, artifact) or not self._is_still_there(digest, claimed_at):
                raise Unavailable(f"'{path}' took too long to arrive", hint="send it again")
            if upload_id is not None:
                uploadstore.delete_upload(tx, upload_id, now=artifact.created_at)
        return artifact

    def _is_still_there(self, digest: str, claimed_at: float | None) -> bool:
        """Known to be, unless it was claimed so long ago that it may have been collected: then somebody else may have
        claimed it again, and not have placed it yet."""
        is_certain = claimed_at is None or claimed_at >= self._keeping.blobs_before(self._clock.now())
        return is_certain or self._is_there(digest)

    def delete(self, path: str) -> int:
        """A file, or a folder and all that is in it: how many files. None if there is nothing."""
        path = clean_path(path)
        with self._db.write() as tx:
            return store.delete_tree(tx, path, now=self._clock.now())

    # ---- reading -----------------------------------------------------------------------------------------------------

    def find(self, path: str) -> Entry | None:
        path = clean_path(path)
        with self._db.read() as tx:
            return store.load_entry(tx, path)

    def children(self, folder: str) -> list[Entry]:
        """What lies right in it, by name; nothing in what is no folder."""
        folder = clean_path(folder)
        with self._db.read() as tx:
            return store.load_children(tx, folder)

    def files_below(self, folder: str) -> list[Entry]:
        folder = clean_path(folder)
        with self._db.read() as tx:
            return store.load_files_below(tx, folder)

    def open(self, path: str) -> Content:
        """Raises NotFound, and Conflict for a folder."""
        entry = self.find(path)
        if entry is None:
            raise NotFound(f"there is no artifact '{path}'")
        if entry.is_dir:
            raise Conflict(f"'{path}' is a folder, not a file")
        assert entry.digest is not None
        assert entry.size_bytes is not None
        read = partial(self._read, entry.digest)
        return Content(name=entry.name, size_bytes=entry.size_bytes, tag=entry.digest, read=read)

    def get_bytes(self, path: str) -> bytes:
        """All of a small file."""
        content = self.open(path)
        return b"".join(content.read(0, content.size_bytes))

    def _read(self, digest: str, start: int, end: int) -> Iterator[bytes]:
        return self._blobs.stream(digest, start=start, end=end)

    # ---- clearing away -----------------------------------------------------------------------------------------------

    def collect(self) -> int:
        """Delete blobs that nobody has named for long, and what is left of uploads that were given up; how many blobs.
        Safe to break off anywhere, and to do from several servers at once."""
        now = self._clock.now()
        self._give_up_uploads(now)
        self._blobs.clear_intakes(self._keeping.blobs_before(now))
        before, count = self._keeping.blobs_before(now), 0
        while True:
            with self._db.read() as tx:
                digests = store.load_unnamed(tx, before=before, limit=_AT_ONCE)
            for digest in digests:
                count += self._collect_one(digest, before)
            if len(digests) < _AT_ONCE:
                return count

    def _collect_one(self, digest: str, before: float) -> bool:
        """Within the transaction: who claims it meanwhile waits, and finds that it has to be placed again. If the
        commit fails, a row without a blob is left, and goes the next time."""
        with self._db.write() as tx:
            if gone := store.forget_blob(tx, digest, before=before):
                self._blobs.delete(digest)
        return gone

    def _give_up_uploads(self, now: float) -> None:
        before = self._keeping.uploads_before(now)
        while True:
            with self._db.write() as tx:
                ids = uploadstore.load_given_up(tx, before=before, limit=_AT_ONCE)
                for upload_id in ids:
                    uploadstore.delete_upload(tx, upload_id, now=now)
            if len(ids) < _AT_ONCE:
                return
