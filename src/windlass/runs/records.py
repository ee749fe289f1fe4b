"""Runs, attempts and events as the database holds them: typed rows, and the codecs of their JSON columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from sqlalchemy import Row

from windlass.core.exits import Exit, ExitReason
from windlass.core.resources import NodeShare, Placement, Resources
from windlass.runs.command import whole_request
from windlass.runs.retry import Ended, RetryPolicy
from windlass.runs.types import AttemptState, RunState
from windlass.wire.spec import RunSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHead:
    """A run without its large parts: enough for lists, which would spend most of their time on parsing those."""

    id: str
    name: str
    project: str
    user: str | None
    state: RunState
    version: int
    tags: Mapping[str, str]
    seed: int
    code_digest: str | None
    clone_of: str | None
    submitted_at: float
    queued_at: float
    started_at: float | None
    ended_at: float | None
    retry_at: float | None
    cancel_requested_at: float | None
    cancel_grace_s: float | None
    priority: int
    resources: Resources
    attempt_count: int
    first_attempt: int
    exit: Exit | None
    cpu_hours: float
    gpu_hours: float
    cost_usd: float
    request_digest: str | None
    preemptions: int = 0
    ran_s: float = 0.0

    @property
    def waits_since(self) -> float:
        """This time, if it waits."""
        return self.retry_at or self.queued_at if self.state is RunState.RECOVERING else self.queued_at

    @property
    def cancelling(self) -> bool:
        return self.cancel_requested_at is not None and not self.state.is_terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord(RunHead):
    spec_data: Mapping[str, Any]
    argv: tuple[str, ...]
    origin: Mapping[str, Any]

    @property
    def spec(self) -> RunSpec:
        """Parsed on demand: most of what is done with a run does not look at it."""
        return RunSpec.model_validate(self.spec_data)

    @property
    def retry_policy(self) -> RetryPolicy:
        retry = self.spec.retry
        return RetryPolicy(max=retry.max, backoff_s=retry.backoff, errors_too=True) if retry else RetryPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class GivingWay:
    """What the scheduler has decided about a live attempt: it is warned and stopped, and its run goes on later."""

    why: str  # in words
    at: float
    cause: str  # of `scheduling.core.types.Cause`
    by: str | None = None  # the run that it makes room for
    lost_gpu_s: float = 0.0  # as reckoned
    keeps: Mapping[str, Any] | None = None  # of an elastic run: the placement that it goes on with at once


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    id: str
    run_id: str
    number: int
    state: AttemptState
    engine: str
    placement: Placement
    created_at: float
    started_at: float | None
    ended_at: float | None
    released_at: float | None
    exit: Exit | None
    log_dirs: tuple[str, ...]
    environment_digest: str | None
    usage: Mapping[str, Any] | None
    slot: int = 0
    detail: str | None = None
    unknown_since: float | None = None
    archived_at: float | None = None
    recoveries: int = 0
    recovered_at: float | None = None
    queued_at: float | None = None
    giving_way: GivingWay | None = None
    saved_at: float | None = None
    heeds_notice: bool = False
    usd_per_hour: float | None = None
    outputs_in: str | None = None


def ended_attempt(
    attempt: AttemptRecord, exit: Exit, before: Ended | None, usage: Mapping[str, Any] | None = None
) -> Ended:
    """`before`: the attempt before it; `usage`: what was heard of this one after its record was written."""
    told = [step for step in (_told_step(attempt.usage), _told_step(usage)) if step is not None]
    if attempt.recovered_at is not None and before is not None and before.step is not None:
        told.append(before.step + 1)  # its ranks may have told more before they started again in place
    has_run = attempt.started_at is not None and exit.reason is not ExitReason.LAUNCH_FAILED
    return Ended(exit=exit, has_run=has_run, step=max(told, default=None))


def _told_step(usage: Mapping[str, Any] | None) -> int | None:
    """Programs can write into the folder of their node: what is no step is none."""
    told = (usage or {}).get("progress")
    if not isinstance(told, Mapping) or not told.get("steps"):
        return None
    return told["step"] if type(told.get("step")) is int else None


def head_from_row(row: Row[Any]) -> RunHead:
    return RunHead(**_head_values(dict(row._mapping)))


def run_from_row(row: Row[Any]) -> RunRecord:
    values = _head_values(dict(row._mapping))
    values["resources"] = whole_request(values["resources"], values["spec"])
    return RunRecord(spec_data=values.pop("spec"), argv=tuple(values.pop("argv")), **values)


def _head_values(values: dict[str, Any]) -> dict[str, Any]:
    values.pop("idempotency_key", None)
    values["resources"] = Resources(
        nodes=values.pop("nodes"),
        cpus=values.pop("cpus"),
        memory_bytes=values.pop("memory_bytes"),
        gpus=values.pop("gpus"),
        gpu_type=values.pop("gpu_type"),
    )
    values["state"] = RunState(values["state"])
    values["exit"] = exit_from_json(values["exit"])
    return values


def attempt_from_row(row: Row[Any]) -> AttemptRecord:
    values = dict(row._mapping)
    values["state"] = AttemptState(values["state"])
    values["placement"] = placement_from_json(values["placement"])
    values["exit"] = exit_from_json(values["exit"])
    values["log_dirs"] = tuple(values["log_dirs"])
    values["giving_way"] = giving_way_from_json(values["giving_way"])
    return AttemptRecord(**values)


_NEWER = ("traceback", "trouble", "node_rank", "node")


def exit_to_json(exit: Exit | None) -> dict[str, Any] | None:
    """Keys that servers of an older version do not know are there only where there is something to say. They know no
    hangs either: to them it was killed, and is tried again."""
    if exit is None:
        return None
    data = {name: value for name, value in asdict(exit).items() if name not in _NEWER or value is not None}
    return {**data, "reason": ExitReason.SIGNAL.value, "hang": True} if exit.reason is ExitReason.HANG else data


def exit_from_json(data: Mapping[str, Any] | None) -> Exit | None:
    if data is None:
        return None
    known = {field.name: data[field.name] for field in fields(Exit) if field.name in data}
    return Exit(**{**known, "reason": ExitReason.HANG if data.get("hang") else ExitReason(data["reason"])})


def giving_way_from_json(data: Mapping[str, Any] | None) -> GivingWay | None:
    return GivingWay(**data) if data is not None else None


def placement_to_json(placement: Placement) -> dict[str, Any]:
    """Without parts of GPUs where they are whole: servers of an older version do not know them."""
    data = asdict(placement)
    for share in data["shares"]:
        if share["gpu_part"] == 1.0:
            del share["gpu_part"]
    return data


def placement_from_json(data: Mapping[str, Any]) -> Placement:
    shares = tuple(NodeShare(**{**share, "gpu_indices": tuple(share["gpu_indices"])}) for share in data["shares"])
    return Placement(engine=data["engine"], shares=shares)
