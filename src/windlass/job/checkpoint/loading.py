"""Reading a checkpoint into live tensors of whatever plan: `Contents`.

Whoever calls it has verified the files; that has brought what is left to be read into the page cache.
"""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import pickle
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import ReadItem

from windlass.blobs.encoding import is_plain, read_plain
from windlass.core.errors import InvalidInput
from windlass.job.checkpoint.folder import METADATA
from windlass.job.checkpoint.placing import Stretch
from windlass.job.checkpoint.state import RANK

_POPULATE_READ = 22  # MADV_POPULATE_READ, which Python has no name for


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Of a tensor, from one file. `start`: of its bytes there, if they lie as they do in the target. `is_held`: that
    holds something now."""

    file: str
    start: int | None
    target: Tensor
    item: ReadItem
    is_held: bool = True

    @property
    def name(self) -> str:
        return self.item.dest_index.fqn

    def stretch(self) -> Stretch | None:
        """None if there are no bytes."""
        assert self.start is not None
        if not self.target.nbytes:
            return None
        return Stretch(start=self.start, target=self.target.view(-1).view(torch.uint8), is_held=self.is_held)


class Contents:
    """One checkpoint's folder, opened; or, with its `metadata` given, what `hold` is told is in it."""

    def __init__(self, path: Path, *, metadata: bytes | None = None) -> None:
        self.path = path
        index = read_plain(path, METADATA, os.environ) if metadata is None else metadata
        self.metadata: Metadata = pickle.loads(index)
        self._files: dict[str, Tensor] = {}
        self._maps: dict[str, mmap.mmap] = {}
        self._chunks = {
            (name, tuple(chunk.offsets)): (tuple(chunk.sizes), saved.properties.dtype)
            for name, saved in self.metadata.state_dict_metadata.items()
            if isinstance(saved, TensorStorageMetadata)
            for chunk in saved.chunks
        }

    @property
    def shapes(self) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Of every tensor, as a whole."""
        saved = self.metadata.state_dict_metadata
        return {n: (s.size, s.properties.dtype) for n, s in saved.items() if isinstance(s, TensorStorageMetadata)}

    def blob_file(self, rank: int) -> str | None:
        """The name of the file that `blob` reads."""
        info = self.metadata.storage_data.get(MetadataIndex(f"{RANK}{rank}", (0,)))
        return None if info is None else cast(str, info.relative_path)

    def blob(self, rank: int) -> Mapping[str, Any] | None:
        """What `TrainingState.rest` was on that rank."""
        name = f"{RANK}{rank}"
        if name not in self.metadata.state_dict_metadata:
            return None
        stored = self._stored(MetadataIndex(name, (0,)))
        return cast(Mapping[str, Any], pickle.loads(stored.numpy().tobytes()))  # ends before the padding does

    def read_tensors(self, into: dict[str, Tensor]) -> None:
        """Fill them. InvalidInput if the checkpoint lacks one, or has it in another shape."""
        self.fill(self.parts(into))

    def parts(self, into: dict[str, Tensor]) -> list[Part]:
        """What is to be read for these tensors. Raises as `read_tensors` does."""
        self._check(into)
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(into, self.metadata, is_coordinator=True)
        return [self._part(item, planner.resolve_tensor(item).detach()) for item in planner.create_local_plan().items]

    @torch.no_grad()
    def fill(self, parts: Iterable[Part]) -> None:
        for part in parts:
            stored = self._stored(part.item.storage_index)
            part.target.copy_(narrow_tensor_by_index(stored, part.item.storage_offsets, part.item.lengths))

    def _part(self, item: ReadItem, target: Tensor) -> Part:
        info = self.metadata.storage_data[item.storage_index]
        shape, dtype = self._chunks[(item.storage_index.fqn, tuple(item.storage_index.offset or ()))]
        start = getattr(info, "data_start", None)
        stored = torch.empty(shape, dtype=dtype, device="meta")
        narrowed = narrow_tensor_by_index(stored, item.storage_offsets, item.lengths)
        as_it_lies = (
            narrowed.is_contiguous()
            and target.is_contiguous()
            and (target.dtype, target.shape) == (dtype, narrowed.shape)
            and target.device.type in ("cpu", "cuda")
        )
        start = start + narrowed.storage_offset() * dtype.itemsize if start is not None and as_it_lies else None
        return Part(file=info.relative_path, start=start, target=target, item=item)

    def hold(self, files: Mapping[str, Tensor]) -> None:
        """Take these bytes for the files of these names."""
        self._files.update(files)

    def _check(self, into: Mapping[str, Tensor]) -> None:
        for name, tensor in into.items():
            saved = self.metadata.state_dict_metadata.get(name)
            if not isinstance(saved, TensorStorageMetadata):
                raise InvalidInput(
                    f"{self.path.name} has no tensor {name!r}: it was saved from another model or optimizer; "
                    "give this run another folder for its checkpoints, or the model that it began with"
                )
            if tuple(saved.size) != tuple(tensor.shape):
                raise InvalidInput(
                    f"{self.path.name} has {name!r} with the shape {tuple(saved.size)}, "
                    f"and the model has it with {tuple(tensor.shape)}: it was saved from another model; "
                    "give this run another folder for its checkpoints, or the model that it began with"
                )

    def _stored(self, index: MetadataIndex) -> Tensor:
        assert index.offset is not None
        info = self.metadata.storage_data[index]
        shape, dtype = self._chunks[(index.fqn, tuple(index.offset))]
        start = getattr(info, "data_start", None)
        whole = self._file(info.relative_path)
        self._bring(info.relative_path, info.offset, info.length)
        if start is None:  # not written by us
            record = whole[info.offset : info.offset + info.length].numpy().tobytes()
            return cast(Tensor, torch.load(io.BytesIO(record), map_location="cpu", weights_only=True))
        length = dtype.itemsize * torch.Size(shape).numel()
        if length == 0:
            return torch.empty(shape, dtype=dtype)
        return whole[start : start + length].view(dtype).view(shape)

    def _file(self, name: str) -> Tensor:
        if name not in self._files and not is_plain(self.path, name):
            self._files[name] = torch.frombuffer(read_plain(self.path, name, os.environ), dtype=torch.uint8)
        if name not in self._files:
            with (self.path / name).open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of memory that cannot be written; nobody does
                self._files[name] = torch.frombuffer(mapped, dtype=torch.uint8)
            self._maps[name] = mapped
        return self._files[name]

    def _bring(self, name: str, start: int, length: int) -> None:
        """So much of a file that is mapped, at once: a fault for every page would cost more than the copy."""
        if name in self._maps and length:
            first = start // mmap.PAGESIZE * mmap.PAGESIZE
            with contextlib.suppress(OSError):  # an older kernel
                self._maps[name].madvise(_POPULATE_READ, first, start + length - first)
