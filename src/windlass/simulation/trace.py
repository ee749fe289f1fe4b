"""Traces: what was submitted when, how many GPUs it took and for how long. Two formats are read:

- CSV with the columns of the Philly trace: timestamp, duration, num_gpus, and cluster if there is one;
- JSON lines, a run a line as the API shows it: submitted_at, duration_s, project, user, spec.resources.
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from windlass.core.errors import InvalidDocument

_CSV_COLUMNS = ("timestamp", "duration", "num_gpus")
_MOST_PROBLEMS = 10  # shown of a file


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """`seconds` is how long it runs undisturbed. `gpus` are those of all its nodes."""

    name: str
    at: float
    seconds: float
    gpus: int
    project: str = "default"
    user: str = ""
    priority: int = 0

    @property
    def gpu_seconds(self) -> float:
        return self.seconds * self.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Jobs in the order of their submission, the first at zero."""

    jobs: tuple[Job, ...]

    @property
    def span_s(self) -> float:
        """From the first submission to the last."""
        return self.jobs[-1].at - self.jobs[0].at

    @property
    def gpu_seconds(self) -> float:
        return math.fsum(job.gpu_seconds for job in self.jobs)

    def gpus_for(self, load: float) -> int:
        """How many GPUs are offered this share of the time that they have while jobs are submitted."""
        widest = max(job.gpus for job in self.jobs)
        return max(widest, math.ceil(self.gpu_seconds / (load * self.span_s)))

    def load_of(self, gpus: int) -> float | None:
        """None where all jobs come at once: they are offered no time."""
        return self.gpu_seconds / (gpus * self.span_s) if self.span_s > 0 else None

    def one_in(self, count: int) -> Trace:
        """Every `count`-th job: the same mix, less often."""
        return make_trace(self.jobs[::count])

    def as_one_project(self) -> Trace:
        """All in one project, so that no shares are kept between them; what was a project is a user."""
        jobs = (replace(job, project="default", user=job.user or job.project) for job in self.jobs)
        return Trace(jobs=tuple(jobs))


def make_trace(jobs: Iterable[Job]) -> Trace:
    ordered = sorted(jobs, key=lambda job: job.at)
    if not ordered:
        raise InvalidDocument(["no job with a GPU and a duration above zero is in the trace; one at least is needed"])
    first = ordered[0].at
    return Trace(jobs=tuple(replace(job, at=job.at - first) for job in ordered))


def read_trace(path: Path) -> Trace:
    """By the file's first line: JSON lines begin with a brace."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidDocument([f"{path}: cannot be read: {error}"]) from error
    problems: list[str] = []
    read = _json_jobs if text.lstrip().startswith("{") else _csv_jobs
    jobs = list(read(text.splitlines(), path.name, problems))
    twice = [id for id, count in Counter(job.name for job in jobs).items() if count > 1]
    problems += [f"{path.name}: run {id} is there more than once" for id in twice]
    if problems:
        more = len(problems) - _MOST_PROBLEMS
        shown = problems[:_MOST_PROBLEMS] + ([f"{path.name}: {more} more like these"] if more > 0 else [])
        raise InvalidDocument(shown)
    return make_trace(jobs)


def trace_of_runs(runs: Iterable[Mapping[str, Any]]) -> Trace:
    """Of runs as the API shows them; those without GPUs and those that have not ended are left out."""
    jobs = [_job_of_run(run, number) for number, run in enumerate(runs, start=1)]
    return make_trace(job for job in jobs if job is not None)


def _utc(text: str) -> float:
    """Times without a zone are in none: the machine's own would make hours of them disappear in spring."""
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _csv_jobs(lines: list[str], name: str, problems: list[str]) -> Iterator[Job]:
    rows = csv.DictReader(lines)
    missing = [column for column in _CSV_COLUMNS if column not in (rows.fieldnames or ())]
    if missing:
        found = ", ".join(rows.fieldnames or ()) or "nothing"
        problems.append(
            f"{name}:1: no column {', '.join(missing)} in {found}; a trace is CSV with {', '.join(_CSV_COLUMNS)} "
            "and, if known, cluster, or JSON lines of runs"
        )
        return
    for row in rows:
        try:
            at = _utc(row["timestamp"])
            seconds, gpus = float(row["duration"]), float(row["num_gpus"])
        except (TypeError, ValueError) as error:
            problems.append(f"{name}:{rows.line_num}: {error}; a line is a time, seconds and a number of GPUs")
            continue
        if seconds > 0 and gpus >= 1:
            project = row.get("cluster") or "default"
            yield Job(name=f"job-{rows.line_num - 1}", at=at, seconds=seconds, gpus=round(gpus), project=project)


def _json_jobs(lines: list[str], name: str, problems: list[str]) -> Iterator[Job]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            run = json.loads(line)
            job = _job_of_run(run, number)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problems.append(
                f"{name}:{number}: {type(error).__name__} {error}; a line is a run as the API shows it, with "
                "submitted_at, duration_s and spec.resources"
            )
            continue
        if job is not None:
            yield job


def _job_of_run(run: Mapping[str, Any], number: int) -> Job | None:
    """None: it did not run yet, or is still running, or has no GPU."""
    if run["ended_at"] is None or run["duration_s"] is None:
        return None
    resources: Mapping[str, Any] = (run.get("spec") or run).get("resources") or {}
    gpus = int(resources.get("gpus") or 0) * int(resources.get("nodes") or 1)
    gpu_hours = float((run.get("cost") or {}).get("gpu_hours") or 0.0)
    # What it spent waiting between its attempts is in its duration too.
    seconds = 3600.0 * gpu_hours / gpus if gpus and gpu_hours else float(run["duration_s"])
    if gpus < 1 or seconds <= 0:
        return None
    return Job(
        name=str(run.get("id") or f"job-{number}"),
        at=float(run["submitted_at"]),
        seconds=seconds,
        gpus=gpus,
        project=str(run.get("project") or "default"),
        user=str(run.get("user") or ""),
        priority={"low": -1, "high": 1}.get(str(run.get("priority")), 0),
    )


_SIZES, _SHARES = (1, 2, 4, 8, 16, 32), (80, 5, 5, 8, 1.5, 0.5)


def synthetic_trace(*, jobs: int, span_s: float, seed: int = 0) -> Trace:
    """Arrivals at random, durations with a long tail that differ between projects and grow with the size."""
    source = random.Random(seed)
    made = []
    for number in range(jobs):
        gpus = source.choices(_SIZES, _SHARES)[0]
        team = source.choices(range(6), (32, 16, 8, 4, 2, 1))[0]
        middle = math.log(600) + 0.8 * math.log(gpus) + 0.4 * team
        seconds = min(30 * 86400.0, max(5.0, source.lognormvariate(middle, 1.9)))
        at = source.uniform(0, span_s)
        made.append(Job(name=f"job-{number}", at=at, seconds=seconds, gpus=gpus, project=f"team-{team}"))
    return make_trace(made)
