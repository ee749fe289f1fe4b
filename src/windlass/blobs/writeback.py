"""Having the system write a file to the disk while more of it comes, so that little is left for the last `fsync`.

A convenience: it promises nothing, and where the system has no such call nothing happens.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

_WRITE = 2  # SYNC_FILE_RANGE_WRITE: begin, and wait for nothing


def begin_writing(handle: int, start: int, end: int) -> None:
    if call := _sync_file_range():
        call(handle, start, end - start, _WRITE)


@lru_cache(maxsize=1)
def _sync_file_range() -> Any:
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call
