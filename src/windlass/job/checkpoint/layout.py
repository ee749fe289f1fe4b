"""Where every tensor of a state lies: in which rank's file, and at which byte of its arena.

An arena is the image of the rank's files, headers and all, so a save is: copy tensors to their places, write the image.
Made once by all ranks together, and again only when the structure of the state has changed.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.utils import find_state_dict_object
from torch.distributed.tensor import DTensor

from windlass.job.checkpoint.arena import Arena
from windlass.job.checkpoint.disk import BLOCK
from windlass.job.checkpoint.memory import digest_of
from windlass.job.checkpoint.peers import Peers
from windlass.job.checkpoint.records import Record, record_of
from windlass.job.checkpoint.state import MODEL
from windlass.job.session import session

_ALIGNMENT = 64
_MOST_SAMPLES = 64
_ALIKE = 1e-2
_TRAINED_APART = (
    "ranks have copies of {name!r} that differ: they train apart, and a checkpoint has one copy, that of the first; "
    "save when they have been averaged, or give each rank a folder of its own"
)
# So many files per rank, that several threads can hash and write them at once, unless they would be small or huge.
_FILES = 8
_LEAST_FILE_BYTES, _MOST_FILE_BYTES = 16 << 20, 1 << 30

State = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    index: MetadataIndex
    file: str
    file_offset: int  # of the record
    arena_offset: int  # of the tensor's bytes
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class FileImage:
    name: str
    start: int  # in the arena
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """From where to where a tensor's bytes are to be copied."""

    name: str
    source: Tensor
    target: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Of one rank. `metadata` is DCP's own file, on rank 0; `digest` is that of it, on every rank."""

    signature: Any
    digest: str
    places: tuple[Place, ...]
    files: tuple[FileImage, ...]
    metadata: bytes | None

    @property
    def arena_bytes(self) -> int:
        return self.files[-1].start + self.files[-1].size_bytes if self.files else 0

    def prepare(self, arena: Arena) -> None:
        """Everything but the tensors' bytes, which is the same for every save."""
        for place in self.places:
            arena.put(place.arena_offset - len(place.record.header), place.record.header)
            arena.put(place.arena_offset + place.record.data_bytes, place.record.footer)

    def moves(self, state: State, arena: Arena) -> list[Move]:
        found, tensors = [], dict(state)
        for place in self.places:
            tensor = find_state_dict_object(tensors, place.index)
            local = tensor.detach()
            if local.numel():
                target = arena.view(place.arena_offset, local.shape, local.dtype)
                found.append(Move(name=place.index.fqn, source=local, target=target))
        return found


def signature_of(state: State) -> Any:
    """Equal for states that one layout serves."""
    return tuple((name, tuple(tensor.shape), tensor.dtype, _division(tensor)) for name, tensor in state.items())


def build_layout(state: State, peers: Peers) -> Layout:
    """Every rank calls it. What several ranks have alike is written by one of them, evenly divided; buffers by the
    first that has them, whose statistics are those that count, and so is everything where ranks have trained apart."""
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(state), is_coordinator=peers.rank == 0)
    copies = {name: is_buffer(name, tensor) for name, tensor in state.items() if not isinstance(tensor, DTensor)}
    told: list[tuple[SavePlan, dict[str, bool], dict[str, float]]]
    told = peers.gather((planner.create_local_plan(), copies, samples_of(state)))
    apart = differing([samples for _, _, samples in told])
    if apart is not None and peers.rank == 0:
        session().alert("checkpoint-apart", _TRAINED_APART.format(name=apart))
    of_first = {name for _, theirs, _ in told for name, buffer in theirs.items() if buffer or apart is not None}
    plans = of_the_first([plan for plan, _, _ in told], of_first)
    # Every rank reckons the same from the same plans: cheaper than to send each what rank 0 has found.
    plans, metadata = planner.create_global_plan(plans)
    places, files = _arrange(plans[peers.rank], peers.rank)
    infos: list[dict[MetadataIndex, _StorageInfo]] = peers.gather({place.index: _info(place) for place in places})
    rendered = _render(metadata, infos) if peers.rank == 0 else None
    return Layout(
        signature=signature_of(state),
        digest=peers.from_first(digest_of(rendered or b"")),
        places=places,
        files=files,
        metadata=rendered,
    )


def is_buffer(name: str, tensor: Tensor) -> bool:
    return name.startswith(MODEL) and not isinstance(tensor, nn.Parameter)


def samples_of(state: State) -> dict[str, float]:
    """A number of each of some parameters, which ranks that have a copy of it must agree on."""
    copies = [
        (name, tensor.detach())
        for name, tensor in state.items()
        if isinstance(tensor, nn.Parameter) and not isinstance(tensor, DTensor) and tensor.numel()
    ]
    some = copies[:: -(-len(copies) // _MOST_SAMPLES) or 1]
    picked = {name: tensor.flatten()[tensor.numel() // 2] for name, tensor in some}
    return {name: float(one.abs() if one.is_complex() else one.to(torch.float32)) for name, one in picked.items()}


def differing(samples: Sequence[Mapping[str, float]]) -> str | None:
    """A parameter of which two ranks have copies that differ by more than the order of sums can make."""
    first: dict[str, float] = {}
    for mine in samples:
        for name, value in mine.items():
            known = first.setdefault(name, value)
            if abs(value - known) > _ALIKE * max(abs(value), abs(known), _ALIKE):  # false for what is no number
                return name.removeprefix(MODEL)
    return None


def of_the_first(plans: Sequence[SavePlan], names: Collection[str]) -> list[SavePlan]:
    """Of these tensors only the items of the first rank that has them."""
    taken: dict[MetadataIndex, int] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            if item.index.fqn in names:
                taken.setdefault(item.index, rank)
    return [
        dataclasses.replace(plan, items=[item for item in plan.items if taken.get(item.index, rank) == rank])
        for rank, plan in enumerate(plans)
    ]


def _arrange(plan: SavePlan, rank: int) -> tuple[tuple[Place, ...], tuple[FileImage, ...]]:
    places: list[Place] = []
    files: list[FileImage] = []
    records = [_record(item) for item in plan.items]
    most = sum(record.size_bytes for record in records) // _FILES
    most = min(max(most, _LEAST_FILE_BYTES), _MOST_FILE_BYTES)
    start = at = 0  # of the current file in the arena; in the current file
    for item, record in zip(plan.items, records, strict=True):
        if at and at + record.size_bytes > most:
            files.append(FileImage(name=_file_name(rank, len(files)), start=start, size_bytes=_up(at, BLOCK)))
            start, at = start + files[-1].size_bytes, 0
        places.append(
            Place(
                index=item.index,
                file=_file_name(rank, len(files)),
                file_offset=at,
                arena_offset=start + at + len(record.header),
                record=record,
            )
        )
        at = _up(at + record.size_bytes, _ALIGNMENT)
    if at:
        files.append(FileImage(name=_file_name(rank, len(files)), start=start, size_bytes=_up(at, BLOCK)))
    return tuple(places), tuple(files)


def _record(item: WriteItem) -> Record:
    data = item.tensor_data
    assert data is not None, f"{item.index.fqn} is no tensor"
    return record_of(tuple(data.chunk.sizes), data.properties.dtype)


def _file_name(rank: int, number: int) -> str:
    return f"__{rank}_{number}.distcp"


def _info(place: Place) -> _StorageInfo:
    info = _StorageInfo(place.file, place.file_offset, place.record.size_bytes)
    # For ourselves: where the bytes begin, so that they can be read without unpacking the record. Torch ignores it.
    info.data_start = place.file_offset + len(place.record.header)  # type: ignore[attr-defined]
    return info


def _render(metadata: Metadata, infos: list[dict[MetadataIndex, _StorageInfo]]) -> bytes:
    storage = {index: info for part in infos for index, info in part.items()}
    # Plain `load` wants to know how names were made from nested dictionaries: "model.x" from {"model": {"x": ...}}.
    nesting = {name: tuple(name.split(".", 1)) for name in metadata.state_dict_metadata}
    whole = dataclasses.replace(
        metadata, planner_data=nesting, storage_data=storage, storage_meta=StorageMeta(), version=CURRENT_DCP_VERSION
    )
    buffer = io.BytesIO()
    pickle.dump(whole, buffer)
    return buffer.getvalue()


def _division(tensor: Tensor) -> Any:
    return (tensor.placements, tensor.device_mesh) if isinstance(tensor, DTensor) else None


def _up(value: int, to: int) -> int:
    return -(-value // to) * to


def pages_of(blob_bytes: int) -> int:
    """Room for what is not a tensor: some more than it takes now, so that it can grow without a new layout."""
    return _up(blob_bytes * 3 // 2 + 1024, 16 * BLOCK)


def identity_of(state: State) -> list[tuple[int, int]]:
    """Equal for the very same tensors at the same places, as long as somebody holds them. Quicker than signatures."""
    return [(id(tensor), _local(tensor).data_ptr()) for tensor in state.values()]


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor
