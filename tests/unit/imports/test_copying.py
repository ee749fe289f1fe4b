"""What becomes of things that cannot be copied: they are said, and all others come."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from windlass.core.errors import WindlassError
from windlass.core.marks import MARK_TAG
from windlass.imports import plan
from windlass.imports.copying import Copier, Summary, Wishes
from windlass.imports.destination import KnownExperiment, Taken
from windlass.imports.records import Experiment, File, Owner, Point, RegisteredModel, Run, Version

RUN = "0123456789abcdef0123456789abcdef"


class There:
    """A source with one run."""

    address = "file:///there"
    unreadable = "unreadable"

    def __init__(self, *, metrics: Sequence[str] = (), files: Sequence[str] = ()) -> None:
        self._metrics = metrics
        self._files = files
        self.models: list[RegisteredModel] = []

    def experiments(self, **_: object) -> Iterator[Experiment]:
        yield Experiment(id="1", name="e")

    def runs(self, *_: object, **__: object) -> Iterator[Run]:
        yield Run(
            id=RUN,
            name="r",
            metrics={key: Point(0, 1, 2.0) for key in self._metrics},
            files=Owner("run", RUN),
            end_ms=1,
        )

    def is_windlass(self) -> bool:
        return False

    def whole(self, run: Run) -> Run:
        return run

    def history(self, run: Run, key: str) -> Iterator[Point]:
        yield run.metrics[key]

    def histories(self, run: Run) -> Iterator[tuple[str, Iterator[Point]]]:
        return ((key, self.history(run, key)) for key in run.metrics)

    def files(self, _owner: Owner) -> Iterator[File]:
        yield from (File(path, 3) for path in self._files)

    @contextmanager
    def reading(self, _owner: Owner, path: str) -> Iterator[Iterator[bytes]]:
        if path == self.unreadable:
            raise PermissionError(13, "Permission denied", path)
        yield iter([b"abc"])

    def logged_models(self, _experiment: Experiment) -> Iterator[Any]:
        yield from ()

    def registered_models(self) -> Iterator[RegisteredModel]:
        yield from self.models


class Here:
    """A server that takes names as MLflow's API does."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}
        self.points: list[str] = []
        self.stored: list[str] = []
        self.versions: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: {} if name in ("registered_models", "files") else "1"

    def experiments(self) -> dict[str, KnownExperiment]:
        return {"e": KnownExperiment("1", False, {})}

    def runs(self, _experiment_id: str) -> dict[str, plan.Here]:
        return {}

    def put_run(self, *_: object) -> Taken:
        return Taken(True, "mlflow-artifacts:/1/r")

    def log_pairs(self, _run_id: str, _what: str, pairs: dict[str, str]) -> None:
        self.tags.update(pairs)

    def log_points(self, _run_id: str, points: Sequence[tuple[str, Point]]) -> None:
        for key, _ in points:
            if not re.fullmatch(r"\w+", key):
                raise WindlassError("Invalid value")
        self.points += [key for key, _ in points]

    def put_file(self, _location: str, path: str, chunks: Callable[[], Iterable[bytes]]) -> None:
        if "#" in path:
            raise WindlassError("Invalid path")
        assert b"".join(chunks()) == b"abc"
        self.stored.append(path)

    def put_version(self, name: str, version: Version, source: str) -> Taken:
        wanted = source.removeprefix("models:/")
        if source.startswith("models:/") and wanted not in self.versions:
            raise WindlassError(f"{wanted} not found")
        self.versions.append(f"{name}/{version.version}")
        return Taken(True, "")


class Quiet:
    def found(self, runs: int) -> None: ...

    def ended(self, run: str) -> None: ...

    def sent(self, size: int) -> None: ...

    def logged(self, points: int) -> None: ...


def copy(there: There, here: Here, wishes: Wishes | None = None) -> Summary:
    return Copier(there, here, wishes or Wishes(), Quiet()).copy()  # type: ignore[arg-type]


def test_a_metric_that_is_refused_does_not_cost_the_others() -> None:
    here = Here()
    summary = copy(There(metrics=["a", "b (%)", "c"]), here)
    assert here.points == ["a", "c"]
    assert summary.points == 2
    assert summary.problems == [f"metric 'b (%)' of run {RUN}: Invalid value"]
    assert here.tags[MARK_TAG] == ""  # the next call tries again
    assert (summary.runs["incomplete"], summary.runs["copied"]) == (1, 0)


def test_a_file_that_cannot_be_copied_does_not_cost_the_others() -> None:
    here = Here()
    summary = copy(There(files=["a", "b#", "unreadable", "z"]), here)
    assert here.stored == ["a", "z"]
    assert (summary.files, summary.bytes) == (2, 6)
    assert summary.problems == [
        f"file 'b#' of run {RUN}: Invalid path",
        f"file 'unreadable' of run {RUN}: it cannot be read: Permission denied",
    ]
    assert here.tags[MARK_TAG] == ""
    assert summary.runs["incomplete"] == 1


def test_points_of_earlier_steps_that_came_since_are_copied() -> None:
    class Later(There):
        def history(self, run: Run, key: str) -> Iterator[Point]:
            yield from (run.metrics[key], Point(-5, 1, 3.0))

    class Again(Here):
        def runs(self, _experiment_id: str) -> dict[str, plan.Here]:
            [run] = There(metrics=["a"]).runs()
            return {RUN: plan.Here(plan.fingerprint(run), deleted=False)}

        def histories(self, _run_id: str, keys: Iterable[str]) -> Iterator[tuple[str, list[Point]]]:
            return ((key, [Point(0, 1, 2.0)]) for key in keys)

    for wishes, points in ((Wishes(), []), (Wishes(full=True), ["a"])):
        here = Again()
        summary = copy(Later(metrics=["a"]), here, wishes)
        assert (summary.runs["unchanged"], here.points) == (1, points)


def test_what_has_come_whole_is_marked() -> None:
    here = Here()
    assert copy(There(metrics=["a"], files=["f"]), here).runs["copied"] == 1
    assert here.tags[MARK_TAG]


def test_a_copy_of_a_version_comes_after_it_whatever_their_names() -> None:
    there, here = There(), Here()
    there.models = [
        RegisteredModel(name="alpha", versions=[Version(version=1, source="models:/zeta/1")]),
        RegisteredModel(name="zeta", versions=[Version(version=1, source=f"runs:/{RUN}/m")]),
    ]
    summary = copy(there, here)
    assert summary.problems == []
    assert here.versions == ["zeta/1", "alpha/1"]


def test_signs_that_no_database_keeps_cost_no_run() -> None:
    class Odd(There):
        def runs(self, *_: object, **__: object) -> Iterator[Run]:
            [run] = super().runs()
            yield replace(run, name="n\0", params={"lr": "0.1", "note": "a\0b"}, tags={"t": "\ud800"})

    class Strict(Here):
        name = ""

        def put_run(self, run: Run, _experiment_id: str) -> Taken:  # type: ignore[override]
            self.name = run.name
            return Taken(True, "mlflow-artifacts:/1/r")

    here = Strict()
    summary = copy(Odd(metrics=["a"]), here)
    assert here.name == "n\ufffd"
    assert (here.tags["lr"], here.tags["note"], here.tags["t"]) == ("0.1", "a\ufffdb", "\ufffd")
    assert [one.partition(": \ufffd")[0].rpartition(" in ")[2] for one in summary.problems] == [
        "param 'note'",
        "tag 't'",
        "its name",
    ]
    assert here.points == ["a"]
    assert here.tags[MARK_TAG]  # all that can be here is
