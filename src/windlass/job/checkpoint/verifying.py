"""All ranks together make sure that a checkpoint is what its manifest says, and fill their tensors meanwhile: `verify`.

Each file is read once, by a rank that needs it where there is one, and its bytes go to their places as they are hashed.
So tensors may hold bytes of a damaged checkpoint afterwards: whoever calls this has a way back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from windlass.blobs.encoding import SUFFIX
from windlass.core.errors import InvalidInput
from windlass.core.manifest import PartFile
from windlass.job.checkpoint.folder import METADATA, Damaged, Saved, check_sizes
from windlass.job.checkpoint.loading import Contents, Part
from windlass.job.checkpoint.peers import Peers
from windlass.job.checkpoint.placing import Lanes, Stretch
from windlass.job.checkpoint.reading import MOST_LANES, Intake, read_files

Needs = Callable[[Contents], list[Part]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A file that a rank reads. `is_needed`: by itself; `is_shared`: by others too, with whom it has the folder."""

    file: PartFile
    is_needed: bool
    is_shared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`problems`: what each rank found wrong, if it did. `is_begun`: tensors may have been changed.

    If nobody found anything, `left` is still to be read from `contents`. None: it cannot be opened here, for want of a
    key perhaps, or does not fit.
    """

    problems: list[str | None]
    is_begun: bool
    contents: Contents | None = None
    left: list[Part] | None = None


def verify(saved: Saved, peers: Peers, near: Sequence[int], needs: Needs) -> Outcome:
    """Every rank calls it. `near`: the ranks that see the same folder; `needs`: what this one is to read, or
    InvalidInput."""
    first = peers.from_first(saved.manifest)
    problem: str | None = None
    contents: Contents | None = None
    parts: list[Part] | None = None
    if saved.manifest != first:
        problem = f"{saved.path.name} is another checkpoint on rank {peers.rank} than on the first"
    else:
        try:
            check_sizes(saved)
            contents = _open(saved)
            parts = needs(contents)
        except Damaged as damage:
            problem = str(damage)
        except InvalidInput:
            pass  # of another model, or without its key: if it is good, whoever reads from it next says so
    told = peers.gather((problem, {part.file for part in parts or ()}, near[0]))
    problems = [text for text, _, _ in told]
    if any(problems):
        return Outcome(problems=problems, is_begun=False)
    shares = decide_shares(saved.manifest.files, [names for _, names, _ in told], [group for _, _, group in told])
    left = parts
    try:
        left = _read(saved, shares[peers.rank], parts or [])
    except Damaged as damage:
        problem = str(damage)
    return Outcome(
        problems=peers.gather(problem),
        is_begun=True,
        contents=contents,
        left=None if parts is None else left,
    )


def decide_shares(
    files: Sequence[PartFile], needs: Sequence[set[str]], groups: Sequence[int]
) -> tuple[tuple[Share, ...], ...]:
    """Of every rank. Among those with the same folder (of one group) one reads a file that some of them need; one that
    nobody needs is read by anyone. Whoever has the least to read so far is asked first."""
    shares: list[list[Share]] = [[] for _ in needs]
    load = [0] * len(needs)

    def give(file: PartFile, ranks: Sequence[int], *, is_needed: bool) -> None:
        rank = min(ranks, key=lambda number: load[number])
        load[rank] += file.size_bytes
        shares[rank].append(Share(file=file, is_needed=is_needed, is_shared=len(ranks) > 1 and is_needed))

    for file in files:
        name = file.name.removesuffix(SUFFIX)
        needing = [rank for rank, names in enumerate(needs) if name in names]
        for group in sorted({groups[rank] for rank in needing}):
            give(file, [rank for rank in needing if groups[rank] == group], is_needed=True)
        if not needing:
            give(file, range(len(needs)), is_needed=False)
    return tuple(map(tuple, shares))


def _open(saved: Saved) -> Contents:
    """Its metadata is a pickle: nothing is made of it before it has been found to be what was saved."""
    for file in saved.manifest.files:
        if file.name.removesuffix(SUFFIX) == METADATA:
            content = (saved.path / file.name).read_bytes()
            if hashlib.sha256(content).hexdigest() != file.sha256:
                raise Damaged(f"the bytes of {saved.path.name}/{file.name} are not those that were saved")
            return Contents(saved.path, metadata=None if file.name.endswith(SUFFIX) else content)
    raise InvalidInput(f"{saved.path.name} has no {METADATA}: it was saved by other means, as {saved.manifest.format}")


def _read(saved: Saved, shares: Sequence[Share], parts: Sequence[Part]) -> list[Part]:
    """What remains to be read: from files of other ranks, and what does not lie in its file as it does in memory."""
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
    if intakes:
        with closing(Lanes(stretches, min(MOST_LANES, len(intakes)))) as lanes:
            read_files(saved.path, intakes, lanes.all)
    return left
