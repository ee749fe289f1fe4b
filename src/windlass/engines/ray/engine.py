"""Attempts on a Ray cluster: a placement group is the gang, a detached actor on each of its nodes carries the relay.

What nodes say reaches the server over HTTP (`NodeBook`); what Ray says comes from a driver process (`link`). Nothing is
submitted to Ray before our own scheduler has found room for it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from windlass.core.errors import LaunchFailed, Unavailable
from windlass.core.exits import ExitReason
from windlass.core.resources import Node
from windlass.engines.contract import EngineContext, Launch, NodeReport, Observation, Phase, StopKind, refuse_image
from windlass.engines.outcomes import StopRest
from windlass.engines.ray.inventory import render_inventory
from windlass.engines.ray.link import Link
from windlass.engines.ray.lives import decide_lives
from windlass.engines.ray.requests import group_name, render_request
from windlass.engines.ray.tables import Tables
from windlass.engines.remote.observing import Life, NodeLife, decide_observation
from windlass.engines.remote.plans import render_remote_plans
from windlass.wire.ray import RayOptions

_GRACE_S = 10.0  # for the rest of a gang, where its own grace is not known any more
_OVERTIME_S = 15.0  # how long a node may take to end after its grace before Ray is asked to end it
_PLACING_PATIENCE_S = 30.0
_REMOVAL_PATIENCE_S = 0.4
# What Ray refuses whenever it is asked: a runtime_env or amount that it cannot read.
_FINAL = ("ValueError", "TypeError", "RuntimeEnvSetupError")


@dataclass(slots=True)
class _Seen:
    """Conveniences about one attempt; losing them costs asking again."""

    request: int | None = None  # the launch, while it is not answered
    refusal: NodeLife | None = None
    grace_s: float = _GRACE_S
    rest_stopped: bool = False
    kill_at: float | None = None  # by the monotonic clock
    pending_since: float | None = None  # by the monotonic clock, too
    removal: int | None = None
    released: bool = False


class RayEngine:
    type = "ray"
    launches_at_once = 1  # handing over to the driver takes no time

    def __init__(
        self,
        context: EngineContext,
        link: Link,
        *,
        prefix: str,
        defaults: RayOptions,
        inherit_path: bool,
        prices: Mapping[str, float] | None = None,
        spot_nodes: Sequence[str] = (),
    ) -> None:
        self.name = context.name
        self._clock = context.clock
        self._book = context.nodes
        self._server_url = context.server_url
        self._link = link
        self._prefix = prefix
        self._defaults = defaults
        self._inherit_path = inherit_path
        self._prices = prices or {}
        self._spot_nodes = spot_nodes
        self._listening_since = self._clock.now()
        self._seen: dict[str, _Seen] = {}
        self._following: tuple[str, ...] = ()

    def inventory(self) -> Sequence[Node]:
        return render_inventory(self.name, self._tables(), prices=self._prices, spot_nodes=self._spot_nodes)

    def launch(self, launch: Launch) -> None:
        refuse_image(launch, self.name)
        if self._server_url is None:
            raise LaunchFailed(
                "nodes of Ray report to the server over HTTP, and its URL is not known",
                hint="give the server's config a `url` that Ray's nodes can reach",
            )
        attempt_id = launch.attempt_id
        seen = self._seen.setdefault(attempt_id, _Seen())
        reports = self._book.load([attempt_id]).get(attempt_id, ())
        if seen.released or any(report.reported_at or report.outcome for report in reports):
            return
        if seen.request is not None and self._link.is_under_way(seen.request):
            return
        self._tables()
        self._book.prepare(attempt_id, render_remote_plans(launch, inherit_path=self._inherit_path), launch.secrets)
        request = render_request(
            launch,
            group=group_name(self._prefix, attempt_id),
            options=self._options(launch),
            server_url=self._server_url,
            tokens=[self._book.token(attempt_id, rank) for rank in range(len(launch.placement.shares))],
        )
        seen.grace_s, seen.refusal = launch.grace_s, None
        self._follow({*self._following, request.name})
        seen.request = self._link.ask("launch", wants_answer=True, request=request.to_json())

    def poll(self, attempt_ids: Sequence[str]) -> Mapping[str, Observation]:
        # Ray's word first: what a node said before its actor ended is then there to be read.
        tables = self._link.tables()
        reports = self._book.load(attempt_ids)
        if tables is not None:
            live = [id for id, found in reports.items() if any(report.outcome is None for report in found)]
            self._follow({group_name(self._prefix, id) for id in live}, said=tables)
        for forgotten in self._seen.keys() - set(attempt_ids):
            if not self._seen[forgotten].released:
                del self._seen[forgotten]
        return {id: self._observe(id, reports.get(id, ()), tables) for id in attempt_ids}

    def stop(self, attempt_id: str, *, grace_s: float, kind: StopKind = StopKind.CANCELLED) -> None:
        self._book.wish_to_stop(attempt_id, grace_s=grace_s, kind=kind, reason=kind.on_request)
        kill_at = time.monotonic() + grace_s + _OVERTIME_S
        seen = self._seen.setdefault(attempt_id, _Seen())
        seen.kill_at = min(kill_at, seen.kill_at) if seen.kill_at is not None else kill_at

    def release(self, attempt_id: str) -> None:
        reports = self._book.load([attempt_id]).get(attempt_id, ())
        self._book.close(attempt_id)
        if not reports:
            return
        if any(report.outcome is None for report in reports):
            self._seen.setdefault(attempt_id, _Seen()).released = True
        group = group_name(self._prefix, attempt_id)
        if group in self._tables().groups or self._is_launching(attempt_id):
            number = self._link.ask("remove", wants_answer=True, group=group)
            answer = self._link.wait(number, _REMOVAL_PATIENCE_S)
            if answer is None or answer.kind is not None:
                reason = answer.message if answer else "no answer yet"
                raise Unavailable(f"Ray has not removed {group}: {reason}")
        if attempt_id in self._seen and not self._seen[attempt_id].released:
            del self._seen[attempt_id]

    def close(self) -> None:
        self._link.close()

    # ----------------------------------------------------------------------------------------------------------------

    def _tables(self) -> Tables:
        tables = self._link.tables()
        if tables is None:
            raise Unavailable(f"the Ray cluster of engine {self.name} cannot be asked now")
        return tables

    def _options(self, launch: Launch) -> RayOptions:
        """The spec's own over the engine's."""
        given = RayOptions.model_validate(dict(launch.options))
        return self._defaults.model_copy(update={name: getattr(given, name) for name in given.model_fields_set})

    def _is_launching(self, attempt_id: str) -> bool:
        seen = self._seen.get(attempt_id)
        return seen is not None and seen.request is not None and self._link.is_under_way(seen.request)

    def _follow(self, groups: set[str], *, said: Tables | None = None) -> None:
        """Have Ray asked about these. What it was asked last may have died with the driver: `said` tells."""
        wanted = tuple(sorted(groups))
        if wanted == self._following and (said is None or set(said.followed) == groups):
            return
        try:
            self._link.ask("follow", groups=list(wanted))
            self._following = wanted
        except Unavailable:
            self._following = ()  # asked again with the next poll; until then nothing is known

    def _observe(self, attempt_id: str, reports: Sequence[NodeReport], tables: Tables | None) -> Observation:
        if not reports:
            return Observation(phase=Phase.ABSENT)
        seen = self._seen.setdefault(attempt_id, _Seen())
        self._hear_about_launch(seen)
        lives = decide_lives(
            reports,
            tables,
            group=group_name(self._prefix, attempt_id),
            asked=seen.request is not None or seen.released or seen.refusal is not None,
            listening_since=self._listening_since,
            now=self._clock.now(),
        )
        if lives is None:
            return Observation(phase=Phase.ABSENT)
        self._lose_patience(seen, attempt_id, tables)
        if seen.refusal is not None:
            pairs = zip(reports, lives, strict=True)
            lives = [seen.refusal if report.reported_at is None else life for report, life in pairs]
        verdict = decide_observation(attempt_id, reports, lives, now=self._clock.now())
        self._act(attempt_id, seen, tables, verdict.observation, verdict.stop_rest)
        if seen.released and verdict.observation.phase is not Phase.ENDED:
            return replace(verdict.observation, phase=Phase.UNKNOWN)
        return verdict.observation

    def _hear_about_launch(self, seen: _Seen) -> None:
        if seen.request is None or self._link.is_under_way(seen.request):
            return
        answer = self._link.take_answer(seen.request)
        seen.request = None
        if answer is None or answer.kind is None:
            return
        if answer.kind == "NodeIsGone":
            seen.refusal = NodeLife(life=Life.GONE, message=answer.message)
        elif answer.kind in _FINAL:
            message = f"Ray refuses it: {answer.message}"
            seen.refusal = NodeLife(life=Life.GONE, reason=ExitReason.LAUNCH_FAILED, message=message)

    def _lose_patience(self, seen: _Seen, attempt_id: str, tables: Tables | None) -> None:
        """The scheduler saw room that Ray does not find: a node has left, or others were quicker."""
        group = tables.groups.get(group_name(self._prefix, attempt_id)) if tables is not None else None
        if group is None or group.state != "PENDING":
            seen.pending_since = None
            return
        now = time.monotonic()
        seen.pending_since = seen.pending_since or now
        if now - seen.pending_since > _PLACING_PATIENCE_S:
            message = f"Ray did not find room for its placement group within {_PLACING_PATIENCE_S:g} s"
            seen.refusal = NodeLife(life=Life.GONE, message=message)

    def _act(
        self, attempt_id: str, seen: _Seen, tables: Tables | None, found: Observation, rest: StopRest | None
    ) -> None:
        if rest is not None and not seen.rest_stopped:
            self._book.wish_to_stop(attempt_id, grace_s=seen.grace_s, kind=rest.kind, reason=rest.reason)
            seen.rest_stopped = True
        overdue = seen.kill_at is not None and time.monotonic() > seen.kill_at
        group = group_name(self._prefix, attempt_id)
        if tables is None or group not in tables.groups:
            return
        # What has ended needs its share no more, and others may be waiting for it.
        if (found.phase is Phase.ENDED or overdue) and not (seen.removal and self._link.is_under_way(seen.removal)):
            try:
                seen.removal = self._link.ask("remove", group=group)
            except Unavailable:
                seen.removal = None  # the next poll, or its release, asks again
