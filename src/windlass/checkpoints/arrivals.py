"""What the notes of a run's processes change in the catalogue: `decide_changes`, pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from windlass.checkpoints.choice import NEAREST
from windlass.checkpoints.types import CheckpointRecord, CheckpointState, checkpoint_id
from windlass.core.manifest import PartFile
from windlass.core.quantities import format_count, format_size
from windlass.tracking.saves import FoundCorrupt, Listed, Removed, Saved, SaveNote

_MOST_STORIES = 100  # of one process in one read; the catalogue has them all


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What is told of a checkpoint in the run's events."""

    at: float
    message: str
    checkpoint: CheckpointRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueChanges:
    new: tuple[CheckpointRecord, ...] = ()
    changed: tuple[CheckpointRecord, ...] = ()  # known before, in another state now
    stories: tuple[Story, ...] = ()
    files: Mapping[str, tuple[PartFile, ...]] = field(default_factory=dict)  # by id, of those that are there now


class _Catalogue:
    """The run's checkpoints at the places that are spoken of, while the notes are gone through."""

    def __init__(self, run_id: str, attempt: int, known: Sequence[CheckpointRecord]) -> None:
        self.run_id = run_id
        self.attempt = attempt
        self.now: dict[str, CheckpointRecord] = {}  # by id
        self.stories: list[Story] = []
        self.files: dict[str, tuple[PartFile, ...]] = {}
        self._there: dict[str, list[str]] = {}  # ids of those that are not deleted, by folder
        for record in known:
            self._put(record)

    def take(self, note: SaveNote) -> None:
        if isinstance(note, Saved):
            self._save(note)
        elif isinstance(note, Removed):
            self._clear(note.folder, "removed by the run")
        elif isinstance(note, Listed):
            self._compare(note)
        else:
            self._spoil(note)

    def _save(self, note: Saved) -> None:
        made = checkpoint_id(self.run_id, note.folder, note.created_at)
        if made in self.now:
            self._meet_again(self.now[made], note)
            return
        self._clear(note.folder, f"replaced by attempt {self.attempt}")
        saved = CheckpointRecord(
            id=made,
            run_id=self.run_id,
            attempt=self.attempt,
            step=note.step,
            epoch=note.epoch,
            location=note.folder,
            tier=note.tier,
            size_bytes=note.size_bytes,
            file_count=note.file_count,
            world_size=note.world_size,
            plan=note.plan,
            format=note.format,
            reason=note.reason,
            metrics=note.metrics,
            state=CheckpointState.AVAILABLE,
            detail=None,
            created_at=note.created_at,
            verified_at=None,
        )
        self._put(saved)
        self._list_files(made, note)
        size = f"{format_size(note.size_bytes)} in {format_count(note.file_count, 'file')}"
        what = "saved" if note.tier == NEAREST else f"brought to the {note.tier}:"
        self.stories.append(
            Story(at=note.at, message=f"{what} step {note.step:,}: {size} ({note.reason})", checkpoint=saved)
        )

    def _meet_again(self, known: CheckpointRecord, note: Saved) -> None:
        """Told again; what has become of it since stands, unless a later attempt has brought it back from a store."""
        if known.state is CheckpointState.DELETED and self.attempt > known.attempt:
            self._put(replace(known, state=CheckpointState.AVAILABLE, detail=None))
            self._list_files(known.id, note)

    def _list_files(self, id: str, note: Saved) -> None:
        if note.parts is not None:
            self.files[id] = note.parts

    def _put(self, record: CheckpointRecord) -> None:
        self.now[record.id] = record
        if record.state is not CheckpointState.DELETED:
            self._there.setdefault(record.location, []).append(record.id)

    def _clear(self, folder: str, why: str) -> None:
        for id in self._there.pop(folder, ()):
            self.now[id] = replace(self.now[id], state=CheckpointState.DELETED, detail=why)

    def _compare(self, note: Listed) -> None:
        for folder in [folder for folder in self._there if posixpath.dirname(folder) == note.root]:
            if folder not in note.folders:
                self._clear(folder, f"not there any more when attempt {self.attempt} began")

    def _spoil(self, note: FoundCorrupt) -> None:
        for id in self._there.get(note.folder, ()):
            record = self.now[id]
            if record.is_good:
                spoilt = replace(record, state=CheckpointState.CORRUPT, detail=note.why)
                self.now[record.id] = spoilt
                message = f"the checkpoint of step {record.step:,} is corrupt: {note.why}"
                self.stories.append(Story(at=note.at, message=message, checkpoint=spoilt))


def decide_changes(
    run_id: str, attempt: int, known: Sequence[CheckpointRecord], notes: Sequence[SaveNote]
) -> CatalogueChanges:
    """`known`: the run's checkpoints at the places that the notes speak of; if one is a list, all good ones too. A
    removal of what is not known changes nothing: it was saved by somebody who told nobody."""
    before = {record.id: record for record in known}
    catalogue = _Catalogue(run_id, attempt, known)
    for note in notes:
        catalogue.take(note)
    after = catalogue.now
    return CatalogueChanges(
        new=tuple(record for id, record in after.items() if id not in before),
        changed=tuple(record for id, record in after.items() if id in before and record != before[id]),
        stories=tuple(catalogue.stories[-_MOST_STORIES:]),
        files={id: files for id, files in catalogue.files.items() if after[id].state is not CheckpointState.DELETED},
    )
