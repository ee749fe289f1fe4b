"""Uploads in parts, in the database. Functions over an open transaction."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, delete, select, update

from windlass.artifacts.store import touch_blobs
from windlass.artifacts.tables import artifact_parts, artifact_uploads
from windlass.artifacts.types import Part, Upload
from windlass.core.storable import storable_text
from windlass.db.insertion import insert_or_replace


def put_upload(tx: Connection, upload: Upload) -> None:
    row = {"id": upload.id, "path": upload.path, "created_at": upload.created_at, "touched_at": upload.created_at}
    tx.execute(artifact_uploads.insert().values(**row))


def has_upload(tx: Connection, upload_id: str) -> bool:
    return tx.execute(select(artifact_uploads.c.id).where(_is(upload_id))).first() is not None


def load_upload(tx: Connection, upload_id: str, *, lock: bool = False) -> Upload | None:
    """With its parts in their order. `lock`: nobody else ends it, or adds to it, before this transaction is over."""
    query = select(artifact_uploads).where(_is(upload_id))
    row = tx.execute(query.with_for_update() if lock else query).first()
    if row is None:
        return None
    found = select(artifact_parts).where(artifact_parts.c.upload_id == row.id).order_by(artifact_parts.c.number)
    parts = [Part(number=part.number, digest=part.digest, size_bytes=part.size_bytes) for part in tx.execute(found)]
    return Upload(id=row.id, path=row.path, created_at=row.created_at, parts=parts)


def put_part(tx: Connection, upload_id: str, part: Part, *, now: float) -> bool:
    """In place of a part with that number. False if there is no such upload any more."""
    touched = update(artifact_uploads).where(_is(upload_id)).values(touched_at=now)
    if tx.execute(touched).rowcount == 0:
        return False
    key = {"upload_id": upload_id, "number": part.number}
    insert_or_replace(tx, artifact_parts, {**key, "digest": part.digest, "size_bytes": part.size_bytes})
    touch_blobs(tx, [part.digest], now=now)
    return True


def delete_upload(tx: Connection, upload_id: str, *, now: float) -> bool:
    upload_id = storable_text(upload_id)
    digests = select(artifact_parts.c.digest).where(artifact_parts.c.upload_id == upload_id)
    released = tx.execute(digests).scalars().all()
    tx.execute(delete(artifact_parts).where(artifact_parts.c.upload_id == upload_id))
    gone = tx.execute(delete(artifact_uploads).where(artifact_uploads.c.id == upload_id)).rowcount == 1
    touch_blobs(tx, released, now=now)
    return gone


def load_given_up(tx: Connection, *, before: float, limit: int) -> Sequence[str]:
    """Uploads that nobody has added to since."""
    query = select(artifact_uploads.c.id).where(artifact_uploads.c.touched_at < before)
    return tx.execute(query.order_by(artifact_uploads.c.touched_at).limit(limit)).scalars().all()


def _is(upload_id: str) -> ColumnElement[bool]:
    """An id comes from outside: PostgreSQL would not even look for one with a NUL."""
    return artifact_uploads.c.id == storable_text(upload_id)
