"""Profiles: a trace that viewers can read, and a table that people can."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from windlass import job  # noqa: E402
from windlass.job.accounting.intervals import Shares  # noqa: E402
from windlass.job.accounting.profiling import Operator, Summary, render_summary  # noqa: E402

pytestmark = pytest.mark.torch


def work(size: int = 64) -> None:
    (torch.ones(size, size) @ torch.ones(size, size)).sum()


def test_a_profile_of_some_steps(tmp_path: Path) -> None:
    with job.profile(steps=3, warmup=2, folder=tmp_path) as profile:
        for _ in profile.over(range(50)):
            work()
            if profile.summary is not None:
                assert (tmp_path / "rank-0.txt").exists()  # as soon as it is over, not at the end of the loop
    assert profile.summary is not None
    assert profile.summary.steps == 3
    trace = json.loads(gzip.decompress((tmp_path / "rank-0.trace.json.gz").read_bytes()))
    assert sum(event.get("name") == "aten::mm" for event in trace["traceEvents"]) == 3
    table = (tmp_path / "rank-0.txt").read_text()
    assert "aten::mm" in table
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank-0.trace.json.gz", "rank-0.txt"]


def test_leaving_early_writes_what_there_is(tmp_path: Path) -> None:
    with job.profile(steps=30, warmup=0, folder=tmp_path) as profile:
        for _ in profile.over(range(2)):
            work()
    assert profile.summary is not None
    assert profile.summary.steps == 2


def test_an_error_inside_writes_nothing_and_leaves_the_profiler_free(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), job.profile(warmup=0, folder=tmp_path / "none"):
        work(-1)
    assert not (tmp_path / "none").exists()
    with job.profile(steps=1, warmup=0, folder=tmp_path) as profile:
        work()
        profile.step()
    assert profile.summary is not None


def test_a_trace_that_would_be_too_large_is_left_out(tmp_path: Path) -> None:
    with job.profile(steps=1, warmup=0, folder=tmp_path, most_events=1) as profile:
        work()
        profile.step()
    assert not (tmp_path / "rank-0.trace.json.gz").exists()
    assert "1 are the limit; profile fewer steps" in (tmp_path / "rank-0.txt").read_text()


def test_the_table() -> None:
    summary = Summary(
        rank=1,
        device="NVIDIA H200",
        steps=2,
        seconds=0.5,
        data_wait_s=0.05,
        shares=Shares(communication=0.4, overlapped=0.75),
        operators=[Operator(name="x" * 70, calls=4, seconds=0.2), Operator(name="mm", calls=2, seconds=0.1)],
        trace="rank-1.trace.json.gz",
    )
    assert render_summary(summary) == (
        "Rank 1 on NVIDIA H200: 2 steps in 0.500 s\n"
        "  waiting for data              10.0%\n"
        "  compute and all else          80.0%\n"
        "  communication, not hidden     10.0%\n"
        "  communication in all          40.0%, of which 75% while computing\n"
        "Trace (chrome://tracing, ui.perfetto.dev): rank-1.trace.json.gz\n"
        "\n"
        f"operator{' ' * 52}     calls    ms/step   share\n"
        f"{'x' * 57}...         4    100.000   40.0%\n"
        f"mm{' ' * 58}         2     50.000   20.0%\n"
    )


@pytest.mark.parametrize(("steps", "warmup", "words"), [(0, 1, "steps is 0"), (1, -1, "warmup is -1")])
def test_numbers_that_make_no_sense(steps: int, warmup: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        job.profile(steps=steps, warmup=warmup)
