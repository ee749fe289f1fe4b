"""Host memory that a training process copies its state into and its saver process writes from: the same pages.

Made once and used again for every save. An anonymous file rather than /dev/shm, which containers keep small.
"""

from __future__ import annotations

import mmap
import os

import torch
from torch import Tensor


class Arena:
    def __init__(self, size_bytes: int, *, pinned: bool) -> None:
        self.size_bytes = max(size_bytes, mmap.PAGESIZE)
        self.fd = os.memfd_create("windlass-checkpoint", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.size_bytes)
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


def _register(memory: Tensor) -> bool:
    """Lock the pages for the GPU's copy engine. False: more than may be locked; copies are slower then."""
    status = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)  # type: ignore[no-untyped-call]
    return int(status) == 0
