"""A tensor's record in a DCP file: what `torch.save` writes before and after the bytes of a tensor.

It depends on type and shape alone, so it is made once, and the bytes go between without passing through `torch.save`.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch.serialization import skip_data


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    header: bytes
    footer: bytes
    data_bytes: int

    @property
    def size_bytes(self) -> int:
        return len(self.header) + self.data_bytes + len(self.footer)


@functools.lru_cache(maxsize=10_000)
def record_of(shape: tuple[int, ...], dtype: torch.dtype) -> Record:
    tensor = torch.empty(shape, dtype=dtype)  # never touched, so it takes no memory
    fd = os.memfd_create("windlass-record")
    try:
        path = f"/proc/self/fd/{fd}"
        with skip_data():  # leaves a hole where the bytes would be
            torch.save(tensor, path)
        reader: Any = torch._C.PyTorchFileReader(path)
        start: int = reader.get_record_offset("data/0")
        end = start + tensor.nbytes
        size = os.fstat(fd).st_size
        return Record(header=os.pread(fd, start, 0), footer=os.pread(fd, size - end, end), data_bytes=tensor.nbytes)
    finally:
        os.close(fd)
