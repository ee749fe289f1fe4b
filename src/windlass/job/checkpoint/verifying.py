"""All ranks together make sure that a checkpoint is what its manifest says, and fill their tensors meanwhile: `verify`.

Each file is read once, by a rank that needs it where there is one, and its bytes go to their places as they are hashed.
So tensors may hold bytes of a damaged checkpoint afterwards: whoever calls this has a way back.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field

from windlass.blobs.encoding import SUFFIX
from windlass.core.errors import InvalidInput
from windlass.core.manifest import PartFile
from windlass.job.checkpoint.folder import METADATA, Damaged, Saved, check_sizes, lost_is_damaged
from windlass.job.checkpoint.loading import Contents, Part
from windlass.job.checkpoint.peers import Peers
from windlass.job.checkpoint.placing import Lanes, Stretch
from windlass.job.checkpoint.reading import Intake, decide_way, read_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """Of a checkpoint by a rank. `blob_files`: those that it will unpickle something from."""

    parts: list[Part] = field(default_factory=list)
    blob_files: frozenset[str] = frozenset()


Needs = Callable[[Contents], Needed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A file that a rank reads. `is_needed`: for its own tensors; `is_shared`: for those of others too, which see the
    same folder."""

    file: PartFile
    is_needed: bool
    is_shared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`problems`: what each rank found wrong, if it did. `is_begun`: tensors that held something have changed, of any
    rank.

    If nobody found anything, `left` is still to be read from `contents`. None: it cannot be opened here, for want of a
    key perhaps, or does not fit.
    """

    problems: list[str | None]
    is_begun: bool
    contents: Contents | None = None
    left: list[Part] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """How a rank fared with its files. `left`: what remains to be read; `failure`: it cannot tell whether they are
    good."""

    left: list[Part]
    problem: str | None = None
    failure: OSError | None = None
    has_changed: bool = False


def verify(saved: Saved, peers: Peers, near: Sequence[int], needs: Needs) -> Outcome:
    """Every rank calls it. `near`: the ranks that see the same folder; `needs`: what this one is to read, or
    InvalidInput. OSError on all of them if one cannot tell."""
    first = peers.from_first(saved.manifest)
    problem: str | None = None
    failure: OSError | None = None
    contents: Contents | None = None
    needed: Needed | None = None
    if saved.manifest != first:
        problem = f"{saved.path.name} is another checkpoint on rank {peers.rank} than on the first"
    else:
        try:
            check_sizes(saved)
            contents = open_contents(saved)
            needed = needs(contents)
        except Damaged as damage:
            problem = str(damage)
        except InvalidInput:
            pass  # of another model, or without its key: if it is good, whoever reads from it next says so
        except OSError as error:
            failure = error
    parts, blob_files = (needed.parts, needed.blob_files) if needed is not None else ([], frozenset[str]())
    told = peers.gather((problem, _text(failure), {part.file for part in parts}, blob_files, near[0]))
    problems, failures, names, blobs, groups = map(list, zip(*told, strict=True))
    _fail_together(saved, failures, failure)
    if any(problems):
        return Outcome(problems=problems, is_begun=False)
    reading = _read(saved, decide_shares(saved.manifest.files, names, blobs, groups)[peers.rank], parts)
    read = peers.gather((reading.problem, _text(reading.failure), reading.has_changed))
    _fail_together(saved, [text for _, text, _ in read], reading.failure)
    problems, is_begun = [text for text, _, _ in read], any(changed for _, _, changed in read)
    if any(problems):  # without what was to be filled: whoever keeps this makes room for another one meanwhile
        return Outcome(problems=problems, is_begun=is_begun)
    left = None if needed is None else reading.left
    return Outcome(problems=problems, is_begun=is_begun, contents=contents, left=left)


def _text(failure: OSError | None) -> str | None:
    return None if failure is None else str(failure)


def _fail_together(saved: Saved, failures: Sequence[str | None], mine: OSError | None) -> None:
    """A rank that may not read a file, say, does not know it to be damaged; and nobody is to wait for that rank."""
    if mine is not None:
        raise mine
    for rank, failure in enumerate(failures):
        if failure is not None:
            raise OSError(f"rank {rank} cannot read {saved.path.name}: {failure}")


def decide_shares(
    files: Sequence[PartFile], needs: Sequence[Set[str]], blobs: Sequence[Set[str]], groups: Sequence[int]
) -> tuple[tuple[Share, ...], ...]:
    """Of every rank. Among those with the same folder (of one group) one reads a file that some of them need: for its
    tensors, if it is for those. One that nobody needs is read by anyone. Whoever has the least to read so far is asked
    first."""
    shares: list[list[Share]] = [[] for _ in needs]
    load = [0] * len(needs)

    def give(file: PartFile, ranks: Sequence[int], *, is_needed: bool) -> None:
        rank = min(ranks, key=lambda number: load[number])
        load[rank] += file.size_bytes
        shares[rank].append(Share(file=file, is_needed=is_needed, is_shared=len(ranks) > 1 and is_needed))

    for file in files:
        name = file.name.removesuffix(SUFFIX)
        filling = [rank for rank, names in enumerate(needs) if name in names]
        asking = [rank for rank, names in enumerate(blobs) if name in names]
        for group in sorted({groups[rank] for rank in (*filling, *asking)}):
            here = [rank for rank in filling if groups[rank] == group]
            give(file, here or [rank for rank in asking if groups[rank] == group], is_needed=bool(here))
        if not filling and not asking:
            give(file, range(len(needs)), is_needed=False)
    return tuple(map(tuple, shares))


def open_contents(saved: Saved) -> Contents:
    """Its metadata is a pickle: nothing is made of it before it has been found to be what was saved."""
    for file in saved.manifest.files:
        if file.name.removesuffix(SUFFIX) == METADATA:
            with lost_is_damaged(f"{saved.path.name}/{file.name}"):
                content = (saved.path / file.name).read_bytes()
            if hashlib.sha256(content).hexdigest() != file.sha256:
                raise Damaged(f"the bytes of {saved.path.name}/{file.name} are not those that were saved")
            return Contents(saved.path, metadata=None if file.name.endswith(SUFFIX) else content)
    raise InvalidInput(f"{saved.path.name} has no {METADATA}: it was saved by other means, as {saved.manifest.format}")


def _read(saved: Saved, shares: Sequence[Share], parts: Sequence[Part]) -> _Reading:
    """What remains is in files of other ranks, or does not lie in its file as it does in memory."""
    mine = {share.file.name for share in shares}  # not those that are encoded, which have other names
    now = [part for part in parts if part.start is not None and part.file in mine]
    stretches: dict[str, list[Stretch]] = {}
    for part in now:
        if stretch := part.stretch():
            stretches.setdefault(part.file, []).append(stretch)
    done = {id(part) for part in now}
    left = [part for part in parts if id(part) not in done]
    again = {part.file for part in left}
    intakes = [
        Intake(file=share.file, is_read_again=share.is_shared or share.file.name.removesuffix(SUFFIX) in again)
        for share in shares
    ]
    if not intakes:
        return _Reading(left=left)
    way = decide_way(len(intakes), len(os.sched_getaffinity(0)), int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    problem: str | None = None
    failure: OSError | None = None
    lanes: Lanes | None = None
    try:
        with closing(Lanes(stretches, way.lanes)) as lanes:
            read_files(saved.path, intakes, lanes.all, past_cache=way.past_cache)
    except Damaged as damage:
        problem = str(damage)
    except OSError as error:
        failure = error
    has_changed = lanes is not None and lanes.has_changed
    return _Reading(left=left, problem=problem, failure=failure, has_changed=has_changed)
