from __future__ import annotations

import dataclasses

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass.checkpoints.arrivals import decide_changes
from windlass.checkpoints.types import CheckpointRecord, CheckpointState
from windlass.tracking.saves import FoundCorrupt, Listed, Removed, Saved, SaveNote

RUN = "r-bcdfghjkmn"


def saved(step: int, *, at: float = 1.0, folder: str | None = None, **changes: object) -> Saved:
    note = Saved(
        at=at,
        step=step,
        folder=folder or f"/c/step-{step}",
        tier="folder",
        created_at=at,
        size_bytes=2_000_000,
        file_count=2,
        world_size=1,
        plan="",
        format="dcp",
        reason="interval",
        metrics={},
    )
    return dataclasses.replace(note, **changes)  # type: ignore[arg-type]


def apply(known: list[CheckpointRecord], notes: list[SaveNote], attempt: int = 1) -> list[CheckpointRecord]:
    changes = decide_changes(RUN, attempt, known, notes)
    changed = {record.id: record for record in changes.changed}
    return [changed.get(record.id, record) for record in known] + list(changes.new)


def test_what_is_saved_is_available_and_told() -> None:
    changes = decide_changes(RUN, 3, [], [saved(1_500)])
    (record,) = changes.new
    assert (record.step, record.attempt, record.state, record.location) == (1_500, 3, "available", "/c/step-1500")
    assert [story.message for story in changes.stories] == ["saved step 1,500: 2.0 MB in 2 files (interval)"]


def test_told_again_it_is_there_once() -> None:
    known = apply([], [saved(1), saved(1)])
    assert len(known) == 1
    assert decide_changes(RUN, 2, known, [saved(1)]) == decide_changes(RUN, 2, known, [])


def test_what_became_of_it_stands_when_it_is_told_again() -> None:
    known = apply([], [saved(1), Removed(at=2.0, folder="/c/step-1"), saved(1)])
    assert [record.state for record in known] == ["deleted"]


def test_a_save_in_the_same_folder_replaces_the_one_before() -> None:
    known = apply(apply([], [saved(5, at=1.0)]), [saved(5, at=9.0)], attempt=2)
    assert [(record.created_at, record.state, record.detail) for record in known] == [
        (1.0, "deleted", "replaced by attempt 2"),
        (9.0, "available", None),
    ]


def test_removals_are_kept_and_not_told() -> None:
    changes = decide_changes(RUN, 1, apply([], [saved(1), saved(2)])[:1], [Removed(at=3.0, folder="/c/step-1")])
    assert [(record.step, record.state) for record in changes.changed] == [(1, "deleted")]
    assert changes.stories == ()


def test_what_is_found_corrupt_is_told_once() -> None:
    spoilt = FoundCorrupt(at=3.0, folder="/c/step-1", why="a is missing")
    changes = decide_changes(RUN, 1, apply([], [saved(1)]), [spoilt, spoilt])
    assert [(record.state, record.detail) for record in changes.changed] == [("corrupt", "a is missing")]
    assert [story.message for story in changes.stories] == ["the checkpoint of step 1 is corrupt: a is missing"]


def test_notes_about_what_is_not_known_change_nothing() -> None:
    notes: list[SaveNote] = [Removed(at=1.0, folder="/x"), FoundCorrupt(at=1.0, folder="/x", why="")]
    assert decide_changes(RUN, 1, [], notes) == decide_changes(RUN, 1, [], [])


def test_what_is_not_on_the_list_of_its_folder_is_gone() -> None:
    known = apply([], [saved(1), saved(2), saved(3, folder="/d/step-3")])
    after = apply(known, [Listed(at=5.0, root="/c", folders=frozenset({"/c/step-2", "/c/step-9"}))], attempt=2)
    assert [(record.step, record.state, record.detail) for record in after] == [
        (1, "deleted", "not there any more when attempt 2 began"),
        (2, "available", None),
        (3, "available", None),
    ]


def test_a_flood_is_kept_and_not_told_whole() -> None:
    changes = decide_changes(RUN, 1, [], [saved(1, at=float(n)) for n in range(20_000)])
    assert (len(changes.new), len(changes.stories)) == (20_000, 100)
    assert sum(record.is_good for record in changes.new) == 1


places = st.sampled_from(["/c/a", "/c/b"])
notes = st.lists(
    st.one_of(
        st.builds(lambda folder, at: saved(1, at=at, folder=folder), places, st.sampled_from([1.0, 2.0, 3.0])),
        st.builds(lambda folder: Removed(at=5.0, folder=folder), places),
        st.builds(lambda folder: FoundCorrupt(at=5.0, folder=folder, why="x"), places),
    ),
    max_size=12,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(notes, st.integers(0, 12))
def test_it_is_the_same_however_the_notes_are_cut_into_reads(told: list[SaveNote], cut: int) -> None:
    def state(known: list[CheckpointRecord]) -> set[tuple[str, CheckpointState]]:
        return {(record.id, record.state) for record in known}

    at_once = apply([], told)
    assert state(apply(apply([], told[:cut]), told[cut:])) == state(at_once)
    for place in ("/c/a", "/c/b"):
        assert sum(r.location == place and r.state != "deleted" for r in at_once) <= 1


def test_what_a_later_attempt_has_brought_back_is_there_again() -> None:
    known = apply([], [saved(1), Removed(at=2.0, folder="/c/step-1")])
    assert [record.state for record in apply(known, [saved(1)])] == [CheckpointState.DELETED]
    assert [record.state for record in apply(known, [saved(1)], attempt=2)] == [CheckpointState.AVAILABLE]
