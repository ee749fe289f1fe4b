"""Going on from the copies that ranks before us left in the memory of their nodes: `find_common`, `recall`.

All ranks must have the same one, and be as many, in the same plan, as those that made it. What one node lacks of it
(of tensors that all ranks have alike each copy holds a part) comes from the others.
"""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from windlass.core.errors import InvalidInput
from windlass.core.manifest import Manifest, SaveReason
from windlass.job.checkpoint.folder import Saved
from windlass.job.checkpoint.loading import Contents
from windlass.job.checkpoint.memory import MemoryCopy, NodeMemory
from windlass.job.checkpoint.peers import Peers
from windlass.job.checkpoint.state import TrainingState
from windlass.job.checkpoint.sums import damage_of
from windlass.job.session import session

FORMAT = "memory"  # of a `Saved` that is no folder


def find_common(memory: NodeMemory | None, state: TrainingState, peers: Peers) -> MemoryCopy | None:
    """This rank's part of the newest copy that every rank has. Every rank calls it."""
    mine: dict[tuple[int, str, str], MemoryCopy] = {}
    for copy in memory.copies(peers.rank) if memory is not None else ():
        if (copy.run_id, copy.world_size, copy.plan) == (session().run_id, peers.world_size, state.plan):
            mine[copy.identity] = copy
    everyone = [set(identities) for identities in peers.gather(list(mine))]
    common = set.intersection(*everyone)
    return mine[max(common)] if common else None


def is_whole(copy: MemoryCopy, memory: NodeMemory, peers: Peers) -> bool:
    """Whether each rank's bytes are those that it had copied. If not, no rank has this copy any more."""
    threads = max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    problems = [text for text in peers.gather(damage_of(memory, copy, threads=threads)) if text]
    if not problems:
        return True
    memory.drop(copy.rank, copy.slot)
    if peers.rank == 0:
        session().alert("checkpoint-damaged", f"the copy in memory is not used: {problems[0]}", step=copy.step)
    return False


def recall(copy: MemoryCopy, memory: NodeMemory, state: TrainingState, peers: Peers) -> bool:
    """Give the live objects the state of the copy. False: it does not fit them, and nothing was changed."""
    metadata = peers.from_first(memory.layout(copy.layout) if peers.rank == 0 else None)
    if metadata is None:
        return False
    contents = Contents(memory.folder, metadata=metadata)
    needed, problem = _needed(contents, state)
    problems = [text for text in peers.gather(problem) if text]
    if problems:
        state.undo_room()
        if peers.rank == 0:
            session().alert("checkpoint-memory", f"the copy in memory is of no use here: {problems[0]}", step=copy.step)
        return False
    contents.hold(_collect(copy, memory, needed, peers))
    contents.read_tensors(state.tensors())
    blobs: list[Mapping[str, Any]] = [pickle.loads(blob) for blob in peers.gather(_blob(contents, peers.rank))]
    state.give_back(lambda rank: blobs[rank], peers.world_size)
    return True


def as_saved(copy: MemoryCopy, memory: NodeMemory) -> Saved:
    manifest = Manifest(
        run_id=copy.run_id,
        attempt=copy.attempt,
        step=copy.step,
        created_at=copy.created_at,
        reason=SaveReason.INTERVAL,
        world_size=copy.world_size,
        plan=copy.plan,
        files=(),
        format=FORMAT,
        metrics=copy.metrics,
    )
    return Saved(path=memory.arena(copy.rank, copy.slot), manifest=manifest)


def _needed(contents: Contents, state: TrainingState) -> tuple[set[str], str | None]:
    """The files that this rank has to read, or why it cannot."""
    try:
        state.make_room(contents.shapes)
        return {part.file for part in contents.parts(state.tensors())}, None
    except InvalidInput as error:
        return set(), str(error)


def _collect(copy: MemoryCopy, memory: NodeMemory, needed: set[str], peers: Peers) -> dict[str, Tensor]:
    """Those of this rank, of others on the same node, and what remains from other nodes, one after the other."""
    found = _tensors(memory.read(copy))
    for rank in range(peers.world_size):
        for other in memory.copies(rank):
            if other.identity == copy.identity and needed.intersection(name for name, _, _ in other.files):
                found |= _tensors(memory.read(other))
    sizes: dict[str, int] = {name: size for name, _, size in copy.files}
    everyone = peers.gather((sizes, sorted(needed - found.keys())))
    wanted = {name for _, names in everyone for name in names}
    for rank, (theirs, _) in enumerate(everyone):
        for name, size in theirs.items():
            if name in wanted:
                content = found[name].clone() if rank == peers.rank else torch.empty(size, dtype=torch.uint8)
                peers.send(content, rank)
                if name in needed:
                    found.setdefault(name, content)
    return found


def _tensors(files: Mapping[str, memoryview]) -> dict[str, Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of memory that cannot be written; nobody does
        return {name: torch.frombuffer(content, dtype=torch.uint8) for name, content in files.items()}


def _blob(contents: Contents, rank: int) -> bytes:
    return pickle.dumps(contents.blob(rank))
