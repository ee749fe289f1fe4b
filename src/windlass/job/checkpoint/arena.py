"""Host memory that a training process copies its state into and its saver process writes from: the same pages.

Made once and used again for every save. A file in the node's memory where there is one, so that the copy outlives this
process; else an anonymous one rather than /dev/shm, which containers keep small.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import torch
from torch import Tensor


class Arena:
    def __init__(self, size_bytes: int, *, pinned: bool, path: Path | None = None) -> None:
        """With `path`: in that file, which may be there already if it has the right size."""
        self.size_bytes = max(size_bytes, mmap.PAGESIZE)
        if path is None:
            self.fd = os.memfd_create("windlass-checkpoint", os.MFD_CLOEXEC)
            os.ftruncate(self.fd, self.size_bytes)
        else:
            self.fd = _open(path, self.size_bytes)
        self._memory = mmap.mmap(self.fd, self.size_bytes)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            try:
                self._memory.madvise(mmap.MADV_HUGEPAGE)
            except OSError:
                pass  # a kernel without them
        self.bytes: Tensor = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._pinned = pinned and _register(self.bytes)

    @property
    def is_pinned(self) -> bool:
        return self._pinned

    @property
    def memory(self) -> memoryview:
        return memoryview(self._memory)

    def view(self, start: int, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        length = dtype.itemsize * shape.numel()
        return self.bytes[start : start + length].view(dtype).view(shape)

    def put(self, start: int, content: bytes) -> None:
        self._memory[start : start + len(content)] = content

    def close(self) -> None:
        """Views of it must not be used any more; the pages live until the last of them and the saver are gone."""
        if self._pinned:
            self._pinned = False
            torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr())  # type: ignore[no-untyped-call]
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _open(path: Path, size_bytes: int) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # Room for all of it now: a page that cannot be had later would end the process without a word.
        os.posix_fallocate(fd, 0, size_bytes)
        if os.fstat(fd).st_size != size_bytes:
            raise OSError(f"{path} has {os.fstat(fd).st_size} bytes where {size_bytes} are wanted")
    except OSError:
        os.close(fd)
        path.unlink(missing_ok=True)
        raise
    return fd


def _register(memory: Tensor) -> bool:
    """Lock the pages for the GPU's copy engine. False: more than may be locked; copies are slower then."""
    status = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)  # type: ignore[no-untyped-call]
    return int(status) == 0
