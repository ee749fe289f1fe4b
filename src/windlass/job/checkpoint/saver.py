"""The saver: a process beside each rank that hashes and writes what lies in the rank's arena, and commits.

It loads no torch and holds no lock of the trainer. It takes orders from a socket, one JSON line each, and ends when
the socket does, but not before it has finished what it was told: a rank that dies does not take its save with it.
While it has nothing to do it makes sums of the copies in the node's memory.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import mmap
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from windlass.agent.kernel import give_way
from windlass.blobs.encoding import CHUNK_BYTES, SUFFIX, Encoder, Encoding, choose_encoding, encode
from windlass.core.errors import InvalidInput
from windlass.core.manifest import MANIFEST, Manifest, PartFile, SaveReason, folder_name, render_manifest
from windlass.job.checkpoint.clearing import clean_up
from windlass.job.checkpoint.disk import Disk
from windlass.job.checkpoint.folder import (
    METADATA,
    OWN_FOLDER,
    discard,
    part_folder_name,
    saved_at,
    saving_name,
    whose,
)
from windlass.job.checkpoint.memory import NodeMemory
from windlass.job.checkpoint.retention import Keep
from windlass.job.checkpoint.sums import Summing
from windlass.job.checkpoint.writing import Image, Writer, finish

_PATIENCE_S = 600.0  # with other ranks' savers, after our own part is written
_LOOK_EVERY_S = 0.02
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class SaveFailed(Exception):
    """This save will not become a checkpoint; the next one may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One save, as the trainer asks for it."""

    folder: str
    save_id: str
    rank: int
    world_size: int
    step: int
    files: list[list[Any]]  # name, start in the arena, size
    run_id: str | None
    attempt: int
    reason: str
    plan: str
    metrics: dict[str, float]
    keep: dict[str, Any]
    group: list[int] = field(default_factory=list)  # the ranks that share this folder, if not all do
    arena: int = 0  # the number of the one that holds it
    encode: dict[str, Any] = field(default_factory=dict)  # `compress` and `encrypt` of the spec

    @property
    def ranks(self) -> list[int]:
        """Whose files come together in this folder; the saver of the first of them commits."""
        return self.group or list(range(self.world_size))

    @property
    def is_lead(self) -> bool:
        return self.rank == self.ranks[0]

    @property
    def is_whole(self) -> bool:
        """False: what comes together here is a node's part of a checkpoint, which becomes one in the store."""
        return len(self.ranks) == self.world_size


class Saver:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._arenas: dict[int, mmap.mmap] = {}
        self._metadata = b""
        self._writer = Writer(disk, local_ranks=int(os.environ.get("LOCAL_WORLD_SIZE") or 1))

    def use_arena(self, fd: int, metadata: bytes, number: int = 0) -> None:
        self._arenas[number] = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        os.close(fd)
        self._metadata = metadata

    def save(self, order: Order) -> dict[str, Any]:
        """Write this rank's part; the first rank's saver then waits for the others and commits."""
        began = time.monotonic()
        saving = Path(order.folder) / saving_name(order.step, order.save_id)
        try:
            self._disk.make_dir(saving)
            if not order.is_lead:
                self._check_lead(order, saving)
            files = self._write_part(order, saving)
            written_s = time.monotonic() - began
            if order.is_lead:
                self._commit(order, saving, files)
            took_s = time.monotonic() - began
        except (SaveFailed, InvalidInput, OSError) as error:
            self._give_up(order, saving, error)
            is_full = isinstance(error, OSError) and error.errno in _FULL
            return {"step": order.step, "error": str(error), "is_full": is_full, "took_s": time.monotonic() - began}
        if order.is_lead:
            clean_up(Path(order.folder), Keep(**order.keep), self._disk, order.run_id)
        size = sum(file.size_bytes for file in files)
        return {"step": order.step, "error": None, "took_s": took_s, "written_s": written_s, "size_bytes": size}

    def _check_lead(self, order: Order, saving: Path) -> None:
        """The room that we would take may be just what it lacks."""
        with contextlib.suppress(FileNotFoundError):
            _part_of(saving, order.ranks[0])

    def _write_part(self, order: Order, saving: Path) -> list[PartFile]:
        images = [Image(name=name, start=start, size_bytes=size) for name, start, size in order.files]
        if _encoding(order).name:
            hashers = self._writer.hashers
            files = finish([hashers.submit(self._write_encoded, order, saving, image) for image in images])
        else:
            files = self._writer.write(saving, images, self._arenas[order.arena])
        self._disk.sync_dir(saving)
        part = {"save_id": order.save_id, "files": [asdict(file) for file in files]}
        self._disk.write_file(saving / part_name(order.rank), json.dumps(part).encode())
        return files

    def _write_encoded(self, order: Order, saving: Path, image: Image) -> PartFile:
        """Compressed or encrypted: the hash is of what is on the disk."""
        encoder = Encoder(_encoding(order), image.name, image.size_bytes)
        digest, written, name = hashlib.sha256(), 0, f"{image.name}{SUFFIX}"
        fd = self._disk.create(saving / name)
        try:
            for content in self._encoded(order, encoder, image.start, image.size_bytes):
                digest.update(content)
                self._disk.write(fd, memoryview(content), written)
                written += len(content)
            self._disk.sync(fd)
        finally:
            os.close(fd)
        return PartFile(name=name, size_bytes=written, sha256=digest.hexdigest())

    def _encoded(self, order: Order, encoder: Encoder, start: int, size: int) -> Iterator[bytes]:
        yield encoder.begin()
        with memoryview(self._arenas[order.arena]) as memory:
            for at in range(0, size, CHUNK_BYTES):
                with memory[start + at : start + min(at + CHUNK_BYTES, size)] as chunk:
                    yield encoder.chunk(chunk)

    def _commit(self, order: Order, saving: Path, mine: list[PartFile]) -> None:
        files = mine + [file for rank in order.ranks[1:] for file in self._await_part(saving, rank)]
        for file in files:
            if (saving / file.name).stat().st_size != file.size_bytes:
                raise SaveFailed(f"{file.name} is not as long as its saver says")
        if order.rank == 0:
            files.append(self._write_metadata(order, saving))
        manifest = Manifest(
            run_id=order.run_id,
            attempt=order.attempt,
            step=order.step,
            created_at=time.time(),
            reason=SaveReason(order.reason),
            world_size=order.world_size,
            plan=order.plan,
            files=tuple(files),
            metrics=order.metrics,
            format="+".join(word for word in ("dcp", _encoding(order).name) if word),
        )
        for rank in order.ranks:
            self._disk.remove(saving / part_name(rank))
        self._disk.write_file(saving / MANIFEST, render_manifest(manifest).encode())
        self._disk.sync_dir(saving)
        name = folder_name(order.step)
        if not order.is_whole:
            name = part_folder_name(f"{name}-{order.save_id}")
        self._show(saving, Path(order.folder) / name, order.run_id)

    def _write_metadata(self, order: Order, saving: Path) -> PartFile:
        name, content = METADATA, self._metadata
        if _encoding(order).name:
            name, content = f"{METADATA}{SUFFIX}", encode(content, _encoding(order), METADATA)
        self._disk.write_file(saving / name, content)
        return PartFile(name=name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())

    def _show(self, saving: Path, final: Path, run_id: str | None) -> None:
        there = saved_at(final)
        if there is not None and there.manifest.run_id != run_id:
            raise SaveFailed(
                f"{final.parent} has step {there.step} of {whose(there)} already, whose place no other run takes: give "
                f"each run a folder of its own, such as {OWN_FOLDER}"
            )
        if (final / MANIFEST).exists():
            # The same step of the same run: whichever was first is as good, and is never taken away.
            discard(saving, self._disk)
            return
        if final.exists():
            discard(final, self._disk)  # nobody's checkpoint: it has no manifest
        self._disk.rename(saving, final)
        self._disk.sync_dir(final.parent)

    def _await_part(self, saving: Path, rank: int) -> list[PartFile]:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return _part_of(saving, rank)
            except FileNotFoundError:
                if time.monotonic() > deadline:
                    raise SaveFailed(f"rank {rank} has not written its part within {_PATIENCE_S:.0f} s") from None
                if not saving.exists():
                    raise SaveFailed("the folder of the save was removed") from None
                time.sleep(_LOOK_EVERY_S)

    def _give_up(self, order: Order, saving: Path, error: Exception) -> None:
        """Make room at once: the disk may be full because of us."""
        with contextlib.suppress(OSError):  # it is garbage, and will be collected as such
            for name, _, _ in order.files:
                self._disk.remove(saving / name)
                self._disk.remove(saving / f"{name}{SUFFIX}")
        with contextlib.suppress(OSError):
            if saving.exists() and len(order.ranks) > 1:
                self._disk.write_file(saving / part_name(order.rank), json.dumps({"error": str(error)}).encode())
        if not order.is_lead:
            return
        for rank in order.ranks[1:]:
            with contextlib.suppress(SaveFailed, OSError):
                self._await_part(saving, rank)  # who comes after us would make the folder again
        with contextlib.suppress(OSError):
            discard(saving, self._disk)


def _encoding(order: Order) -> Encoding:
    """The key is in the environment, which orders are not written to."""
    return choose_encoding(order.encode, os.environ)


def part_name(rank: int) -> str:
    return f".part-{rank}.json"


def _part_of(saving: Path, rank: int) -> list[PartFile]:
    """FileNotFoundError: it is not there yet."""
    part = json.loads((saving / part_name(rank)).read_bytes())
    if "error" in part:
        raise SaveFailed(f"rank {rank} could not write its part: {part['error']}")
    return [PartFile(**file) for file in part["files"]]


def serve(connection: socket.socket, saver: Saver, summing: Summing | None = None) -> bool:
    """True: it was told to end; else the trainer is gone."""
    pending = b""
    fds: list[int] = []
    while True:
        while b"\n" not in pending:
            if summing is not None:
                summing.work_until(lambda wait_s: bool(select.select([connection], [], [], wait_s)[0]))
            data, more, _, _ = socket.recv_fds(connection, 1 << 16, 4)
            fds += more
            if not data:
                return False
            pending += data
        line, _, pending = pending.partition(b"\n")
        message = json.loads(line)
        if message["what"] == "end":
            return True
        if message["what"] == "arena":
            size = message["metadata_bytes"]
            while len(pending) < size:
                data, more, _, _ = socket.recv_fds(connection, 1 << 20, 4)  # the next arena may come right after
                fds += more
                if not data:
                    return False
                pending += data
            saver.use_arena(fds.pop(0), pending[:size], message.get("number", 0))
            pending = pending[size:]
        else:
            answer = saver.save(Order(**message["order"]))
            try:
                connection.sendall(json.dumps(answer).encode() + b"\n")
            except OSError:
                return False  # the trainer is gone; its save is not


def main(fd: int, memory: str = "", rank: int = 0) -> None:
    """`memory`: the folder of the copies of that rank."""
    # The trainer is told to stop by these, and tells us; what it asks for last is the most important save of all.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    give_way(10)
    summing = Summing(NodeMemory(Path(memory)), rank) if memory else None
    try:
        is_told = serve(socket.socket(fileno=fd), Saver(Disk.from_environ(os.environ)), summing)
    except ConnectionResetError:
        is_told = False  # the trainer was killed with answers unread: there is nobody left to save for
    if summing is not None and not is_told:
        summing.finish()
