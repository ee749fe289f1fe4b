"""The server's settings as people write them: the models of the config file. Each leaf is one setting, with a default
and a line that says what it is for; the file that `windlass server init` writes, docs/config.md and the names of the
environment variables all come from here.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator, model_validator

from windlass.core.quantities import parse_duration, parse_size
from windlass.wire.engines import EngineConfig, LocalConfig
from windlass.wire.scheduling import ProjectSection, SchedulingSection, check_projects
from windlass.wire.strict import StrictModel

Seconds = Annotated[float, BeforeValidator(parse_duration)]
# Engines and projects: what attempts, nodes and specs carry.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$")]
ProjectName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_SHORTEST_LEASE_S = 3.0
_HTTP = re.compile(r"^https?://[^/\s]+(/[^\s?#]*)?$")
_BLOBS = re.compile(r"^(file:///\S*|(s3|gs|az)://[^/\s]+(/\S*)?|memory://)$")
_PLACE = re.compile(r"^(/|(?!runs:|models:)[a-z][a-z0-9+.-]*:/)[^#?\n]*$")


class Role(StrEnum):
    """A server answers requests, moves runs forward, or does both in one process."""

    ALL = "all"
    API = "api"
    CONTROLLER = "controller"


class ServerSection(StrictModel):
    """Where the server listens, and who may use it."""

    host: str = Field("127.0.0.1", description="address to listen on; 0.0.0.0 for all")
    port: int | None = Field(None, ge=0, le=65_535, description="default: the last one, else 8470, else a free one")
    url: str | None = Field(
        None, description="where clients and nodes reach it, e.g. https://windlass.example.com; nodes elsewhere need it"
    )
    auth: bool = Field(True, description="ask for a token; can be turned off on loopback only")
    role: Role = Field(Role.ALL, description="all, api (answer requests) or controller (move runs forward)")
    token_file: str | None = Field(None, description="holds the token; default `token` in the home folder, made once")
    secret_key_file: str | None = Field(
        None, description="holds the key that secrets are sealed with; default `secret.key` in the home folder"
    )

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str | None) -> str | None:
        if url is not None and not _HTTP.match(url):
            raise ValueError(f"{url!r} is not a url of a server; write for example https://windlass.example.com")
        return url.rstrip("/") if url else None


class DatabaseSection(StrictModel):
    """What the record is kept in."""

    url: str | None = Field(
        None,
        description="postgresql://USER:PASSWORD@HOST/NAME; default SQLite, `windlass.db` in the home folder",
    )
    pool: int = Field(16, ge=2, le=1_000, description="connections kept open; up to twice as many at busy times")


class BlobsSection(StrictModel):
    """What code, and everything else that is big, is kept in. Credentials come from the environment alone: for S3
    AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or the machine's role), for Google GOOGLE_APPLICATION_CREDENTIALS,
    for Azure AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY.
    """

    url: str | None = Field(
        None,
        description="s3://BUCKET/PREFIX, gs://…, az://…, file:///PATH; default `blobs` in the home folder",
    )
    endpoint: str | None = Field(None, description="of an S3-compatible server, e.g. http://minio:9000")
    region: str | None = Field(None, description="of the bucket; S3 only")
    access_key_variable: str = Field("AWS_ACCESS_KEY_ID", description="the variable that holds the S3 access key")
    secret_key_variable: str = Field("AWS_SECRET_ACCESS_KEY", description="the variable that holds the S3 secret key")
    timeout: Seconds = Field(30.0, gt=0, le=3_600, description="of one request, before it is tried again")
    retries: int = Field(4, ge=0, le=100, description="of a failed request, with growing pauses")

    @field_validator("url")
    @classmethod
    def _is_store(cls, url: str | None) -> str | None:
        if url is not None and not _BLOBS.match(url):
            raise ValueError(
                f"{url!r} is not a store; known: file:///PATH, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX"
            )
        return url.rstrip("/") if url and url != "memory://" and url != "file:///" else url

    @field_validator("endpoint")
    @classmethod
    def _is_endpoint(cls, url: str | None) -> str | None:
        if url is not None and not _HTTP.match(url):
            raise ValueError(f"{url!r} is not an address; write for example http://minio:9000")
        return url.rstrip("/") if url else None


class ArtifactsSection(StrictModel):
    limit: Annotated[int, BeforeValidator(parse_size), Field(ge=0, le=2**60)] | None = Field(
        50 * 10**9,
        description="of what a run leaves in its output folder and becomes its artifacts (50 GB); larger files stay "
        "there, and an alert says so; 0: nothing; null: no limit",
    )
    root: str | None = Field(
        None,
        description="where artifacts of experiments go that name no place: a folder or address that MLflow's clients "
        "reach by themselves, e.g. s3://BUCKET/PREFIX, /shared/mlruns; default: through the server, into `blobs`",
    )

    @field_validator("root")
    @classmethod
    def _is_place(cls, root: str | None) -> str | None:
        if not root or _PLACE.match(root):
            return root or None
        raise ValueError(f"{root!r} is no place for artifacts; write /PATH, file:///PATH, s3://BUCKET/PREFIX or alike")


class Archive(StrEnum):
    """`auto`: where blobs are in an object store, which every server reaches; a folder is one machine's own."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class LogsSection(StrictModel):
    """What becomes of the logs of runs."""

    archive: Archive = Field(
        Archive.AUTO,
        description="move them to the blobs once an attempt is over: auto (if those are in a bucket), always, never",
    )
    keep: Seconds = Field(
        604_800.0,
        description="how long folders of attempts stay after their logs were moved, and reports of nodes after their "
        "end (7 days); what was not moved stays",
    )
    limit: Annotated[int, BeforeValidator(parse_size), Field(ge=1 << 20, le=2**60)] | None = Field(
        20 * 10**9,
        description="of one run's output, shared by its ranks; beyond it the end is kept, and a line says so (20 GB); "
        "null: none",
    )


class MetricsSection(StrictModel):
    """What becomes of metrics. Their latest values, least and greatest stay in any case."""

    keep_points: Seconds | None = Field(
        None,
        description="how long every point is kept; from then on the least, greatest and mean of each 64; default for "
        "ever",
    )
    keep: Seconds | None = Field(None, description="how long anything but the summary is kept; default for ever")

    @model_validator(mode="after")
    def _points_go_first(self) -> MetricsSection:
        if self.keep is not None and self.keep_points is not None and self.keep < self.keep_points:
            raise ValueError(
                f"`keep` ({self.keep:g} s) is shorter than `keep_points` ({self.keep_points:g} s): points would be "
                "gone before they are thinned; give `keep` the longer time, or leave `keep_points` out"
            )
        return self


class PricesSection(StrictModel):
    """What an hour costs, in dollars; for the cost of runs."""

    cpu: Price = Field(0.04, description="of one CPU core")
    gpu: dict[str, Price] = Field(
        default_factory=dict, description="of one GPU by type, e.g. {h100: 2.1}; adds to known ones"
    )
    tpu: dict[str, Price] = Field(
        default_factory=dict, description="of one TPU chip by type, e.g. {v5e: 1.2}; adds to known ones"
    )


class ControllerSection(StrictModel):
    """How runs are moved forward."""

    shards: int = Field(
        1,
        ge=1,
        le=64,
        description="parts of the runs that controllers share among them; changed by stopping them all first",
    )
    lease: Seconds = Field(5.0, le=300, description="silence after which another controller takes over; 3s or more")

    @field_validator("lease")
    @classmethod
    def _outlasts_a_pass(cls, lease: float) -> float:
        if lease < _SHORTEST_LEASE_S:
            raise ValueError(
                f"{lease:g} s is too short: a controller writes about once a second, and one that is only busy would "
                f"be replaced; give {_SHORTEST_LEASE_S:g}s or more"
            )
        return lease


def _local_only() -> dict[str, EngineConfig]:
    return {"local": LocalConfig(type="local")}


class ServerConfig(StrictModel):
    server: ServerSection = Field(default_factory=ServerSection)
    database: DatabaseSection = Field(default_factory=DatabaseSection)
    blobs: BlobsSection = Field(default_factory=BlobsSection)
    artifacts: ArtifactsSection = Field(default_factory=ArtifactsSection)
    logs: LogsSection = Field(default_factory=LogsSection)
    metrics: MetricsSection = Field(default_factory=MetricsSection)
    engines: dict[Name, EngineConfig] = Field(
        default_factory=_local_only,
        min_length=1,
        description="where runs go: a name for each, its type and what that type needs",
    )
    projects: dict[ProjectName, ProjectSection] = Field(
        default_factory=dict,
        description="what projects have of their own: engines, parent, weight, quota, limit, max_queued, checkpoint, "
        "e.g. {vision: {weight: 2, quota: {gpu: 16}, engines: [slurm], checkpoint: {compress: zstd}}}",
    )
    default_engines: tuple[Name, ...] = Field((), description="of projects not named above; default all")
    scheduling: SchedulingSection = Field(default_factory=SchedulingSection)
    prices: PricesSection = Field(default_factory=PricesSection)
    controller: ControllerSection = Field(default_factory=ControllerSection)

    @field_validator("engines")
    @classmethod
    def _one_is_local(cls, engines: dict[str, EngineConfig]) -> dict[str, EngineConfig]:
        local = [name for name, engine in engines.items() if isinstance(engine, LocalConfig)]
        if len(local) > 1:
            raise ValueError(
                f"{' and '.join(map(repr, local))} are both of type local: this machine would be counted twice; "
                "keep one, with `nodes` for more than one node"
            )
        return engines

    @model_validator(mode="after")
    def _names_exist(self) -> ServerConfig:
        used = {f"projects.{name}.engines": project.engines for name, project in self.projects.items()}
        for where, names in {**used, "default_engines": self.default_engines}.items():
            for name in names:
                if name not in self.engines:
                    raise ValueError(
                        f"`{where}`: there is no engine '{name}'; known: {', '.join(sorted(self.engines))}"
                    )
        check_projects(self.projects)
        return self
