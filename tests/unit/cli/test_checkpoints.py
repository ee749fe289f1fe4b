from __future__ import annotations

from pathlib import Path

import pytest

from windlass.cli.checkpoints import places_of, places_of_all, read_export
from windlass.core.errors import InvalidInput, NotFound
from windlass.core.manifest import Tier
from windlass.wire.checkpoints import CheckpointView, PlaceView


def checkpoint(step: int, **places: str) -> CheckpointView:
    """At these tiers, in these states."""
    there = [
        PlaceView(id=f"c-{tier}{step}", tier=tier, location=f"/{tier}/{step}", state=state)
        for tier, state in places.items()
    ]
    return CheckpointView(
        **dict.fromkeys(("plan", "format", "reason"), ""),
        **dict.fromkeys(("attempt", "size_bytes", "file_count", "world_size"), 1),
        id=there[0].id,
        run_id="r-1",
        step=step,
        location=there[0].location,
        tier=there[0].tier,
        metrics={},
        state=there[0].state,
        created_at=1.0,
        places=there,
    )


BOTH = checkpoint(300, folder="available", store="available")
FOLDER = checkpoint(200, folder="available")
GONE = checkpoint(100, folder="deleted", store="available")


def ids(places: list[PlaceView]) -> list[str]:
    return [place.id for place in places]


def test_all_are_all_places_that_should_be_there() -> None:
    every = [BOTH, FOLDER, GONE]
    assert ids(places_of_all(every, None)) == ["c-folder300", "c-store300", "c-folder200", "c-store100"]
    assert ids(places_of_all(every, Tier.STORE)) == ["c-store300", "c-store100"]
    assert places_of_all([], Tier.STORE) == []
    with pytest.raises(NotFound, match="no good checkpoint of r-1 is in a store"):
        places_of_all([FOLDER], Tier.STORE)


def test_a_word_names_a_place_if_it_is_an_id() -> None:
    assert ids(places_of(BOTH, "300", None)) == ["c-folder300", "c-store300"]
    assert ids(places_of(BOTH, "newest", Tier.STORE)) == ["c-store300"]
    assert ids(places_of(BOTH, "c-store", None)) == ["c-store300"]
    with pytest.raises(NotFound, match="step 200 is not in a store; it is in: folder"):
        places_of(FOLDER, "200", Tier.STORE)


def test_which_one_to_export() -> None:
    assert read_export("r", ["x.st"]) == ("r", "newest", Path("x.st"))
    assert read_export("r@best", ["x.st"]) == ("r", "best", Path("x.st"))
    assert read_export("r", ["66", "x.st"]) == ("r", "66", Path("x.st"))
    assert read_export("r", ["./66"]) == ("r", "newest", Path("66"))


@pytest.mark.parametrize(
    ("run", "words", "message"),
    [
        ("r", ["66"], "'66' says which checkpoint, and no FILE is given"),
        ("r", ["best"], "'best' says which checkpoint"),
        ("r@66", ["67", "x.st"], "names more than one FILE"),
        ("r", ["66", "x.st", "y.st"], "names more than one FILE"),
    ],
)
def test_what_is_no_export(run: str, words: list[str], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_export(run, words)
