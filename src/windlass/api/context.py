"""What routes need, handed over by the composition root and reached through the request: no module-level state."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from windlass.api.arrivals import Arrivals
from windlass.artifacts.places import ArtifactPlaces
from windlass.artifacts.service import ArtifactService
from windlass.artifacts.uploads import UploadService
from windlass.blobs.contract import Blobs
from windlass.checkpoints.service import CheckpointService
from windlass.core.clock import Clock
from windlass.core.errors import Unauthorized
from windlass.db.database import Database
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
from windlass.nodes.service import NodeService
from windlass.registry.service import RegistryService
from windlass.runs.access import RunTokens
from windlass.runs.annotations import Annotations
from windlass.runs.overview import Overview
from windlass.runs.savedviews import SavedViews
from windlass.runs.service import RunService
from windlass.traces.service import TraceService
from windlass.webhooks.service import WebhookService
from windlass.wire.checks import CheckView


@dataclass(slots=True, kw_only=True)
class Services:
    db: Database
    blobs: Blobs
    runs: RunService
    overview: Overview
    annotations: Annotations
    saved_views: SavedViews
    nodes: NodeService
    checkpoints: CheckpointService
    experiments: ExperimentService
    tracked_runs: TrackedRunService
    logged_models: LoggedModelService
    run_tokens: RunTokens
    artifacts: ArtifactService
    uploads: UploadService
    artifact_places: ArtifactPlaces
    registry: RegistryService
    lineage: LineageService
    webhooks: WebhookService
    traces: TraceService
    datasets: DatasetService
    scorers: ScorerService
    issues: IssueService
    labels: LabelService
    reviews: ReviewService
    gateway: GatewayService
    deployments: Deployments
    clock: Clock
    token: str | None  # None: no authentication
    home: str | None
    started_at: float
    controller_state: Callable[[], str]  # active, standby or absent
    pass_times_s: Callable[[], Sequence[float]] = field(default=lambda: ())  # of the controller's last passes
    checks: Callable[[], list[CheckView]] = field(default=list)  # what `doctor` asks the server
    arrivals: Arrivals = field(default_factory=Arrivals)
    closing: bool = field(default=False)  # set on shutdown: streams end themselves


# Both are `async` though they wait for nothing: plain functions would go through the thread pool for every request.
async def _services(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


Context = Annotated[Services, Depends(_services)]


async def require_token(request: Request, services: Context) -> None:
    check_token(request, services)


def check_token(request: Request, services: Services) -> None:
    """As a bearer, or as the password of anybody: some clients have fields for name and password only."""
    if services.token is None:
        return
    if not hmac.compare_digest(sent_token(request), services.token.encode()):
        raise Unauthorized(
            "no valid token was sent",
            hint="send `Authorization: Bearer TOKEN`; the embedded server keeps its token in $WINDLASS_HOME/token",
        )


def sent_token(request: Request) -> bytes:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return {"bearer": given.strip().encode(), "basic": _password(given)}.get(scheme.lower(), b"")


def _password(given: str) -> bytes:
    try:
        return base64.b64decode(given.strip(), validate=True).partition(b":")[2]
    except ValueError:
        return b""
