"""HTTP bodies between the server and the agents on nodes elsewhere. The agent's side is `windlass.agent.relay`.

A report is one line of JSON (`ReportHead`) and, right behind it, the bytes of the files it names, in their order.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from windlass.core.exits import ExitReason

Incarnation = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z_-]+$")]
Time = Annotated[float, Field(ge=0, lt=1e11)]


class _Sent(BaseModel):
    """Newer agents may say more than this server knows."""

    model_config = ConfigDict(extra="ignore")


class _File(BaseModel):
    """A file of the node's folder, kept whole; only what the server reads of it is checked."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)


class Hello(_Sent):
    incarnation: Incarnation
    address: str = Field(min_length=1, max_length=200, pattern=r"^[0-9A-Za-z.:_%-]+$")
    port: int = Field(ge=1, le=65_535)
    host: str = Field("", max_length=200, pattern=r"^[^\x00]*$")


class StopWish(BaseModel):
    kind: str
    reason: str
    grace_s: float


class Welcome(BaseModel):
    """Everything the node needs to begin."""

    plan: dict[str, Any]
    secrets: dict[str, str]
    master_addr: str
    master_port: int
    node_addrs: list[str]
    stop: StopWish | None = None


class Patience(BaseModel):
    """Not all nodes have said hello yet: say it again."""

    wait_s: float = 0.0
    missing: list[int]


class NodeStatus(_File):
    state: str = Field(max_length=20)
    started_at: Time


class RankEnd(_File):
    rank: int
    ended_at: Time


class NodeOutcome(_File):
    reason: ExitReason
    exit_code: int | None
    signal: int | None
    rank: int | None
    message: str = Field(max_length=100_000)
    fingerprint: str | None = Field(max_length=200)
    about_peers: bool = False
    traceback: str | None = Field(None, max_length=100_000)
    trouble: str | None = Field(None, max_length=64)
    started_at: Time | None
    ended_at: Time
    ranks: list[RankEnd] = Field(max_length=10_000)
    usage: dict[str, Any]


class NodeUsage(_File):
    at: Time
    cpu_percent: float
    rss_bytes: int
    peak_rss_bytes: int
    cpu_seconds: float
    gpus: list[dict[str, Any]]
    ranks: list[dict[str, Any]]


class NodeNotice(_Sent):
    message: str = Field(max_length=2_000)
    deadline: Time | None = None
    certain: bool = True


class SentBytes(_Sent):
    name: str = Field(max_length=40)
    position: int = Field(ge=0, lt=2**62)
    size: int = Field(ge=0)


class ReportHead(_Sent):
    incarnation: Incarnation
    status: NodeStatus | None = None
    usage: NodeUsage | None = None
    environment: dict[str, Any] | None = None
    notice: NodeNotice | None = None
    outcome: NodeOutcome | None = None
    files: list[SentBytes] = Field(default_factory=list, max_length=1_000)


class ReportReceipt(BaseModel):
    positions: dict[str, int]  # of each file that was sent: the byte expected next
    stop: StopWish | None
    ended: bool  # the outcome is on record: the node has nothing left to say
    pause_s: float  # how long to gather new lines before the next report
    beat_s: float  # how long to be silent if there are none
