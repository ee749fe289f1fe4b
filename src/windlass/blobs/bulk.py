"""Many blobs at once. A bucket answers in tens of milliseconds, so a snapshot of a thousand files must not wait for
them one after another; a folder is quickest in order.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

from windlass.blobs.contract import Blobs
from windlass.blobs.local import LocalBlobs

_AT_ONCE = 16
_SMALL_BYTES = 1 << 20  # what waits for its turn is in memory; larger ones go by themselves


def put_many(blobs: Blobs, items: Iterable[tuple[str, int, BinaryIO]]) -> None:
    """Each is digest, size and content; a content is read before the next is asked for. Raises what the first that
    failed raised; those before it may be there, as after an upload that was interrupted."""
    if isinstance(blobs, LocalBlobs):
        for digest, _, stream in items:
            blobs.put_stream(digest, stream)
        return
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="blobs") as pool:
        waiting: deque[Future[None]] = deque()
        try:
            for digest, size, stream in items:
                if size > _SMALL_BYTES:
                    blobs.put_stream(digest, stream)
                    continue
                waiting.append(pool.submit(blobs.put_stream, digest, io.BytesIO(stream.read())))
                if len(waiting) >= 2 * _AT_ONCE:
                    waiting.popleft().result()
            for job in waiting:
                job.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def get_many(blobs: Blobs, digests: Sequence[str]) -> Iterator[bytes]:
    """Their contents, in order; a few are fetched ahead."""
    if isinstance(blobs, LocalBlobs) or len(digests) < 2:
        yield from map(blobs.get, digests)
        return
    with ThreadPoolExecutor(min(_AT_ONCE, len(digests)), thread_name_prefix="blobs") as pool:
        ahead: deque[Future[bytes]] = deque()
        try:
            for digest in digests:
                ahead.append(pool.submit(blobs.get, digest))
                if len(ahead) >= _AT_ONCE:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
