"""Reading a checkpoint into live tensors of whatever plan: `Contents`. Bytes go from the page cache to their place.

Whoever calls it has verified the files; that has brought them into the page cache.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from windlass.blobs.encoding import is_plain, read_plain
from windlass.core.errors import InvalidInput
from windlass.job.checkpoint.folder import METADATA
from windlass.job.checkpoint.state import RANK


class Contents:
    """One checkpoint's folder, opened; or, with its `metadata` given, what `hold` is told is in it."""

    def __init__(self, path: Path, *, metadata: bytes | None = None) -> None:
        self.path = path
        index = read_plain(path, METADATA, os.environ) if metadata is None else metadata
        self.metadata: Metadata = pickle.loads(index)
        self._files: dict[str, Tensor] = {}
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

    def blob(self, rank: int) -> Mapping[str, Any] | None:
        """What `TrainingState.rest` was on that rank."""
        name = f"{RANK}{rank}"
        if name not in self.metadata.state_dict_metadata:
            return None
        stored = self._stored(MetadataIndex(name, (0,)))
        return cast(Mapping[str, Any], pickle.loads(stored.numpy().tobytes()))  # ends before the padding does

    @torch.no_grad()
    def read_tensors(self, into: dict[str, Tensor]) -> None:
        """Fill them. InvalidInput if the checkpoint lacks one, or has it in another shape."""
        self._check(into)
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(into, self.metadata, is_coordinator=True)
        for item in planner.create_local_plan().items:
            part = narrow_tensor_by_index(self._stored(item.storage_index), item.storage_offsets, item.lengths)
            planner.resolve_tensor(item).detach().copy_(part)

    def files_for(self, into: dict[str, Tensor]) -> set[str]:
        """Names of the files that `read_tensors` would read. Raises as that does."""
        self._check(into)
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(into, self.metadata, is_coordinator=True)
        items = planner.create_local_plan().items
        return {self.metadata.storage_data[item.storage_index].relative_path for item in items}

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
                    f"and the model has it with {tuple(tensor.shape)}"
                )

    def _stored(self, index: MetadataIndex) -> Tensor:
        assert index.offset is not None
        info = self.metadata.storage_data[index]
        shape, dtype = self._chunks[(index.fqn, tuple(index.offset))]
        start = getattr(info, "data_start", None)
        whole = self._file(info.relative_path)
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
                # Populated: a fault for every page would cost more than the copy.
                mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE, prot=mmap.PROT_READ)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of memory that cannot be written; nobody does
                self._files[name] = torch.frombuffer(mapped, dtype=torch.uint8)
        return self._files[name]
