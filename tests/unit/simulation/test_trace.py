"""Traces: both formats, what is left out, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from windlass.core.errors import InvalidDocument
from windlass.simulation.trace import Job, make_trace, read_trace, synthetic_trace, trace_of_runs

PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-09-04 10:31:41,100.0,8,800.0,b
2017-09-04 10:30:41,50.0,1,50.0,a
2017-09-04 10:40:41,0.0,1,0.0,a
"""


def test_csv_is_read_in_the_order_of_submission(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(PHILLY)
    jobs = read_trace(file).jobs
    assert [(job.at, job.seconds, job.gpus, job.project) for job in jobs] == [(0, 50, 1, "a"), (60, 100, 8, "b")]


def test_runs_as_the_api_shows_them_are_read(tmp_path: Path) -> None:
    run = {"id": "r-1", "project": "vision", "user": "ann", "priority": "high", "submitted_at": 1000.0}
    done = {**run, "ended_at": 1100.0, "duration_s": 90.0, "spec": {"resources": {"gpus": 8, "nodes": 2}}}
    going = {**done, "ended_at": None}
    cpus = {**done, "spec": {"resources": {"cpus": 4}}}
    file = tmp_path / "runs.jsonl"
    file.write_text("\n".join(json.dumps(each) for each in (done, going, cpus)) + "\n")
    (job,) = read_trace(file).jobs
    assert job == Job(name="r-1", at=0, seconds=90, gpus=16, project="vision", user="ann", priority=1)


def test_waiting_between_attempts_is_no_running() -> None:
    run = {"id": "r-1", "submitted_at": 1000.0, "ended_at": 9000.0, "duration_s": 8000.0, "cost": {"gpu_hours": 4.0}}
    (job,) = trace_of_runs([{**run, "spec": {"resources": {"gpus": 8}}}]).jobs
    assert job.seconds == 1800


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", "no column timestamp, duration, num_gpus in a, b"),
        (PHILLY + "2017-09-04 11:00:00,long,1,1,a\n", "t.csv:5: could not convert string to float: 'long'"),
        ('{"id": "r"}\n', "t.csv:1: KeyError 'ended_at'"),
        ("timestamp,duration,num_gpus\n", "one at least is needed"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(text)
    with pytest.raises(InvalidDocument) as refused:
        read_trace(file)
    assert said in refused.value.message


def test_the_load_sets_the_number_of_gpus() -> None:
    trace = make_trace([Job(name="1", at=0, seconds=100, gpus=4), Job(name="2", at=50, seconds=100, gpus=4)])
    assert trace.gpus_for(0.8) == 20
    assert trace.load_of(20) == pytest.approx(0.8)
    assert trace.gpus_for(10) == 4  # the widest job fits


def test_a_synthetic_trace_is_the_same_each_time() -> None:
    assert synthetic_trace(jobs=50, span_s=1000) == synthetic_trace(jobs=50, span_s=1000)


def test_jobs_that_come_at_once_are_offered_no_time() -> None:
    assert (
        make_trace([Job(name="a", at=5.0, seconds=9.0, gpus=1), Job(name="b", at=5.0, seconds=9.0, gpus=1)]).load_of(2)
        is None
    )


def test_a_run_that_is_there_twice_is_named(tmp_path: Path) -> None:
    line = '{"id": "r-1", "submitted_at": 1.0, "ended_at": 6.0, "duration_s": 5.0, "spec": {"resources": {"gpus": 1}}}'
    path = tmp_path / "runs.jsonl"
    path.write_text(f"{line}\n{line}\n")
    with pytest.raises(InvalidDocument, match="run r-1 is there more than once"):
        read_trace(path)
