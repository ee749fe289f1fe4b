"""The composition root: the only place that knows which parts there are and wires them together."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI

from windlass.api.app import create_app
from windlass.api.context import Services
from windlass.artifacts.places import ArtifactPlaces
from windlass.artifacts.service import ArtifactService
from windlass.artifacts.uploads import UploadService
from windlass.blobs.code import BlobCode
from windlass.blobs.contract import Blobs
from windlass.blobs.opening import open_blobs
from windlass.checkpoints.service import CheckpointService
from windlass.controller.archivist import Archivist
from windlass.controller.compactor import Compactor, Keeping
from windlass.controller.lease import ControllerWatch, ShardLeases
from windlass.controller.loop import CHANNEL, Controller
from windlass.controller.outputs import OutputKeeper
from windlass.core.clock import Clock, SystemClock
from windlass.core.ids import new_holder_nonce
from windlass.db.database import Database
from windlass.db.faults import CommitFault
from windlass.db.migrate import migrate
from windlass.engines.contract import Engine, EngineContext
from windlass.evaluation.datasets import DatasetService
from windlass.evaluation.issues import IssueService
from windlass.evaluation.labels import LabelService
from windlass.evaluation.reviews import ReviewService
from windlass.evaluation.scorers import ScorerService
from windlass.experiments.modelservice import LoggedModelService
from windlass.experiments.runservice import TrackedRunService
from windlass.experiments.service import ExperimentService
from windlass.gateway.deployments import Deployments
from windlass.gateway.service import GatewayService
from windlass.lineage.service import LineageService
from windlass.nodes.book import DatabaseNodeBook
from windlass.nodes.service import NodeService
from windlass.registry.service import RegistryService
from windlass.runs.access import RunTokens, TrackingAccess
from windlass.runs.annotations import Annotations
from windlass.runs.overview import Overview
from windlass.runs.progress import take_logged
from windlass.runs.references import resolve_id
from windlass.runs.savedviews import SavedViews
from windlass.runs.sealing import Seal
from windlass.runs.service import RunService
from windlass.runs.tracked import catch_up, put_own_tags
from windlass.server import engines as configured
from windlass.server.homefolder import load_token, read_note
from windlass.server.retention import Retention
from windlass.server.settings import Role, Settings
from windlass.traces.service import TraceService
from windlass.webhooks.addresses import WebhookRules
from windlass.webhooks.deliverer import Deliverer
from windlass.webhooks.sending import HttpSender
from windlass.webhooks.service import WebhookService
from windlass.wire.checks import CheckView
from windlass.wire.engines import LocalConfig
from windlass.wire.slurm import SlurmConfig

OpenEngines = Callable[[Callable[[], None]], Mapping[str, Engine]]


@dataclass(slots=True, kw_only=True)
class Parts:
    db: Database
    services: Services
    app: FastAPI | None
    controller: Controller | None
    deliverer: Deliverer
    retention: Retention | None = None
    compactor: Compactor | None = None


def compose(settings: Settings, *, open_engines: OpenEngines | None = None, clock: Clock | None = None) -> Parts:
    clock = clock or SystemClock()
    db = Database(settings.database_url, pool_size=settings.database_pool, fault=CommitFault.from_environ(os.environ))
    migrate(db)
    catch_up(db)
    blobs = open_blobs(settings.blobs, home=settings.home, environ=os.environ)
    seal = Seal(settings.secret_key_file or settings.home / "secret.key")
    run_tokens = RunTokens(db, seal, clock)
    kept = blobs.room("artifacts")
    artifacts = ArtifactService(db=db, clock=clock, blobs=kept)
    controller = None
    compactor = None
    holder = None
    if settings.role is not Role.API:
        lease = ShardLeases(settings.controller.shards, monotonic=time.monotonic, ttl_s=settings.controller.lease)
        holder = lease.holder
        keeping = Keeping(points_s=settings.metrics.keep_points, rollups_s=settings.metrics.keep)
        compactor = Compactor(db, clock, is_ours=lambda: lease.schedules, keeping=keeping)
        engines = open_engines or (lambda nudge: open_configured(settings, db, blobs, seal, clock, nudge))
        archivist = Archivist(db, blobs, clock, lambda: lease.slots) if settings.archive_logs else None
        controller = Controller(
            db,
            engines,
            seal,
            clock,
            lease,
            prices=settings.prices,
            rules=settings.rules,
            archivist=archivist,
            keeper=OutputKeeper(db, artifacts, clock, lambda: lease.slots, limit_bytes=settings.artifact_limit_bytes),
            log_limit_bytes=settings.log_limit_bytes,
            access=TrackingAccess(db, run_tokens if settings.auth else None, url=lambda type: _url(settings, type)),
        )

    def nudge() -> None:
        if controller is not None:
            controller.nudge()
        if controller is None or not controller.is_alone():
            db.notify(CHANNEL)

    watch = ControllerWatch(holder, monotonic=time.monotonic, ttl_s=settings.controller.lease)

    def state_of_controller() -> str:
        with db.read() as tx:
            return watch.state(tx)

    def checks() -> list[CheckView]:
        from windlass.server.checks import run_checks  # seldom asked for: not at every start

        return run_checks(settings, db, blobs, seal, clock, os.environ)

    runs = RunService(
        db,
        blobs,
        seal,
        clock,
        prices=settings.prices,
        runs_dir=settings.home / "runs",
        nudge=nudge,
        rules=settings.rules,
        project_checkpoints=settings.project_checkpoints,
    )
    webhook_rules = WebhookRules.from_environ(os.environ)
    sender = HttpSender(webhook_rules)
    deliverer = Deliverer(
        db,
        clock,
        seal=seal,
        sender=sender,
        rules=webhook_rules,
        holder=f"{socket.gethostname()}/{os.getpid()}/{new_holder_nonce()}"[-100:],
        monotonic=time.monotonic,
    )
    experiments = ExperimentService(db=db, clock=clock, root=settings.artifact_root)
    experiments.begin()
    tracked_runs = TrackedRunService(
        db=db,
        clock=clock,
        own_tags=put_own_tags,
        own_values=take_logged,
        cut_values=os.environ.get("MLFLOW_TRUNCATE_LONG_VALUES", "true").strip().lower() in ("true", "1"),
    )
    overview = Overview(db=db, blobs=blobs, clock=clock, runs=runs)
    services = Services(
        db=db,
        blobs=blobs,
        runs=runs,
        overview=overview,
        annotations=Annotations(
            db=db,
            clock=clock,
            resolve=resolve_id,
            tracked=tracked_runs,
            experiments=experiments,
            projects=settings.rules.projects,
        ),
        saved_views=SavedViews(db=db, clock=clock),
        nodes=NodeService(db, blobs, seal, clock, nudge=nudge),
        checkpoints=CheckpointService(db, runs, clock),
        experiments=experiments,
        tracked_runs=tracked_runs,
        logged_models=LoggedModelService(db=db, clock=clock),
        run_tokens=run_tokens,
        artifacts=artifacts,
        uploads=UploadService(db=db, clock=clock, blobs=kept, artifacts=artifacts),
        artifact_places=ArtifactPlaces(artifacts, home=settings.home, folders=_runs_commands_here(settings)),
        lineage=LineageService(db=db),
        registry=RegistryService(
            db=db,
            clock=clock,
            wake=deliverer.nudge,
            sources=os.environ.get("MLFLOW_CREATE_MODEL_VERSION_SOURCE_VALIDATION_REGEX"),
        ),
        webhooks=WebhookService(db=db, clock=clock, seal=seal, sender=sender, rules=webhook_rules),
        traces=TraceService(db=db, clock=clock),
        datasets=DatasetService(db=db, clock=clock),
        scorers=ScorerService(db=db, clock=clock),
        issues=IssueService(db=db, clock=clock),
        labels=LabelService(db=db, clock=clock),
        reviews=ReviewService(db=db, clock=clock),
        gateway=GatewayService(db=db, clock=clock, seal=seal),
        deployments=Deployments(os.environ.get("MLFLOW_DEPLOYMENTS_TARGET")),
        clock=clock,
        token=load_token(settings.home, os.environ, settings.token_file) if settings.auth else None,
        home=str(settings.home),
        started_at=clock.now(),
        controller_state=state_of_controller,
        checks=checks,
        pass_times_s=controller.pass_times_s if controller else lambda: (),
    )
    app = create_app(services) if settings.role is not Role.CONTROLLER else None
    retention = None
    if settings.role is not Role.API:
        retention = Retention(
            db, clock, roots=_roots(settings), keep_s=settings.keep_s, collect=services.artifacts.collect
        )
    return Parts(
        db=db,
        services=services,
        app=app,
        controller=controller,
        deliverer=deliverer,
        retention=retention,
        compactor=compactor,
    )


def _runs_commands_here(settings: Settings) -> bool:
    """Whoever may submit to the local engine can read this machine's files as it is."""
    return any(isinstance(engine, LocalConfig) for engine in settings.engines.values())


def _url(settings: Settings, engine_type: str) -> str | None:
    """Where programs on nodes reach the API. Those of this machine know it even if nobody has said."""
    return settings.url or (read_note(settings.home).get("url") if engine_type == "local" else None)


def _roots(settings: Settings) -> list[Path]:
    """Where engines keep the folders of attempts."""
    engines = settings.engines.values()
    local = {settings.home for engine in engines if isinstance(engine, LocalConfig)}
    shared = {engine.shared_dir for engine in engines if isinstance(engine, SlurmConfig)}
    return sorted(root.absolute() for root in local | shared)


def open_configured(
    settings: Settings, db: Database, blobs: Blobs, seal: Seal, clock: Clock, nudge: Callable[[], None]
) -> Mapping[str, Engine]:
    """The engines of the settings, each with what it needs of the rest."""
    code, book = BlobCode(blobs), DatabaseNodeBook(db, seal, clock)

    def context_of(name: str) -> EngineContext:
        return EngineContext(
            name=name,
            home=settings.home,
            clock=clock,
            notify=nudge,
            code=code,
            nodes=book,
            server_url=settings.url,
        )

    return configured.open_engines(settings.engines, context_of)
