"""Names, folders and blobs of artifacts in the database. Functions over an open transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, exists, or_, select, tuple_, update

from windlass.artifacts.paths import ancestors, joined, split
from windlass.artifacts.tables import artifact_blobs, artifact_parts, artifacts
from windlass.artifacts.types import Artifact, Entry
from windlass.core.errors import Conflict
from windlass.db.insertion import insert_missing, insert_new, insert_or_replace

_AT_ONCE = 400  # names in one statement


def load_entry(tx: Connection, path: str) -> Entry | None:
    """What has this path; the root is always a folder."""
    if not path:
        return Entry(path="", is_dir=True)
    folder, name = split(path)
    query = select(artifacts).where(artifacts.c.folder == folder, artifacts.c.name == name)
    row = tx.execute(query).first()
    return _entry(row) if row else None


def load_children(tx: Connection, folder: str) -> list[Entry]:
    """What lies right in a folder, by name. Empty for what is no folder."""
    query = select(artifacts).where(artifacts.c.folder == folder).order_by(artifacts.c.name)
    return [_entry(row) for row in tx.execute(query)]


def load_files_below(tx: Connection, folder: str) -> list[Entry]:
    """All files in a folder and its folders, by path."""
    query = select(artifacts).where(_below(folder), artifacts.c.digest.is_not(None))
    return sorted((_entry(row) for row in tx.execute(query)), key=lambda entry: entry.path)


def put_file(tx: Connection, artifact: Artifact) -> bool:
    """Give a blob a name; whatever file had it is replaced. False if the blob was collected meanwhile: then the caller
    gives the transaction up. Raises Conflict where a folder has that name, or a file the name of a folder."""
    _put_folders(tx, artifact)
    replaced = _put_name(tx, artifact)
    released = [replaced.digest] if replaced and replaced.digest else []
    found = {digest: _touch(tx, digest, artifact.created_at) for digest in sorted({artifact.digest, *released})}
    return found[artifact.digest]


def _put_folders(tx: Connection, artifact: Artifact) -> None:
    """Looks again after it has made some: somebody may have put a file there at the same moment, or removed one."""
    folders = ancestors(artifact.path)
    while folders:
        there = dict(_load_held(tx, folders))
        if in_the_way := next((path for path in folders if there.get(path) is not None), None):
            raise Conflict(f"'{artifact.path}' cannot lie in '{in_the_way}', which is a file")
        missing = [path for path in folders if path not in there]
        if not missing:
            return
        insert_missing(
            tx, artifacts, [{**_key(path), "digest": None, "created_at": artifact.created_at} for path in missing]
        )


def _put_name(tx: Connection, artifact: Artifact) -> Entry | None:
    """The file that is replaced. A folder never is, though it may have come since one last looked."""
    sizes = {"digest": artifact.digest, "size_bytes": artifact.size_bytes, "created_at": artifact.created_at}
    is_file = and_(_at(artifact.path), artifacts.c.digest.is_not(None))
    while True:
        replaced = load_entry(tx, artifact.path)
        if replaced is not None and replaced.is_dir:
            raise Conflict(f"'{artifact.path}' is a folder")
        if replaced is None:
            if insert_new(tx, artifacts, {**_key(artifact.path), **sizes}):
                return None
        elif tx.execute(update(artifacts).where(is_file).values(**sizes)).rowcount:
            return replaced


def delete_tree(tx: Connection, path: str, *, now: float) -> int:
    """Remove a file, or a folder and all below it; how many files that was."""
    here = _at(path) if path else None
    if here is not None:  # who puts a file into it holds it: see `_load_held`
        tx.execute(select(artifacts.c.name).where(here).with_for_update()).first()
    tree = _below(path) if here is None else or_(here, _below(path))
    digests = tx.execute(select(artifacts.c.digest).where(tree, artifacts.c.digest.is_not(None))).scalars().all()
    tx.execute(delete(artifacts).where(tree))
    touch_blobs(tx, digests, now=now)
    return len(digests)


def claim_blob(tx: Connection, digest: str, size_bytes: int, *, now: float) -> None:
    """Before it is placed: from now on it is not collected for a while, named or not."""
    insert_or_replace(tx, artifact_blobs, {"digest": digest, "size_bytes": size_bytes, "touched_at": now})


def touch_blobs(tx: Connection, digests: Iterable[str], *, now: float) -> None:
    """Their time runs from now. In the order of their names, as everywhere: writers that meet take turns."""
    waiting = iter(sorted(set(digests)))
    while some := list(islice(waiting, _AT_ONCE)):
        tx.execute(update(artifact_blobs).where(artifact_blobs.c.digest.in_(some)).values(touched_at=now))


def load_unnamed(tx: Connection, *, before: float, limit: int) -> Sequence[str]:
    """Blobs that nothing points to, and nobody has touched since `before`."""
    query = select(artifact_blobs.c.digest).where(artifact_blobs.c.touched_at < before, _unnamed())
    return tx.execute(query.order_by(artifact_blobs.c.touched_at).limit(limit)).scalars().all()


def forget_blob(tx: Connection, digest: str, *, before: float) -> bool:
    """False if somebody has begun to use it. Else its row is held until the transaction ends, and nobody can claim it:
    the caller deletes the blob within."""
    query = delete(artifact_blobs).where(
        artifact_blobs.c.digest == digest, artifact_blobs.c.touched_at < before, _unnamed()
    )
    return tx.execute(query).rowcount == 1


def _touch(tx: Connection, digest: str, now: float) -> bool:
    query = update(artifact_blobs).where(artifact_blobs.c.digest == digest).values(touched_at=now)
    return tx.execute(query).rowcount == 1


def _unnamed() -> ColumnElement[bool]:
    named = exists().where(artifacts.c.digest == artifact_blobs.c.digest)
    awaited = exists().where(artifact_parts.c.digest == artifact_blobs.c.digest)
    return and_(~named, ~awaited)


def _load_held(tx: Connection, paths: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """(path, digest) of those that are there. They are held, so that nobody removes a folder just now."""
    keys = tuple_(artifacts.c.folder, artifacts.c.name).in_([split(path) for path in paths])
    query = select(artifacts.c.folder, artifacts.c.name, artifacts.c.digest).where(keys)
    for row in tx.execute(query.with_for_update(read=True)):
        yield joined(row.folder, row.name), row.digest


def _below(folder: str) -> ColumnElement[bool]:
    if not folder:
        return artifacts.c.name != ""
    # "0" comes right after "/": all names that begin with "folder/".
    inside = and_(artifacts.c.folder > f"{folder}/", artifacts.c.folder < f"{folder}0")
    return or_(artifacts.c.folder == folder, inside)


def _at(path: str) -> ColumnElement[bool]:
    folder, name = split(path)
    return and_(artifacts.c.folder == folder, artifacts.c.name == name)


def _key(path: str) -> dict[str, Any]:
    folder, name = split(path)
    return {"folder": folder, "name": name}


def _entry(row: Row[Any]) -> Entry:
    return Entry(
        path=joined(row.folder, row.name),
        is_dir=row.digest is None,
        size_bytes=row.size_bytes,
        digest=row.digest,
        created_at=row.created_at,
    )
