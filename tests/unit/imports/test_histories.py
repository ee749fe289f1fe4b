"""Histories of many runs at a time."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.imports.histories import Histories, together
from windlass.imports.records import Owner, Point, Run


def run(number: int, *keys: str) -> Run:
    points = {key: Point(0, number, 0.0) for key in keys}
    return Run(id=f"r{number}", name="", metrics=points, files=Owner("run", f"r{number}"))


class Server:
    def __init__(self, *, too_many: str = "") -> None:
        self.asked: list[tuple[list[str], str]] = []
        self._too_many = too_many

    def fetch(self, run_ids: Sequence[str], key: str) -> dict[str, list[Point]] | None:
        self.asked.append((list(run_ids), key))
        return None if key == self._too_many else {one: [Point(1, int(one[1:]), 1.0)] for one in run_ids}


def test_runs_that_have_a_metric_are_asked_for_together() -> None:
    server = Server()
    histories = Histories(server.fetch)
    histories.announce([run(1, "a", "b"), run(2, "a"), run(3, "a", "b")])
    assert histories.take("r2", "a") == [Point(1, 2, 1.0)]
    assert histories.take("r1", "a") == [Point(1, 1, 1.0)]
    assert histories.take("r3", "b") == [Point(1, 3, 1.0)]
    assert server.asked == [(["r1", "r2", "r3"], "a"), (["r1", "r3"], "b")]
    assert histories.take("r2", "a") is None  # asked again: as it is now


def test_what_is_too_long_alone_or_unknown_is_asked_for_by_itself() -> None:
    server = Server(too_many="long")
    histories = Histories(server.fetch)
    histories.announce([run(1, "long", "lonely"), run(2, "long")])
    assert histories.take("r1", "long") is None
    assert histories.take("r2", "long") is None
    assert histories.take("r1", "lonely") is None
    assert histories.take("r9", "long") is None
    assert server.asked == [(["r1", "r2"], "long")]


def test_no_more_is_remembered_than_is_being_copied() -> None:
    server = Server()
    histories = Histories(server.fetch)
    for page in range(30):
        histories.announce([run(50 * page + number, "a") for number in range(50)])
    assert histories.take("r0", "a") is None
    assert histories.take("r1499", "a") == [Point(1, 1499, 1.0)]


def test_metrics_are_asked_for_together_as_far_as_they_fit() -> None:
    asked: list[list[str]] = []

    def fetch(keys: Sequence[str]) -> dict[str, list[Point]]:
        asked.append(list(keys))
        return {} if keys[0] == "long" else {key: [Point(0, 0, float(len(key)))] for key in keys[:2]}

    keys = ["a", "bb", "long", "c", "dd", "eee"]
    found = list(together(keys, fetch, lambda _: [Point(0, 0, -1.0)]))
    assert [key for key, _ in found] == keys
    assert [points[0].value for _, points in found] == [1.0, 2.0, -1.0, 1.0, 2.0, 3.0]  # type: ignore[index]
    assert [some[0] for some in asked] == ["a", "long", "c", "eee"]
