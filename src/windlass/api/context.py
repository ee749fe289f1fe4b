"""What routes need, handed over by the composition root and reached through the request: no module-level state."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from windlass.api.arrivals import Arrivals
from windlass.blobs.contract import Blobs
from windlass.checkpoints.service import CheckpointService
from windlass.core.clock import Clock
from windlass.core.errors import Unauthorized
from windlass.db.database import Database
from windlass.nodes.service import NodeService
from windlass.runs.service import RunService
from windlass.wire.checks import CheckView


@dataclass(slots=True, kw_only=True)
class Services:
    db: Database
    blobs: Blobs
    runs: RunService
    nodes: NodeService
    checkpoints: CheckpointService
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
    if services.token is None:
        return
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), services.token.encode()):
        raise Unauthorized(
            "no valid token was sent",
            hint="send `Authorization: Bearer TOKEN`; the embedded server keeps its token in $WINDLASS_HOME/token",
        )
