"""What a server is told: settings from command line, environment and config file, checked before anything starts."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from windlass.core.accelerators import tpu
from windlass.core.errors import InvalidInput
from windlass.db.database import sqlite_url
from windlass.scheduling.access import EngineAccess
from windlass.scheduling.core.types import Policy, Project
from windlass.scheduling.rules import Rules
from windlass.server.config import LoadedConfig, load_config
from windlass.simulation.policies import POLICIES
from windlass.tenancy.prices import DEFAULT_GPU_USD, PriceBook
from windlass.wire.checkpoints import CheckpointSpec
from windlass.wire.config import Archive, BlobsSection, ControllerSection, MetricsSection, Role, ServerConfig
from windlass.wire.engines import EngineConfig, LocalConfig

__all__ = ["DEFAULT_PORT", "Role", "Settings"]

DEFAULT_PORT = 8470


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    home: Path
    host: str = "127.0.0.1"
    port: int | None = None  # None: that of the last time, else the usual one, else a free one
    url: str | None = None  # where nodes and clients elsewhere reach it
    auth: bool = True
    role: Role = Role.ALL
    token_file: Path | None = None  # None: in the home folder
    secret_key_file: Path | None = None
    database_url: str = ""
    database_pool: int = 16
    blobs: BlobsSection = field(default_factory=BlobsSection)
    artifact_root: str | None = None  # of experiments; None: the server keeps artifacts itself
    engines: Mapping[str, EngineConfig] = field(default_factory=lambda: {"local": LocalConfig(type="local")})
    engine_access: EngineAccess = field(default_factory=EngineAccess)
    rules: Rules = field(default_factory=Rules)
    project_checkpoints: Mapping[str, CheckpointSpec] = field(default_factory=dict)
    prices: PriceBook = field(default_factory=PriceBook)
    controller: ControllerSection = field(default_factory=ControllerSection)
    archive_logs: bool = False  # to the blobs, once an attempt is over
    log_limit_bytes: int | None = None  # of one run's output
    artifact_limit_bytes: int | None = None  # of one run's output folder
    keep_s: float = 604_800.0  # folders whose logs are archived, and reports of nodes
    metrics: MetricsSection = field(default_factory=MetricsSection)

    @classmethod
    def from_environ(
        cls,
        environ: Mapping[str, str],
        *,
        home: Path,
        config: Path | None = None,
        host: str | None = None,
        port: int | None = None,
        auth: bool | None = None,
        role: Role | None = None,
    ) -> Settings:
        """What is None is not given on the command line."""
        given: dict[tuple[str, ...], tuple[str, Any]] = {
            ("server", "host"): ("--host", host),
            ("server", "port"): ("--port", port),
            ("server", "auth"): ("--no-auth", auth),
            ("server", "role"): ("--role", role),
        }
        flags = {path: option for path, option in given.items() if option[1] is not None}
        return cls.of(load_config(environ, home=home, file=config, flags=flags), home=home)

    @classmethod
    def of(cls, loaded: LoadedConfig, *, home: Path) -> Settings:
        config = loaded.config
        server = config.server
        if not server.auth and not _is_loopback(server.host):
            raise InvalidInput(
                f"--no-auth is for this machine only, not for {server.host}",
                hint="leave out --no-auth (`server.auth: false`), or use 127.0.0.1",
            )
        return cls(
            home=home,
            host=server.host,
            port=server.port,
            url=server.url,
            auth=server.auth,
            role=server.role,
            token_file=_path(server.token_file),
            secret_key_file=_path(server.secret_key_file),
            database_url=config.database.url or sqlite_url(home / "windlass.db"),
            database_pool=config.database.pool,
            blobs=config.blobs,
            artifact_root=config.artifacts.root,
            engines=config.engines,
            engine_access=_access(config),
            rules=_rules(config),
            project_checkpoints={name: one.checkpoint for name, one in config.projects.items() if one.checkpoint},
            prices=_prices(config),
            controller=config.controller,
            archive_logs=_archives(config),
            keep_s=config.logs.keep,
            log_limit_bytes=config.logs.limit,
            artifact_limit_bytes=config.artifacts.limit,
            metrics=config.metrics,
        )


def _archives(config: ServerConfig) -> bool:
    if config.logs.archive is Archive.AUTO:
        return (config.blobs.url or "").startswith(("s3://", "gs://", "az://"))
    return config.logs.archive is Archive.ALWAYS


def _path(text: str | None) -> Path | None:
    return Path(text).expanduser().absolute() if text else None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _access(config: ServerConfig) -> EngineAccess:
    """A project that is named without engines has those that all others have."""
    others = frozenset(config.default_engines) or None
    named = {name: frozenset(project.engines) for name, project in config.projects.items() if project.engines}
    return EngineAccess(by_project=named, others=others)


def _rules(config: ServerConfig) -> Rules:
    scheduling = config.scheduling
    return Rules(
        policy=_policy(config),
        projects={
            name: Project(name=name, parent=one.parent, weight=one.weight, quota=one.quota, limit=one.limit)
            for name, one in config.projects.items()
        },
        access=_access(config),
        most_queued_of_project={
            name: one.max_queued for name, one in config.projects.items() if one.max_queued is not None
        },
        most_queued_of_user=scheduling.max_queued_per_user,
        most_queued=scheduling.max_queued,
    )


def _policy(config: ServerConfig) -> Policy:
    """The named one says what is ranked how and whether anybody overtakes or is stopped; the times are settings."""
    scheduling = config.scheduling
    named = POLICIES[scheduling.policy]
    return replace(
        named,
        preempts=named.preempts and scheduling.preempt,
        half_life_s=scheduling.half_life,
        min_run_s=scheduling.min_run,
        ageing_s=scheduling.ageing,
        starving_s=scheduling.starving,
        user_limit=scheduling.user_limit,
    )


def _prices(config: ServerConfig) -> PriceBook:
    own = {name.lower(): price for name, price in config.prices.gpu.items()}
    own |= {tpu(name): price for name, price in config.prices.tpu.items()}
    return PriceBook(cpu_usd=config.prices.cpu, gpu_usd={**DEFAULT_GPU_USD, **own})
