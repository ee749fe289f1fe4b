from __future__ import annotations

import pytest

from windlass.scheduling.access import EngineAccess

TYPES = {"here": "local", "hpc": "slurm", "cloud": "kubernetes"}
SOME = EngineAccess(by_project={"vision": frozenset({"here", "hpc"})}, others=frozenset({"here"}))


@pytest.mark.parametrize(
    ("access", "project", "wanted", "image", "allowed"),
    [
        (EngineAccess(), "any", (), None, None),
        (EngineAccess(), "any", ("hpc",), None, {"hpc"}),
        (EngineAccess(), "any", (), "train:7", {"hpc", "cloud"}),
        (EngineAccess(), "any", ("here", "cloud"), "train:7", {"cloud"}),
        (SOME, "vision", (), None, {"here", "hpc"}),
        (SOME, "vision", ("hpc", "cloud"), None, {"hpc"}),
        (SOME, "vision", (), "train:7", {"hpc"}),
        (SOME, "other", (), None, {"here"}),
        (SOME, "other", ("hpc",), None, set()),
        (SOME, "other", (), "train:7", set()),
    ],
)
def test_what_a_run_may_use(
    access: EngineAccess, project: str, wanted: tuple[str, ...], image: str | None, allowed: set[str] | None
) -> None:
    found = access.of_run(project, wanted, image=image, types=TYPES)
    assert (found is None) == (allowed is None)
    assert found is None or found == allowed


def test_parts_of_gpus_are_not_for_engines_that_have_whole_ones_only() -> None:
    assert EngineAccess().of_run("any", (), gpus=0.5, types=TYPES) == {"here"}
    assert EngineAccess().of_run("any", ("hpc",), gpus=0.5, types=TYPES) == set()
    assert EngineAccess().of_run("any", (), gpus=1, types=TYPES) is None
