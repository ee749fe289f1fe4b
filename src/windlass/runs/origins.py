"""What comes with a submission besides its spec: the code, and where it was submitted from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.blobs.contract import Blobs
from windlass.blobs.snapshots import missing_blobs
from windlass.core.errors import InvalidInput
from windlass.core.quantities import format_count
from windlass.wire import runs as wire


def check_code(blobs: Blobs, digest: str | None) -> None:
    """Raises InvalidInput unless all of the snapshot is here."""
    if digest is None:
        return
    if not blobs.has(digest):
        raise InvalidInput(f"code snapshot {digest[:12]} is not here", hint="send it to /api/snapshots first")
    if missing := missing_blobs(blobs, digest):
        lacking = format_count(len(missing), "file")
        raise InvalidInput(f"code snapshot {digest[:12]} lacks {lacking}", hint="send them to /api/blobs")


def keep_origin(blobs: Blobs, origin: wire.Origin) -> dict[str, Any]:
    """As kept in the record: the diff moves to a blob, so that lists of runs stay light."""
    data = origin.model_dump(mode="json")
    if origin.git and origin.git.diff:
        data["git"]["diff_digest"] = blobs.put(origin.git.diff.encode("utf-8", "replace"))
    if data["git"]:
        data["git"]["diff"] = None
    return data


def copied_origin(origin: Mapping[str, Any], asker: wire.Asker | None) -> dict[str, Any]:
    """Of a copy: the code and the environment are the original's, who asked for it need not be. Nobody known: whoever
    submitted the original, so that limits for each user hold for copies too."""
    return {**origin, **(asker.model_dump() if asker is not None and asker.user else {})}
