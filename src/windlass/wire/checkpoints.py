"""HTTP bodies about checkpoints, and the `checkpoint` section of a spec."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from windlass.core.manifest import Tier
from windlass.core.quantities import parse_duration, parse_size
from windlass.wire.gang import problem_at
from windlass.wire.strict import StrictModel

CHECKPOINT_KEY = "WINDLASS_CHECKPOINT_KEY"  # the secret that checkpoints are encrypted with
_SHORTEST_S = 1.0
_LONGEST_INTERVAL = 100
_SLOWEST_BYTES = 64 << 10
_MOST_STORES = 4
_STORE = re.compile(r"^(file:///[^\s?#]+|(s3|gs|az)://[^/\s?#]+(/[^\s?#]*)?)$")
_HTTP = re.compile(r"^https?://[^/\s]+(/[^\s?#]*)?$")


def _interval(value: Any) -> Any:
    """Kept as it was written: a number of steps and a duration stay different things."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value < 2**63:
            raise ValueError(f"{value} is out of range; write a number of steps from 1 on, or a duration such as 10m")
    elif not isinstance(value, str):
        raise ValueError(f"{value!r} is no interval; write a number of steps, or a duration such as 10m")
    elif len(value) > _LONGEST_INTERVAL:
        raise ValueError(f"{value[:20]!r}… is too long; write a duration such as 10m")
    elif parse_duration(value) < _SHORTEST_S:
        raise ValueError(f"{value!r} is too short; write a duration of {_SHORTEST_S:g} s or more, or a number of steps")
    return value


def _age(value: Any) -> Any:
    """As it was written; text or seconds."""
    if parse_duration(value) <= 0:
        raise ValueError(f"{value!r} is too short; write a duration such as 1d")
    return value


def _folder(value: str) -> str:
    if not value.startswith("/") or "\x00" in value:
        raise ValueError("write a whole path, as the nodes see it; an object store is a `store`")
    return value


def _store(value: str) -> str:
    if not _STORE.match(value):
        raise ValueError("write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///PATH")
    return value.rstrip("/")


def _endpoint(value: str) -> str:
    if not _HTTP.match(value):
        raise ValueError("write an address such as http://minio:9000")
    return value.rstrip("/")


def _rate(value: Any) -> Any:
    if value is not None and parse_size(value) < _SLOWEST_BYTES:
        raise ValueError(f"{value!r} is too slow; write {_SLOWEST_BYTES >> 10} KB or more, for a second")
    return value


def _memory(value: Any) -> Any:
    """YAML reads `off` as false."""
    value = {False: "off", True: "auto"}.get(value, value) if isinstance(value, bool) else value
    if value in ("auto", "off"):
        return value
    try:
        return _interval(value)
    except ValueError as error:
        raise ValueError(f"{error}; `auto` and `off` do as well") from None


class BestIs(StrEnum):
    LOWEST = "lowest"
    HIGHEST = "highest"


Every = Annotated[int | str, BeforeValidator(_interval)]
Memory = Annotated[int | str, BeforeValidator(_memory)]
Age = Annotated[int | float | str, BeforeValidator(_age)]
Address = Annotated[str, Field(max_length=2_000), AfterValidator(_store)]
Endpoint = Annotated[str, Field(max_length=2_000), AfterValidator(_endpoint)]
Rate = Annotated[int | str, AfterValidator(_rate)]
Metric = Annotated[str, Field(min_length=1, max_length=250, pattern=r"^[^\x00]*$")]
Watched = Annotated[str, Field(min_length=1, max_length=2_000, pattern=r"^[^\x00]*$")]


class Compress(StrEnum):
    NONE = "none"
    ZSTD = "zstd"
    ZLIB = "zlib"


class StoreSpec(StrictModel):
    """One of several stores. What it does not say of retention is as in the folder."""

    at: Address = Field(description="s3://BUCKET/PREFIX, gs://…, az://… or file:///PATH")
    endpoint: Endpoint | None = Field(None, description="of an S3-compatible server; default AWS_ENDPOINT_URL")
    every: Every | None = Field(None, description="how often one goes there; default as often as it keeps up")
    keep: int | None = Field(None, ge=1, le=100_000, description="how many of the newest stay there")
    keep_every: int | None = Field(None, ge=1, lt=2**63, description="those at multiples of so many steps stay too")
    keep_for: Age | None = Field(None, description="those that are younger stay too: 30d")
    best: Metric | None = Field(None, description="a metric: the best by it stays too")
    best_is: BestIs | None = Field(None, description="whether the lowest or the highest is the best")
    rate: Rate | None = Field(None, description="bytes a second at most while training, e.g. 50MB")


class CheckpointSpec(StrictModel):
    every: Every | None = Field(None, description="how often: a duration such as 10m, or a number of steps")
    keep: int | None = Field(None, ge=1, le=100_000, description="how many of the newest stay")
    keep_every: int | None = Field(None, ge=1, lt=2**63, description="those at multiples of so many steps stay too")
    keep_for: Age | None = Field(None, description="those that are younger stay too: 1d")
    best: Metric | None = Field(None, description="a metric: the best by it stays too")
    best_is: BestIs = Field(BestIs.LOWEST, description="whether the lowest or the highest is the best")
    folder: Annotated[str, Field(max_length=2_000), AfterValidator(_folder)] | None = Field(
        None, description="where they go, in a folder of the run's own; default the run's folder"
    )
    memory: Memory | None = Field(
        None, description="copies in the nodes' memory: auto, off, or how often; default auto, as often as costs little"
    )
    watch: Watched | list[Watched] | None = Field(
        None, description="files or folders that the program saves by itself, by pattern: out/*.pt"
    )
    compress: Compress | None = Field(None, description="files at rest: none, zstd or zlib; default none")
    encrypt: bool | None = Field(None, description="files at rest, with the key in the secret WINDLASS_CHECKPOINT_KEY")
    store: Address | None = Field(
        None, description="an object store that gets a copy: s3://BUCKET/PREFIX, gs://…, az://… or file:///PATH"
    )
    store_endpoint: Endpoint | None = Field(None, description="of an S3-compatible server; default AWS_ENDPOINT_URL")
    store_every: Every | None = Field(
        None, description="how often one goes to the store; default as often as it keeps up"
    )
    store_keep: int | None = Field(None, ge=1, le=100_000, description="how many stay there; default `keep`")
    store_keep_every: int | None = Field(None, ge=1, lt=2**63, description="as `keep_every`, there")
    store_keep_for: Age | None = Field(None, description="as `keep_for`, there")
    store_best: Metric | None = Field(None, description="as `best`, there")
    store_best_is: BestIs | None = Field(None, description="as `best_is`, there")
    store_rate: Rate | None = Field(None, description="bytes a second at most while training, e.g. 50MB")
    stores: Annotated[list[StoreSpec], Field(min_length=1, max_length=_MOST_STORES)] | None = Field(
        None, description="several stores, each with what `store` and the keys beside it say of one"
    )

    def endpoint_of(self, location: str) -> str | None:
        """Of the S3 server that has this checkpoint, if the spec names one."""
        if "://" not in location:
            return None
        several = (store.endpoint for store in self.stores or () if location.startswith(f"{store.at}/"))
        return next(several, self.store_endpoint)


STORE_KEYS = tuple(name for name in CheckpointSpec.model_fields if name.startswith("store_"))


def check_stores(wanted: CheckpointSpec) -> None:
    """Nothing that is said of a store may be without one."""
    beside = [name for name in STORE_KEYS if getattr(wanted, name) is not None]
    if beside and wanted.store is None:
        rule = "is said in `stores`, for each of them" if wanted.stores else "goes with `store`, which is not given"
        raise problem_at(("checkpoint", beside[0]), rule)
    if wanted.store is not None and wanted.stores:
        raise problem_at(("checkpoint", "store"), "is short for one of `stores`: give one of the two")
    places = [store.at for store in wanted.stores or ()]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise problem_at(("checkpoint", "stores", number, "at"), f"is {place} a second time")


def check_watch(wanted: CheckpointSpec) -> None:
    """What a program saves by itself is copied as it is: who wants it encrypted must not get it plain."""
    asked = [name for name in ("encrypt", "compress") if getattr(wanted, name) not in (None, False, Compress.NONE)]
    if wanted.watch and asked:
        off = {"encrypt": "false", "compress": "none"}[asked[0]]
        rule = f"takes files as they are, and `{asked[0]}` is wanted"
        raise problem_at(("checkpoint", "watch"), f"{rule}: leave one out, or say `{asked[0]}: {off}`")


class Wire(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PlaceView(Wire):
    id: str
    tier: str = Field(description="folder, or store: an object store")
    location: str
    state: str
    detail: str | None = Field(None, description="why it is corrupt or gone there")
    verified_at: float | None = None


class CheckpointView(Wire):
    """A checkpoint, and of its places the nearest good one."""

    id: str
    run_id: str
    attempt: int
    step: int
    epoch: int | None = Field(None, description="if the program logged one")
    location: str = Field(description="a folder, as the nodes see it, or an address")
    tier: str
    size_bytes: int
    file_count: int
    world_size: int = Field(description="processes that saved it; any other number can load it")
    plan: str
    format: str
    reason: str = Field(description="interval, warned (just before the process was ended), final, asked or rescued")
    metrics: dict[str, float] = Field(description="last values when it was saved")
    state: str = Field(description="available, corrupt or deleted")
    detail: str | None = Field(None, description="why it is corrupt or gone")
    created_at: float
    verified_at: float | None = Field(None, description="when its files were last found as they should be")
    places: list[PlaceView] = Field(default_factory=list, description="all that it was brought to")
    is_newest: bool = Field(False, description="the good one that the run would go on from")
    is_best: bool = False


class CheckpointList(Wire):
    run_id: str
    best_by: str = Field(description="the metric that tells which is the best")
    checkpoints: list[CheckpointView]


class FileView(Wire):
    name: str
    size_bytes: int
    sha256: str


class CheckpointDetail(Wire):
    checkpoint: CheckpointView
    files: list[FileView] | None = Field(
        description="of its manifest; null: nobody has told, and the server cannot see the folder"
    )


class Verification(Wire):
    checkpoint: CheckpointView
    finding: str = Field(description="good, corrupt, missing, or unseen: nothing can be told from here")
    problems: list[str]
    host: str = Field(description="where it was looked at")


class RemoveRequest(Wire):
    tier: Tier | None = Field(None, description="only there; default everywhere")
    forget: bool = Field(False, description="only take it off the list: its files are gone, or nobody's concern here")
