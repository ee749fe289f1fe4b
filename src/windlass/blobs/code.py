"""Code snapshots for engines: everything a snapshot needs, brought into a folder that nodes can see."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from windlass.blobs.contract import Blobs
from windlass.blobs.local import LocalBlobs
from windlass.blobs.snapshots import snapshot_contents
from windlass.core.errors import InvalidInput, LaunchFailed, NotFound

_AT_ONCE = 16


class BlobCode:
    """The engines' `CodeStore` over any store of blobs."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def lay_in(self, digest: str, folder: Path) -> None:
        if isinstance(self._blobs, LocalBlobs) and _same(self._blobs.root, folder):
            return  # it lies there already
        here = LocalBlobs(folder)
        try:
            self._fetch([digest], here)
            self._fetch(here.missing(snapshot_contents(here, digest)), here)
        except (NotFound, InvalidInput) as error:
            raise LaunchFailed(f"code snapshot {digest[:12]} is incomplete: {error.message}") from error

    def _fetch(self, digests: Sequence[str], here: LocalBlobs) -> None:
        """Each is verified and appears whole, so that a fetch that was interrupted is just repeated."""
        wanted = here.missing(digests)
        if len(wanted) < 2:
            for digest in wanted:
                self._fetch_one(digest, here)
            return
        with ThreadPoolExecutor(min(_AT_ONCE, len(wanted)), thread_name_prefix="code") as pool:
            jobs = [pool.submit(self._fetch_one, name, here) for name in wanted]
            try:
                for job in jobs:
                    job.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _fetch_one(self, digest: str, here: LocalBlobs) -> None:
        here.put_pieces(digest, self._blobs.stream(digest))


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()
