"""The queue as a table, and starts in words."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.cli.estimate import describe_start, start_in_short
from windlass.cli.queue import render_entries, render_projects
from windlass.wire.queue import ProjectShare, QueueEntry
from windlass.wire.runs import StartEstimate

NOW = 1_000_000.0
MINUTE = 60.0


def start(*minutes: float | None) -> StartEstimate:
    earliest, likely, latest = (None if each is None else NOW + each * MINUTE for each in minutes)
    return StartEstimate(earliest=earliest, likely=likely, latest=latest)


@pytest.mark.parametrize(
    ("estimate", "words", "short"),
    [
        (start(10, 25, 70), "starts in about 25 min (10 to 70 min)", "25 min (10 to 70)"),
        (start(0.5, 25, 180), "starts in about 25 min (30 s to 3 h)", "25 min (30 s to 3 h)"),
        (start(25, 25, 25), "starts in about 25 min", "25 min"),
        (start(0, 0, 0), "starts in a few seconds", "1 s"),
        (start(10, 25, None), "starts in about 25 min (10 min or much later)", "25 min (10 min or much later)"),
        (start(10, None, None), "starts in 10 min at the earliest, likely much later", "over 10 min"),
        (start(None, None, None), "nobody can tell when it starts", "?"),
    ],
)
def test_starts(estimate: StartEstimate, words: str, short: str) -> None:
    assert describe_start(estimate, NOW) == words
    assert start_in_short(estimate, NOW) == short


def entry(position: int | None, run_id: str, **more: Any) -> QueueEntry:
    usual: dict[str, Any] = {
        "name": f"train-{run_id}",
        "project": "vision",
        "user": "ada",
        "priority": "normal",
        "wants": "8 h100",
        "queued_at": NOW - 600,
        "start": start(10, 25, 70),
        "obstacle": "room",
        "reason": "8 h100 not free",
    }
    return QueueEntry(position=position, run_id=run_id, **(usual | more))


def test_columns_that_are_the_same_for_all_are_left_out() -> None:
    lines = render_entries([entry(1, "r-1"), entry(None, "r-2", start=None)], NOW, 200).splitlines()
    assert lines == [
        "#  RUN  NAME       WANTS   WAITED  STARTS IN          REASON",
        "1  r-1  train-r-1  8 h100  10 min  25 min (10 to 70)  8 h100 not free",
        "-  r-2  train-r-2  8 h100  10 min                     8 h100 not free",
    ]
    lines = render_entries([entry(1, "r-1", project="nlp"), entry(2, "r-2", user="bob")], NOW, 200).splitlines()
    assert lines[0].split() == ["#", "RUN", "NAME", "PROJECT", "USER", "WANTS", "WAITED", "STARTS", "IN", "REASON"]


def test_without_estimates_there_is_no_column_for_them() -> None:
    assert render_entries([entry(1, "r-1", start=None)], NOW, 200).splitlines() == [
        "#  RUN  NAME       WANTS   WAITED  REASON",
        "1  r-1  train-r-1  8 h100  10 min  8 h100 not free",
    ]


def test_a_narrow_terminal_goes_without_what_matters_less() -> None:
    entries = [entry(1, "r-0123456789", project="nlp", user="bob", name="a-rather-long-name"), entry(2, "r-2")]
    assert render_entries(entries, NOW, 80).splitlines()[:2] == [
        "#  RUN           NAME              PROJECT  STARTS IN  REASON",
        "1  r-0123456789  a-rather-long-n…  nlp      25 min     8 h100 not free",
    ]


def share(name: str, **more: Any) -> ProjectShare:
    usual: dict[str, Any] = {"weight": 1, "running": 2, "waiting": 0, "gpus": 12, "cpus": 24, "memory_bytes": 0}
    return ProjectShare(name=name, **(usual | {"share": 0.75, "lately": 0.5, "due": 0.5} | more))


def test_projects() -> None:
    assert render_projects([share("default")]) == ""
    shares = [
        share("lab", quota={"gpu": 16, "gpu:h100": 8}, weight=3),
        share("vision", parent="lab", waiting=4, gpus=0, cpus=0, share=0, due=0, limit={"runs": 20, "memory": 10**12}),
    ]
    assert render_projects(shares).splitlines() == [
        "PROJECT   RUN  WAIT  HOLD    QUOTA           LIMIT                   WEIGHT  SHARE  LATELY  DUE",
        "lab       2    -     12 GPU  16 GPU, 8 h100                          3       75%    50%     50%",
        "  vision  2    4     -                       1.0 TB memory, 20 runs  1       0%     50%     -",
    ]
