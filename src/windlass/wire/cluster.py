"""HTTP bodies about the server itself and the nodes it can use."""

from __future__ import annotations

from pydantic import Field

from windlass.wire.runs import Wire


class ErrorBody(Wire):
    code: str
    message: str
    hint: str | None = None


class Health(Wire):
    status: str
    version: str
    controller: str = Field(description="active, standby, or absent: whether something moves runs forward")


class Info(Wire):
    version: str
    database: str
    home: str | None
    auth: bool
    pid: int
    started_at: float
    pass_ms: list[float] = Field(default_factory=list, description="the last passes of this process's controller")


class NodeRun(Wire):
    id: str
    name: str
    project: str = ""
    cpus: float
    gpus: list[int]
    gpu_part: float = Field(1.0, description="of each of these GPUs; less where it shares one")
    memory_bytes: int


class NodeView(Wire):
    engine: str
    name: str
    cpus: float
    cpus_used: float
    memory_bytes: int
    memory_used_bytes: int
    gpus: int
    gpus_used: int
    gpu_type: str | None = Field(description="`tpu:v5e` and the like: its accelerators are TPUs")
    topology: list[str] = Field(default_factory=list, description="from the widest to the nearest: zone, rack, switch")
    labels: list[str] = Field(default_factory=list, description="`key=value`")
    price_per_hour: float = Field(0.0, description="dollars; 0: not known")
    spot: bool = Field(False, description="it can be taken away")
    runs: list[NodeRun]
    seen_at: float


class EngineView(Wire):
    name: str
    type: str
    nodes: int
    unreachable_since: float | None = Field(description="null: it answered when it was asked last")
    message: str
    seen_at: float | None


class AsideView(Wire):
    engine: str
    node: str
    reason: str
    since: float
    until: float | None = Field(description="null: until somebody gives it back")
    times: int = Field(description="how often in a row it has failed")
    by_hand: bool
    run_id: str | None = Field(description="whose failure it was")


class NodeRef(Wire):
    node: str = Field(min_length=1, max_length=200, pattern=r"^[^\x00]*$")
    engine: str | None = Field(None, max_length=32, pattern=r"^[^\x00]*$", description="needed if several have one")


class AsideRequest(NodeRef):
    for_s: float | None = Field(None, gt=0, le=10 * 366 * 86_400, description="null: until somebody gives it back")
    reason: str = Field("", max_length=1_000, pattern=r"^[^\x00]*$")


class ClusterView(Wire):
    engines: list[EngineView] = Field(default_factory=list)
    nodes: list[NodeView]
    set_aside: list[AsideView] = Field(default_factory=list, description="nodes that nothing is placed on")
    queued: int
    running: int


class SnapshotFile(Wire):
    path: str = Field(min_length=1, max_length=4_096, pattern=r"^[^\x00]*$")
    mode: int = Field(0o644, ge=0, le=0o7777)
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    size: int = Field(0, ge=0, lt=2**63)
    link: str | None = Field(None, max_length=4_096, pattern=r"^[^\x00]*$", description="target, for a symbolic link")


class SnapshotRequest(Wire):
    files: list[SnapshotFile] = Field(max_length=200_000)


class SnapshotReceipt(Wire):
    digest: str
    missing: list[str] = Field(description="sha256 of the blobs to send to /api/blobs before submitting")
