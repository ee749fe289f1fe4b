"""What users can do with runs: submit, look, cancel, resume, clone, ask why. Used by the API; knows no engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from windlass.blobs.contract import Blobs
from windlass.core.clock import Clock
from windlass.core.errors import CannotFit, Conflict, IdempotencyMismatch, InvalidInput, NotFound
from windlass.core.exits import Exit, ExitReason
from windlass.core.names import metric_place, unknown
from windlass.db.database import Database
from windlass.experiments.runstore import load_tag
from windlass.experiments.types import NOTE
from windlass.runs import store, views
from windlass.runs.cluster import give_back, set_aside, view_cluster
from windlass.runs.command import check_recipe
from windlass.runs.cursors import decode_cursor, encode_cursor, read_tag
from windlass.runs.facts import load_known
from windlass.runs.logs import LogQuery, check_wanted, load_log_dirs, read_logs
from windlass.runs.origins import check_code, copied_origin, keep_origin
from windlass.runs.progress import load_marks
from windlass.runs.queue import QueueDesk
from windlass.runs.records import AttemptRecord, RunHead, RunRecord, exit_to_json
from windlass.runs.references import resolve_id, resolve_run
from windlass.runs.reproduction import decide_changes, decide_pins
from windlass.runs.rulebook import heed_points, insert_rules
from windlass.runs.sealing import Seal
from windlass.runs.submission import (
    changed_spec,
    check_engines,
    check_queue,
    check_secrets,
    fill_checkpoint,
    new_run,
    request_digest,
)
from windlass.runs.tracked import check_experiment
from windlass.runs.types import EventKind, RunState
from windlass.runs.why import explain_run
from windlass.scheduling.engines import load_engines
from windlass.scheduling.nodes import load_kinds
from windlass.scheduling.rules import Rules
from windlass.scheduling.types import NodeKind
from windlass.tenancy.prices import PriceBook
from windlass.tracking.series import Window, load_rollups, load_series
from windlass.tracking.store import ingest, load_position, load_summaries, lock
from windlass.tracking.storedlogs import StoredLogs
from windlass.tracking.system import without_system
from windlass.wire import runs as wire
from windlass.wire.checkpoints import CheckpointSpec
from windlass.wire.cluster import AsideRequest, AsideView, ClusterView, NodeRef
from windlass.wire.queue import QueueView
from windlass.wire.spec import RunSpec, parse_spec

_TRIES = 20  # of a write that somebody else's write got in front of


class RunService:
    def __init__(
        self,
        db: Database,
        blobs: Blobs,
        seal: Seal,
        clock: Clock,
        *,
        prices: PriceBook,
        runs_dir: Path | None,
        nudge: Callable[[], None],
        rules: Rules | None = None,
        project_checkpoints: Mapping[str, CheckpointSpec] | None = None,
    ) -> None:
        self._db = db
        self._blobs = blobs
        self.stored_logs = StoredLogs(db, blobs)
        self._seal = seal
        self._clock = clock
        self._prices = prices
        self._runs_dir = runs_dir
        self._rules = rules or Rules()
        self._access = self._rules.access
        self._queue = QueueDesk(self._rules)
        self._project_checkpoints = project_checkpoints or {}
        self._nudge = nudge  # tells a controller in this process, if there is one, that there is something to do

    # ---- changing ----------------------------------------------------------------------------------------------

    def submit(self, request: wire.SubmitRequest, *, idempotency_key: str | None, user: str | None) -> wire.RunView:
        digest = request_digest(request)
        if idempotency_key and (known := self._known_submission(idempotency_key, digest)):
            return known
        spec = fill_checkpoint(parse_spec(request.spec), self._project_checkpoints)
        check_secrets(spec, request.secrets)
        check_recipe(spec)
        check_code(self._blobs, request.code_digest)
        origin = keep_origin(self._blobs, request.origin)
        now = self._clock.now()
        with self._db.read() as tx:
            kinds = self._kinds_for(tx, spec)
        row = new_run(
            spec, kinds, code_digest=request.code_digest, origin=origin, user=user or origin["user"], now=now,
            rules=self._rules,
        )  # fmt: skip
        row |= {"idempotency_key": idempotency_key, "request_digest": digest}
        try:
            self._insert(
                row, message="submitted", now=now, seal=lambda tx: self._seal.store(tx, row["id"], request.secrets)
            )
        except IntegrityError:
            # The same key came twice at the same moment, and the other one was first.
            if idempotency_key and (known := self._known_submission(idempotency_key, digest)):
                return known
            raise
        return self.view(row["id"])

    def cancel(self, ref: str, *, grace_s: float | None) -> wire.RunView:
        def attempt(tx: Connection, run: RunRecord, now: float) -> None:
            if run.state is RunState.CANCELLED or (run.cancelling and grace_s in (None, run.cancel_grace_s)):
                return
            if run.state.is_terminal:
                raise Conflict(f"run {run.id} has {run.state} already", hint="there is nothing left to cancel")
            if run.state.is_waiting:
                ended = Exit(reason=ExitReason.CANCELLED, message="cancelled before it started")
                message = f"cancelled while {run.state}"
                store.advance(
                    tx, run, EventKind.CANCELLED, now=now, message=message, ended_at=now, exit=exit_to_json(ended),
                    cancel_requested_at=now, retry_at=None,
                )  # fmt: skip
                return
            grace = run.spec.grace if grace_s is None else grace_s
            store.annotate(
                tx, run, EventKind.CANCEL_REQUESTED, now=now, message=f"cancel requested; grace {grace:g} s",
                cancel_requested_at=now, cancel_grace_s=grace,
            )  # fmt: skip

        return self._change(ref, attempt)

    def resume(self, ref: str) -> wire.RunView:
        def attempt(tx: Connection, run: RunRecord, now: float) -> None:
            if run.state not in (RunState.FAILED, RunState.CANCELLED):
                hint = f"`windlass clone {run.id}` starts it afresh" if run.state.is_terminal else None
                raise Conflict(f"run {run.id} is {run.state}; only failed and cancelled runs can be resumed", hint=hint)
            check_queue(tx, {"project": run.project, "user": run.user}, self._rules)
            store.advance(
                tx, run, EventKind.RESUMED, now=now, message=f"resumed after it was {run.state}", queued_at=now,
                first_attempt=run.attempt_count + 1, ran_s=0.0, ended_at=None, exit=None, retry_at=None,
                cancel_requested_at=None, cancel_grace_s=None,
            )  # fmt: skip

        return self._change(ref, attempt)

    def clone(self, ref: str, request: wire.CloneRequest, *, user: str | None) -> wire.RunView:
        now = self._clock.now()
        with self._db.read() as tx:
            original = resolve_run(tx, ref)
            secrets = {**self._seal.open(tx, original.id), **request.secrets}
        data = changed_spec(original.spec_data, request.set, request.name)
        data.setdefault("seed", original.seed)
        spec = parse_spec({key: value for key, value in data.items() if value is not None or key in ("code", "retry")})
        secrets = {name: value for name, value in secrets.items() if name in spec.secrets}
        check_secrets(spec, secrets)
        if request.set:  # else it takes what its code, which may be of another version, has taken before
            check_recipe(spec)
        with self._db.read() as tx:
            kinds = self._kinds_for(tx, spec)
        origin = copied_origin(original.origin, request.asker)
        row = new_run(
            spec, kinds, code_digest=original.code_digest, origin=origin, user=user or origin.get("user"), now=now,
            rules=self._rules,
        )  # fmt: skip
        row |= {"clone_of": original.id, "seed": original.seed if spec.seed is None else spec.seed}
        self._insert(
            row, message=f"cloned from {original.id}", now=now, seal=lambda tx: self._seal.store(tx, row["id"], secrets)
        )
        return self.view(row["id"])

    def reproduce(self, ref: str, request: wire.ReproduceRequest, *, user: str | None) -> wire.Reproduction:
        """The same run again, and what of it could not be pinned."""
        with self._db.read() as tx:
            original = resolve_run(tx, ref)
            known = load_known(tx, original)
        wanted = wire.CloneRequest(
            set=decide_changes(original, known.placement), name=request.name, secrets=request.secrets,
            asker=request.asker,
        )  # fmt: skip
        run = self.clone(original.id, wanted, user=user)
        return wire.Reproduction(run=run, pins=decide_pins(original, known))

    def pins(self, ref: str) -> wire.PinList:
        """What `reproduce` would say, without a new run."""
        with self._db.read() as tx:
            original = resolve_run(tx, ref)
            return wire.PinList(pins=decide_pins(original, load_known(tx, original)))

    # ---- looking -----------------------------------------------------------------------------------------------

    def view(self, ref: str) -> wire.RunView:
        with self._db.read() as tx:
            return self.view_in(tx, resolve_run(tx, ref))

    def view_in(self, tx: Connection, run: RunRecord) -> wire.RunView:
        attempts = store.load_attempts(tx, run.id)
        digest = attempts[-1].environment_digest if attempts else None
        return views.run_view(
            run,
            attempts,
            load_marks(tx, [run.id]).get(run.id),
            without_system(load_summaries(tx, [run.id]).get(run.id, {})),
            self._prices,
            environment=store.load_environments(tx, [digest]).get(digest or ""),
            note=load_tag(tx, run.id, NOTE),
            run_dir=str(self._runs_dir / run.id) if self._runs_dir else None,
            now=self._clock.now(),
        )

    def summary_in(self, tx: Connection, run: RunRecord) -> wire.RunSummary:
        return self._summaries(tx, [run])[0]

    def page(
        self,
        *,
        states: Sequence[str] = (),
        project: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> wire.RunPage:
        """`tag` is `KEY` or `KEY=VALUE`."""
        for state in states:
            if state not in set(RunState):
                raise InvalidInput(unknown("state", state, list(RunState)))
        before = decode_cursor(cursor)
        with self._db.read() as tx:
            found = store.load_page(
                tx, states=states, project=project, name=name, tag=read_tag(tag), before=before, limit=limit + 1
            )
            page = found[:limit]
            summaries = self._summaries(tx, page)
        last = page[-1] if len(found) > limit else None
        return wire.RunPage(runs=summaries, next_cursor=encode_cursor(last) if last else None)

    def attempts(self, ref: str) -> wire.AttemptList:
        with self._db.read() as tx:
            found = store.load_attempts(tx, resolve_run(tx, ref).id)
            environments = store.load_environments(tx, [attempt.environment_digest for attempt in found])
        shown = [views.attempt_view(attempt, environments.get(attempt.environment_digest or "")) for attempt in found]
        return wire.AttemptList(attempts=shown)

    def events(self, ref: str, *, after: int) -> wire.EventPage:
        with self._db.read() as tx:
            found = store.load_events(tx, resolve_run(tx, ref).id, after=after)
        events = [views.event_view(row) for row in found]
        return wire.EventPage(events=events, next_after=events[-1].seq if events else after)

    def diff(self, ref: str) -> bytes:
        with self._db.read() as tx:
            run = resolve_run(tx, ref)
        digest = ((run.origin.get("git") or {}).get("diff_digest")) if run.origin else None
        return self._blobs.get(digest) if digest else b""

    def why(self, ref: str) -> wire.Why:
        with self._db.read() as tx:
            return explain_run(tx, resolve_run(tx, ref), self._queue, now=self._clock.now())

    def queue(self, *, project: str | None, limit: int) -> QueueView:
        with self._db.read() as tx:
            return self._queue.view(tx, project=project, limit=limit, now=self._clock.now())

    def cluster(self) -> ClusterView:
        with self._db.read() as tx:
            return view_cluster(tx, now=self._clock.now())

    def set_aside(self, request: AsideRequest) -> AsideView:
        """Place nothing there any more, whatever was before."""
        with self._db.write() as tx:
            return set_aside(tx, request, now=self._clock.now())

    def give_back(self, request: NodeRef) -> AsideView:
        """What it was set aside for. One that is not is a conflict."""
        with self._db.write() as tx:
            given_back = give_back(tx, request, now=self._clock.now())
        self._nudge()
        return given_back

    def logs(self, ref: str, wanted: LogQuery, *, after: str | None, limit: int) -> wire.LogPage:
        with self._db.read() as tx:
            run = resolve_run(tx, ref)
            log_dirs = load_log_dirs(tx, run.id)
        if after is None:
            check_wanted(run.spec, log_dirs, wanted, self.stored_logs)
        return read_logs(log_dirs, self.stored_logs, wanted, after, limit=limit)

    def watch_logs(self, attempt_ids: Sequence[str]) -> None:
        """Nodes elsewhere send their lines at once while somebody follows them; to be repeated every few seconds."""
        self.stored_logs.watch(attempt_ids, now=self._clock.now())

    def metrics(
        self,
        ref: str,
        *,
        names: Sequence[str] | None,
        most: int,
        window: Window | None = None,
        system: bool = False,
        limit: int | None = None,
    ) -> wire.MetricsView:
        """Without `names` all or `limit` of them, but those of its machines only with `system`."""
        with self._db.read() as tx:
            run_id = resolve_id(tx, ref)
            known = load_summaries(tx, [run_id]).get(run_id, {})
            for name in names or ():
                if name not in known:
                    raise NotFound(unknown("metric", name, known))
            chosen = names or list(known if system else without_system(known))
            if limit is not None:
                chosen = sorted(chosen, key=metric_place)[:limit]
            series = load_series(tx, run_id, chosen, most=most, window=window)
        return wire.MetricsView(series=[views.series_view(name, rows) for name, rows in series.items()])

    def chart(self, ref: str, name: str, *, most: int, window: Window) -> wire.MetricChart:
        """A metric in at most so many stretches."""
        with self._db.read() as tx:
            run_id = resolve_id(tx, ref)
            known = load_summaries(tx, [run_id]).get(run_id, {})
            if name not in known:
                raise NotFound(unknown("metric", name, known))
            return views.chart_view(name, load_rollups(tx, run_id, name, most=most, window=window))

    def ingest(self, ref: str, batch: wire.MetricBatch) -> wire.MetricReceipt:
        with self._db.write() as tx:
            run_id = resolve_run(tx, ref).id
            lock(tx, run_id)
            position = load_position(tx, run_id, batch.source)
            if batch.seq > position:
                raise Conflict(
                    f"source {batch.source} is at {position}, not {batch.seq}", hint="send what lies between"
                )
            new = [views.point_of(point) for point in batch.points[position - batch.seq :]]
            after = position + len(new)
            if new:
                ingest(tx, run_id, batch.source, new, position=position, next_position=after)
                heed_points(tx, run_id, new, now=self._clock.now())
        return wire.MetricReceipt(accepted=len(new), next_seq=after)

    def resolve_id(self, ref: str) -> str:
        with self._db.read() as tx:
            return resolve_run(tx, ref).id

    def resolve_in(self, tx: Connection, ref: str) -> RunRecord:
        return resolve_run(tx, ref)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _summaries(self, tx: Connection, found: Sequence[RunHead]) -> list[wire.RunSummary]:
        live_ids = [run.id for run in found if run.state.is_live]
        live: dict[str, AttemptRecord] = {a.run_id: a for a in store.load_attempts_of(tx, live_ids)} if live_ids else {}
        progress = load_marks(tx, [run.id for run in found])
        now = self._clock.now()
        return [views.summary_view(r, live.get(r.id), progress.get(r.id), self._prices, now=now) for r in found]

    def _insert(self, row: dict[str, Any], *, message: str, now: float, seal: Callable[[Connection], None]) -> None:
        with self._db.write() as tx:
            check_queue(tx, row, self._rules)
            check_experiment(tx, row["spec"].get("experiment"))
            store.insert_run(tx, row)
            store.record_event(tx, row["id"], EventKind.SUBMITTED, at=now, message=message)
            insert_rules(tx, row["id"], row["spec"].get("rules") or ())
            seal(tx)
        self._nudge()

    def _change(self, ref: str, attempt: Callable[[Connection, RunRecord, float], None]) -> wire.RunView:
        """Apply `attempt` to the run as it is now; again if somebody else changed it in between."""
        for left in reversed(range(_TRIES)):
            try:
                with self._db.write() as tx:
                    run = resolve_run(tx, ref)
                    attempt(tx, run, self._clock.now())
                break
            except store.ChangedMeanwhile:
                if not left:
                    raise
        self._nudge()
        return self.view(run.id)

    def _known_submission(self, key: str, digest: str) -> wire.RunView | None:
        with self._db.read() as tx:
            run = store.load_run_by_key(tx, key)
            if run is None:
                return None
            if run.request_digest != digest:
                raise IdempotencyMismatch(
                    f"idempotency key '{key}' was used before, for another request (run {run.id})",
                    hint="use a new key for a new submission",
                )
            return self.view_in(tx, run)

    def _kinds_for(self, tx: Connection, spec: RunSpec) -> tuple[NodeKind, ...]:
        """The kinds of nodes of the engines that the run may go to. Raises InvalidSpec for engines that it may not."""
        kinds, engines = load_kinds(tx), load_engines(tx)
        check_engines(spec, {*engines, *(kind.node.engine for kind in kinds)}, self._access)
        types = {name: state.type for name, state in engines.items()}
        gpus = spec.resources.gpus
        allowed = self._access.of_run(spec.project, spec.engine, image=spec.image, gpus=gpus, types=types)
        if engines and allowed is not None and not allowed:
            wanted = "wants a container image, and none of its engines has containers"
            if spec.image is None:
                wanted = f"wants {gpus:g} of a GPU, and none of its engines hands out parts"
            raise CannotFit(f"this run {wanted}")
        return tuple(kind for kind in kinds if allowed is None or kind.node.engine in allowed)
