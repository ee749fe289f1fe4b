"""HTTP bodies about runs, their attempts, events, logs and metrics."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from windlass.wire.figures import Figure
from windlass.wire.spec import EnvName, ParamValue, RunSpec, Text

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
ShortText = Annotated[str, Field(pattern=r"^[^\x00]*$", max_length=2_000)]


class Wire(BaseModel):
    model_config = ConfigDict(extra="forbid")


class GitState(Wire):
    commit: ShortText | None = None
    branch: ShortText | None = None
    remote: ShortText | None = None
    dirty: bool = False
    diff: Annotated[str, Field(max_length=2_000_000)] | None = Field(
        None, description="kept as a blob, not in the record"
    )
    diff_digest: Digest | None = None


class Origin(Wire):
    """Where a run was submitted from: part of the record, and what the local engine needs to run it the same way."""

    host: ShortText | None = None
    user: ShortText | None = None
    cwd: ShortText | None = None
    client: ShortText | None = Field(None, description="for example windlass 0.1.0")
    search_path: Annotated[str, Field(pattern=r"^[^\x00]*$", max_length=50_000)] | None = Field(
        None, description="PATH"
    )
    env: dict[EnvName, Text] = Field(default_factory=dict, description="VIRTUAL_ENV, PYTHONPATH and alike")
    git: GitState | None = None


def _as_text(value: dict[str, Any]) -> dict[str, Any]:
    """JSON can name half of a surrogate pair; no file, environment or database can hold it."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{error.object[error.start : error.end]!r} is half of a surrogate pair, not text") from error
    return value


class SubmitRequest(Wire):
    spec: Annotated[dict[str, Any], AfterValidator(_as_text)] = Field(description="a run spec; see docs/spec.md")
    code_digest: Digest | None = Field(None, description="of a snapshot sent before")
    secrets: dict[EnvName, Text] = Field(
        default_factory=dict, description="values for the spec's secrets; never given back"
    )
    origin: Origin = Field(default_factory=Origin)


class CancelRequest(Wire):
    grace_s: float | None = Field(None, ge=0, le=86_400, description="seconds between SIGTERM and SIGKILL")


class Asker(Wire):
    """Who wants it, and where they are; all else of a copy's origin is its original's."""

    user: ShortText | None = None
    host: ShortText | None = None


class CloneRequest(Wire):
    set: dict[Text, ParamValue] = Field(
        default_factory=dict, description="`lr` (a param), `params.lr` or any spec key, e.g. `resources.gpus`"
    )
    name: ShortText | None = None
    secrets: dict[EnvName, Text] = Field(default_factory=dict)
    asker: Asker | None = Field(None, description="default: who submitted the original")


class ReproduceRequest(Wire):
    name: ShortText | None = None
    secrets: dict[EnvName, Text] = Field(default_factory=dict)
    asker: Asker | None = Field(None, description="default: who submitted the original")


class Pin(Wire):
    """One thing that a run depends on."""

    what: str = Field(description="code, command, seed, packages, hardware or data")
    pinned: bool = Field(description="a copy of the run gets the same")
    how: str


class PinList(Wire):
    pins: list[Pin]


class Reproduction(Wire):
    run: RunView
    pins: list[Pin]


class ExitView(Wire):
    reason: str
    exit_code: int | None = None
    signal: int | None = None
    rank: int | None = None
    message: str = ""
    traceback: str | None = Field(
        None, description="of that rank: the first to fail, not those that failed for want of it"
    )
    trouble: str | None = Field(None, description="what kind it is, where its last words tell: see docs/recovery.md")
    node: str | None = Field(None, description="where it happened")


class Progress(Wire):
    step: int
    total: int | None = None
    eta_s: float | None = None


class MetricSummary(Wire):
    last: Figure | None
    step: int | None = None
    min: Figure | None = Field(None, description="of what is a number; null: nothing is")
    max: Figure | None = None
    count: int = 0


class MetricSummaries(Wire):
    run_id: str
    metrics: dict[str, MetricSummary]
    left_out: int = Field(0, description="those of its machines, unless they were asked for")


class Cost(Wire):
    cpu_hours: float
    gpu_hours: float
    usd: float


class RunSummary(Wire):
    id: str
    name: str
    project: str
    user: str | None
    state: str
    cancelling: bool = False
    priority: str
    tags: dict[str, str]
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    duration_s: float | None = Field(description="from first start to end or now")
    attempts: int
    preemptions: int = Field(0, description="how often it was stopped to make room for other runs")
    retry_at: float | None = None
    unknown_since: float | None = Field(None, description="its engine cannot be asked: the state is the last known one")
    exit: ExitView | None
    progress: Progress | None
    cost: Cost

    @property
    def word(self) -> str:
        """The state as people should read it."""
        if self.cancelling and self.ended_at is None:
            return "cancelling"
        return "unknown" if self.unknown_since is not None else self.state


class RunView(RunSummary):
    spec: RunSpec
    seed: int
    command: list[str] = Field(description="what is started, params filled in")
    code_digest: str | None
    origin: Origin
    clone_of: str | None = None
    note: str | None = Field(None, description="what somebody wrote on it; MLflow's clients see it as its description")
    metrics: dict[str, MetricSummary]
    usage: dict[str, Any] | None = None
    environment: dict[str, Any] | None = Field(
        None, description="host, interpreter, packages and devices of the last attempt"
    )
    run_dir: str | None = Field(None, description="on the node: working folder and logs of every attempt")
    exit_code: int | None = Field(None, description="as a shell would show it; set at the end")


class RunPage(Wire):
    runs: list[RunSummary]
    next_cursor: str | None = None


class AttemptView(Wire):
    id: str
    number: int
    state: str
    engine: str
    nodes: list[str]
    created_at: float
    started_at: float | None
    ended_at: float | None
    exit: ExitView | None
    log_dirs: list[str]
    environment: dict[str, Any] | None
    usage: dict[str, Any] | None
    detail: str | None = Field(None, description="what the engine says about it")
    unknown_since: float | None = Field(None, description="since when the engine cannot tell how it is")


class AttemptList(Wire):
    attempts: list[AttemptView]


class EventView(Wire):
    seq: int
    at: float
    kind: str
    attempt: int | None
    message: str
    data: dict[str, Any]


class EventPage(Wire):
    events: list[EventView]
    next_after: int


class LogLine(Wire):
    at: float
    attempt: int
    rank: int
    stream: str = Field(description="stdout or stderr")
    text: str
    partial: bool = Field(False, description="the next line of the same rank and stream continues it")


class LogPage(Wire):
    lines: list[LogLine]
    next_cursor: str | None = Field(None, description="give it back as `after` to go on from here")
    more: bool = Field(False, description="a search is not through: go on, even if there are no lines on this page")


class Point(Wire):
    step: int | None = Field(None, ge=0, lt=2**63)
    at: float = Field(ge=0, lt=1e11)
    values: dict[Annotated[str, Field(pattern=r"^[^\x00]*$", min_length=1, max_length=250)], float] = Field(
        max_length=10_000
    )
    total: int | None = Field(None, ge=0, lt=2**63, description="steps there will be")


class MetricBatch(Wire):
    source: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,100}$")]
    seq: int = Field(ge=0, lt=2**63, description="number of the first point; points already known are skipped")
    points: list[Point] = Field(max_length=10_000)


class MetricReceipt(Wire):
    accepted: int
    next_seq: int


class MetricSeries(Wire):
    name: str
    steps: list[int | None]
    values: list[Figure | None] = Field(description='"NaN", "Infinity" and "-Infinity" are text')
    at: list[float]


class MetricsView(Wire):
    series: list[MetricSeries]


class MetricChart(Wire):
    """A metric in stretches of points that follow each other. Values as in a series; null: no number."""

    name: str
    points: list[int] = Field(description="how many there are in each stretch")
    first_steps: list[int | None]
    last_steps: list[int | None]
    first_at: list[float]
    last_at: list[float]
    min: list[Figure | None]
    max: list[Figure | None]
    mean: list[Figure | None]


class StartEstimate(Wire):
    """When a run that waits will start: of ten times once sooner than `earliest` and once later than `latest`. Null:
    later than the estimate looks."""

    earliest: float | None
    likely: float | None
    latest: float | None


class Why(Wire):
    run_id: str
    state: str
    summary: str
    details: list[str]
    position: int | None = Field(None, description="place in the queue, from 1")
    queued: int | None = Field(None, description="how many wait with it")
    start: StartEstimate | None = None


Reproduction.model_rebuild()
