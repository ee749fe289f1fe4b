"""Checkpoints that others have saved, `torch.save` or a framework, taken into the run's folder as they are: `Adopter`.

Copied and hashed, with a manifest, they are checkpoints like any other for catalogue, retention and store. Loading them
is for who saved them: `newest` says where. Needs no torch.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.core.errors import InvalidInput
from windlass.core.manifest import MANIFEST, Manifest, PartFile, SaveReason, folder_name, render_manifest
from windlass.job.checkpoint.announcing import Announcer
from windlass.job.checkpoint.disk import Disk
from windlass.job.checkpoint.folder import (
    Damaged,
    Saved,
    by_newer,
    check_hashes,
    check_sizes,
    collect_garbage,
    discard,
    list_saved,
    refuse_newer,
    saved_by,
    saving_name,
    set_aside,
)
from windlass.job.checkpoint.naming import is_named, step_in
from windlass.job.checkpoint.retention import Keep, decide_retention, kept
from windlass.job.session import Session, session

if TYPE_CHECKING:
    from windlass.blobs.bucket import Bucket

FORMAT = "files"  # as they were found
# Beside those of `job.checkpoints`, which must not take them for its own.
ADOPTED = "adopted"
_LOCK = ".newest.lock"
_CHUNK = 8 << 20


class Unsteady(Exception):
    """The files changed, or went, while they were copied."""


class Adopter:
    """For one process of a run. Its uploader, if the run has a store, lives until `close`."""

    def __init__(
        self, folder: Path, wanted: Mapping[str, Any], *, mine: Session | None = None, disk: Disk | None = None
    ) -> None:
        _refuse_encoding(wanted)
        self._session = mine or session()
        self._folder = folder / ADOPTED
        self._folder.mkdir(parents=True, exist_ok=True)
        self._keep = kept(wanted)
        self._disk = disk or Disk()
        self._announcer = Announcer(self._folder, mine=self._session)
        has_store = wanted.get("store") or wanted.get("stores")
        self._store = _Stores(wanted, self._folder, self._keep, self._session) if has_store else None
        self._announcer.look()
        self._began_ns = max((_written_ns_of(saved) for saved in list_saved(self._folder)[:1]), default=0)
        self._counted: set[int] = set()  # steps that are no files' own, but the next after the newest
        self._has_told = False

    def take(
        self,
        *sources: Path,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
        reason: SaveReason = SaveReason.INTERVAL,
    ) -> int | None:
        """Files, and folders with all in them, as one checkpoint. The step: as given, in their names, or the next
        after the newest. None: it is here already.

        Raises Unsteady if somebody still writes them; nothing is kept then. Raises OSError.
        """
        found = list_saved(self._folder)
        said = step_in(sources[0].name) if step is None else step
        is_sure = step is not None or is_named(sources[0].name)
        at_ns = _written_ns(sources)
        is_newest = not found or at_ns > _written_ns_of(found[0])
        number = decide_number(
            said, [saved.step for saved in found], self._counted, is_sure=is_sure, is_newest=is_newest
        )
        if number is None or (said is None and at_ns < self._began_ns):
            return None  # whichever was first is as good, `left_out` says of what; or it was taken by an attempt before
        alike = _alike(said, found, is_sure=is_sure, is_newest=is_newest)
        saving = self._folder / saving_name(number, secrets.token_hex(4))
        try:
            files = self._copy(sources, saving)
            if any(saved.manifest.files == files for saved in alike):
                discard(saving, self._disk)
                return None
            self._commit(saving, self._manifest(number, files, metrics or {}, reason))
        except BaseException:
            discard(saving, self._disk)
            raise
        if number != said:
            self._counted.add(number)
            self._tell_of_order(sources[0].name, said, number)
        self.look()
        return number

    def _tell_of_order(self, name: str, said: int | None, number: int) -> None:
        if said is None or self._has_told:
            return
        self._has_told = True
        text = (
            f"{name} was written after what is of step {number - 1}, and the number in its name is {said}: such files "
            f"are numbered on by the order of writing, this one as {number}; write step-<number> in names"
        )
        self._session.alert("checkpoint-order", text, step=number)

    def left_out(self, *sources: Path, step: int) -> list[str]:
        """The files of these that the checkpoint of that step has not got: they came when it had been taken."""
        for saved in list_saved(self._folder):
            if saved.manifest.step == step:
                here = {Path(file.name).name for file in saved.manifest.files}
                return [name for name, _ in files_of(*sources) if Path(name).name not in here]
        return []

    def hold(self, source: Path, step: int) -> Path:
        """What `source` is now, under a name of our own, so that it may be removed before it is taken; `let_go` ends
        it. Raises OSError where there are no hard links between the two."""
        holding = self._folder / saving_name(step, secrets.token_hex(4))
        try:
            for name, path in files_of(source):
                held = holding / source.name / name if source.is_dir() else holding / name
                self._disk.make_dir(held.parent)
                self._disk.link(path, held)
        except OSError:
            discard(holding, self._disk)
            raise
        return holding / source.name

    def let_go(self, held: Path) -> None:
        discard(held.parent, self._disk)

    def newest(self) -> Path | None:
        """Where the newest good one is: its file, or its folder if it has several. From the store if that has a newer
        one. Damaged ones are set aside. All ranks may ask at once: the first does it, the others find what it left.
        Raises NewerManifest if the newest is one that only a newer Windlass can read."""
        with _one_at_a_time(self._folder):
            while True:
                if self._store is not None:
                    self._store.bring_newer()  # also what was set aside, or the next rank would get another answer
                saved = next(iter(list_saved(self._folder)), None)
                refuse_newer(by_newer(self._folder), than=saved.step if saved is not None else 0)
                if saved is None:
                    return None
                try:
                    check_sizes(saved)
                    check_hashes(saved)
                except Damaged as damage:
                    self._session.alert("checkpoint-damaged", f"{damage}; going on from the one before")
                    self._session.checkpoint_corrupt(saved.path, str(damage))
                    set_aside(saved.path, self._disk)
                    continue
                names = [file.name for file in saved.manifest.files]
                return saved.path / names[0] if len(names) == 1 else saved.path

    def look(self) -> None:
        """Tell of what has come and gone."""
        self._announcer.look()
        if self._store is not None:
            self._store.look()

    def close(self, *, wait_s: float | None = None) -> None:
        if self._store is not None:
            self._store.close(wait_s=wait_s)
        self._announcer.look()

    def _copy(self, sources: Sequence[Path], saving: Path) -> tuple[PartFile, ...]:
        before = {source: signature_of(source) for source in sources}
        for source, signature in before.items():
            if not signature:
                raise Unsteady(f"{source} is not there")
        self._disk.make_dir(saving)
        files = tuple(self._copy_file(path, saving, name) for name, path in files_of(*sources))
        for source, signature in before.items():
            if signature_of(source) != signature:
                raise Unsteady(f"{source} has changed while it was copied")
        return files

    def _copy_file(self, source: Path, saving: Path, name: str) -> PartFile:
        target = saving / name
        if target.parent != saving:
            self._disk.make_dir(target.parent)
        digest, at = hashlib.sha256(), 0
        try:
            with source.open("rb", buffering=0) as file:
                fd = self._disk.create(target)
                try:
                    while data := file.read(_CHUNK):
                        digest.update(data)
                        self._disk.write(fd, memoryview(data), at)
                        at += len(data)
                    stat = os.fstat(file.fileno())
                    os.utime(fd, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # by this what is newer is told from it
                    self._disk.sync(fd)
                finally:
                    os.close(fd)
        except FileNotFoundError:
            raise Unsteady(f"{source} was removed while it was copied") from None
        return PartFile(name=name, size_bytes=at, sha256=digest.hexdigest())

    def _manifest(
        self, step: int, files: tuple[PartFile, ...], metrics: Mapping[str, float], reason: SaveReason
    ) -> Manifest:
        return Manifest(
            run_id=self._session.run_id,
            attempt=self._session.attempt,
            step=step,
            created_at=time.time(),
            reason=reason,
            world_size=self._session.world_size,
            plan="",
            files=files,
            format=FORMAT,
            metrics=dict(metrics),
        )

    def _commit(self, saving: Path, manifest: Manifest) -> None:
        self._disk.write_file(saving / MANIFEST, render_manifest(manifest).encode())
        self._disk.sync_dirs(saving)
        final = self._folder / folder_name(manifest.step)
        self._disk.rename(saving, final)
        self._disk.sync_dir(self._folder)
        saved = {id(one.manifest): one for one in saved_by(manifest.run_id, list_saved(self._folder))}
        for old in decide_retention([one.manifest for one in saved.values()], self._keep, now=time.time()):
            if saved[id(old)].path != final:  # what was just written, whatever its number
                discard(saved[id(old)].path, self._disk)
        collect_garbage(self._folder, self._disk)


class _Stores:
    """The run's stores, for one process alone. Their client is imported only where there are some."""

    def __init__(self, wanted: Mapping[str, Any], folder: Path, keep: Keep, mine: Session) -> None:
        from windlass.blobs.bucket import open_bucket
        from windlass.job.checkpoint.stores.choice import choose_stores
        from windlass.job.checkpoint.stores.sending import Sending

        choices = choose_stores(wanted, mine.run_id, keep=keep, inside=ADOPTED)
        self._folder = folder
        self._buckets = [open_bucket(one.address, endpoint=one.endpoint, environ=os.environ) for one in choices]
        # The first rank sends for all: another's uploader would hold the lock, and the first wait for it at its end.
        self._sendings = [Sending(one.settings(folder), mine=mine) for one in choices if mine.is_main]

    def bring_newer(self) -> None:
        """The newest of all. Raises Unavailable if a store cannot be asked: that is not to say that it has none."""
        for bucket in self._buckets:
            self._bring_newer(bucket)

    def _bring_newer(self, bucket: Bucket) -> None:
        from windlass.blobs.stored import lay_aside, list_stored, refuse_newer
        from windlass.job.checkpoint.stores.fetching import fetch_files, show

        here = next((saved.manifest.step for saved in list_saved(self._folder)), -1)
        found = list_stored(bucket)
        refuse_newer(bucket, than=max([here, 0, *(stored.manifest.step for stored in found)]))
        for stored in found:
            if stored.manifest.step <= here:
                return
            try:
                fetch_files(bucket, stored, stored.manifest.files, self._folder, Disk())
            except Damaged:
                lay_aside(bucket, stored.name)
                continue
            show(stored, self._folder, Disk())
            return

    def look(self) -> None:
        for sending in self._sendings:
            sending.look()

    def close(self, *, wait_s: float | None) -> None:
        from windlass.job.checkpoint.stores.sending import close_all

        close_all(self._sendings, wait_s=wait_s)


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Of all processes that see the folder. Where the file system has no locks, each does it for itself."""
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _refuse_encoding(wanted: Mapping[str, Any]) -> None:
    """Who saved them reads them too, and reads plain files: rather none here than plain ones that were to be secret."""
    off = {"encrypt": "false", "compress": "none"}
    for name in off:
        if wanted.get(name) not in (None, False, "none"):
            raise InvalidInput(
                f"the run wants `{name}` of its checkpoints, and those that others save are taken as they are",
                hint=f"save with `job.checkpoints`, or say `checkpoint: {{{name}: {off[name]}}}` in the spec",
            )


def _written_ns_of(saved: Saved) -> int:
    """When its files were, before they were taken."""
    return _written_ns(saved.path / file.name for file in saved.manifest.files)


def _written_ns(sources: Iterable[Path]) -> int:
    """When the last of these was."""
    return max((time_ns for source in sources for *_, time_ns in signature_of(source)), default=0)


def decide_number(
    said: int | None, here: Sequence[int], counted: Collection[int], *, is_sure: bool, is_newest: bool
) -> int | None:
    """The step of what comes next; None: it is here already. `said`: the number in its name, which says the step or
    epoch if that `is_sure`. `here`: the steps that are, newest first; of these `counted` are no names' own.
    `is_newest`: it was written after all of these."""
    if said in here and not (said in counted and is_newest):
        return None
    if said is not None and said not in here and (is_sure or not is_newest or said > max(here, default=-1)):
        return said
    return max(here, default=0) + 1


def _alike(said: int | None, found: Sequence[Saved], *, is_sure: bool, is_newest: bool) -> Sequence[Saved]:
    """Those that it may be once more: its name says no step, or one from which it was numbered on by an attempt
    before."""
    if said is None:
        return found[:1] if is_newest else found
    return [] if is_sure or is_newest else [saved for saved in found if saved.step > said]


def files_of(*sources: Path) -> Iterator[tuple[str, Path]]:
    """Names inside the checkpoint, and where they are now. Of a single folder what is in it; of several files and
    folders, each by its name, or from the folder that they have in common."""
    if len(sources) == 1 and sources[0].is_dir():
        root = sources[0]
    else:
        root = Path(os.path.commonpath([source.absolute().parent for source in sources]))
    for source in sources:
        inside = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
        for path in inside:
            yield Path(os.path.relpath(path, root)).as_posix(), path


def signature_of(source: Path) -> tuple[tuple[str, int, int], ...]:
    """Sizes and times: the same as long as nobody writes. Empty: there is nothing."""
    try:
        found = [(name, path.stat()) for name, path in files_of(source)]
    except FileNotFoundError:
        return ()
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)
