"""The controller: one loop that moves runs forward. Load a snapshot, decide with pure functions, commit, act.

It keeps nothing that matters in memory: a new controller goes on where a killed one stopped, because every effect on an
engine is safe to repeat and every decision is in the database before it is acted on.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from windlass.controller import commit
from windlass.controller.archivist import Archivist
from windlass.controller.collecting import commit_spooled, read_spools
from windlass.controller.decide import (
    Decision,
    EndAttempt,
    LaunchAttempt,
    StopAttempt,
    decide_attempt,
    decide_failed_launch,
)
from windlass.controller.inventory import Inventory
from windlass.controller.launches import LaunchEnd, Launches
from windlass.controller.launching import render_launch
from windlass.controller.lease import LeaseLost, ShardLeases
from windlass.controller.outputs import OutputKeeper
from windlass.controller.polling import Poller
from windlass.controller.recording import Recorder, Work
from windlass.controller.scheduler import Scheduler
from windlass.controller.stops import Stops
from windlass.core.clock import Clock, is_due
from windlass.core.errors import Unavailable, WindlassError
from windlass.core.exits import ExitReason
from windlass.db.database import Database
from windlass.engines.contract import Engine, Observation, Phase
from windlass.runs import aftermath, store
from windlass.runs.access import TrackingAccess
from windlass.runs.living import LivingBook
from windlass.runs.records import AttemptRecord, RunRecord
from windlass.runs.retry import Ended
from windlass.runs.rulebook import commit_quiet, load_quiet
from windlass.runs.sealing import Seal
from windlass.runs.types import AttemptState
from windlass.scheduling.rules import Rules
from windlass.tenancy.prices import PriceBook
from windlass.tracking.store import load_positions

log = logging.getLogger(__name__)

PASS_EVERY_S = 1.0  # at the latest: submissions and supervisors wake the loop at once
COLLECT_EVERY_S = 0.9
MOST_PLACED = 500  # in one pass: the others of the queue wait for the next, live runs do not wait for a long queue
_SETTLE_WITHIN_S = 1.0
_CLOSE_WITHIN_S = 10.0
CHANNEL = "windlass_runs"  # who changes what a controller should look at says so here


class Controller:
    def __init__(
        self,
        db: Database,
        open_engines: Callable[[Callable[[], None]], Mapping[str, Engine]],
        seal: Seal,
        clock: Clock,
        lease: ShardLeases,
        *,
        prices: PriceBook,
        rules: Rules | None = None,
        archivist: Archivist | None = None,
        keeper: OutputKeeper | None = None,
        access: TrackingAccess | None = None,
        log_limit_bytes: int | None = None,
        jitter: random.Random | None = None,
    ) -> None:
        self._db = db
        self._open_engines = open_engines
        self._engines: Mapping[str, Engine] = {}
        self._inventory = Inventory({})
        self._seal = seal
        self._clock = clock
        self._lease = lease
        rules = rules or Rules()
        self._aside = [one for one in (archivist, keeper) if one is not None]  # threads of their own
        self._access = access
        self._prices = prices
        self._log_limit_bytes = log_limit_bytes
        self._listens_since = clock.now()
        self._jitter = jitter or random.Random()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        # Conveniences only; losing them costs a repeated signal, an early refresh or reading a run again.
        self._living = LivingBook()
        self._stops = Stops(db, lease, clock, tell=self._stop)
        self._recorder = Recorder(
            db,
            lease,
            prices,
            why_away=lambda engine: self._inventory.why_away(engine),
            about_to_write=self._living.forget,
        )
        self._poller = Poller()
        self._scheduler = Scheduler(db, lease, rules)
        self._launches = Launches(ended=self.nudge)
        self._settling = False  # shards are to be given back once no launch is under way
        self._next_collect = 0.0
        self._pass_times_s: deque[float] = deque(maxlen=100)

    # ---- running -----------------------------------------------------------------------------------------------

    def nudge(self) -> None:
        """There may be something to do now. Safe from any thread."""
        self._wake.set()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()

    def activate(self) -> bool:
        """Become the active controller if there is none. Engines are opened only then: a standby touches nothing."""
        self._settling = False
        if not self._lease.acquire(self._db, may_release=self._settle):
            self._launches.take_ended()  # what came of them is another's to find out
            return False
        if not self._engines:
            self._engines = self._open_engines(self.nudge)
            self._inventory = Inventory(self._engines)
            self.refresh_nodes()
        return True

    def _settle(self) -> bool:
        """Whether shards may be given back. If not yet, none is launched meanwhile, or it would never be."""
        self._settling = not self._launches.settle(_SETTLE_WITHIN_S)
        return not self._settling

    def is_alone(self) -> bool:
        """Whether every run is this controller's business: then nobody else need be told of anything."""
        return bool(self._lease.held) and self._lease.slots is None

    def run_forever(self) -> None:
        listener = self._db.listen(CHANNEL, self.nudge)
        for one in self._aside:
            one.start()
        while not self._stopping.is_set():
            try:
                if self.activate():
                    self.tick()
            except LeaseLost as error:
                log.warning("%s; standing by", error)
                self._close_engines()
            except Unavailable as error:
                log.warning("%s; trying again", error)
            except Exception:
                # The loop is a boundary: one bad pass must not end all that follow.
                log.exception("a controller pass failed; trying again")
            self._wake.wait(PASS_EVERY_S)
            self._wake.clear()
        if listener is not None:
            listener.close()
        for one in self._aside:
            one.stop()
        if self._close_engines():
            self._lease.give_up(self._db)

    def pass_times_s(self) -> list[float]:
        """How long the last passes took, oldest first."""
        return list(self._pass_times_s)

    def tick(self) -> None:
        """One pass. Raises LeaseLost if another controller has taken over."""
        began = time.perf_counter()
        self.refresh_nodes()
        self.end_launches()
        self.reconcile()
        if self._inventory.is_doubtful:
            self.refresh_nodes()  # writing takes its time: somebody may be due again now, for a node that is gone
        self.place()
        self.make_room()
        self.collect()
        self.release()
        self._keep_beating()
        self._pass_times_s.append(time.perf_counter() - began)

    # ---- the parts of a pass -----------------------------------------------------------------------------------

    def refresh_nodes(self) -> None:
        now = self._clock.now()
        if self._inventory.refresh(now) and self._lease.schedules:
            with self._db.write() as tx:
                self._lease.beat(tx)
                self._inventory.commit(tx, now)

    def end_launches(self) -> None:
        """Write down how launches ended that were under way."""
        slots = self._lease.slots
        for end in self._launches.take_ended():
            if slots is None or end.attempt.slot in slots:
                self._end_launch(end)

    def reconcile(self) -> None:
        """Bring the record in line with what engines see, and engines in line with what the record wants."""
        now = self._clock.now()
        with self._db.read() as tx:
            living = self._living.load(tx, self._lease.slots)
            runs = living.runs
            attempts = [a for a in living.attempts if a.run_id in runs and not self._launches.is_under_way(a)]
        if not attempts:
            self._stops.ask(())
            return
        observations = self._poll(attempts)
        # What was before matters for those that have ended, or are to be launched.
        moving = [a for a in attempts if a.number > 1 and observations[a.id].phase in (Phase.ENDED, Phase.ABSENT)]
        with self._db.read() as tx:
            earlier = {a.run_id: store.load_history(tx, runs[a.run_id]) for a in moving}
        work: list[Work] = []
        for attempt in attempts:
            run, seen = runs[attempt.run_id], observations[attempt.id]
            past = earlier.get(run.id, [])
            decisions = decide_attempt(run, attempt, seen, past, now=now, jitter=self._jitter.random())
            work.append(Work(run=run, attempt=attempt, seen=seen, decisions=decisions))
        self._record(work, now)
        self._stops.ask(
            [(item.attempt, how) for item in work for how in item.decisions if isinstance(how, StopAttempt)]
        )
        for item in sorted(work, key=_turn):
            if any(isinstance(decision, LaunchAttempt) for decision in item.decisions):
                self._launch(item.run, item.attempt, earlier.get(item.run.id, []))

    def place(self) -> None:
        """Start those whose turn it is, and have those stopped that make room for them. Those of other controllers are
        started and stopped by them."""
        if not self._lease.schedules:
            return
        now, slots = self._clock.now(), self._lease.slots
        verdict = self._scheduler.decide(now, self._living if slots is None else None)
        decisions = verdict.starts[:MOST_PLACED]
        if verdict.giving_way:
            leaving = {run_id: (run_id, why) for run_id, why in verdict.giving_way.items()}
            commit.commit_each(self._db, self._lease, leaving, commit.commit_giving_way)
            self.nudge()  # they are told in the next pass
        if slots is not None and (decisions or verdict.giving_way):
            self._db.notify(CHANNEL)
        if not decisions:
            return
        with self._db.read() as tx:
            runs = {run.id: run for run in store.load_runs(tx, [d.run_id for d in decisions])}
        placed = {d.run_id: (runs[d.run_id], d.placement) for d in decisions}
        commit.commit_each(
            self._db, self._lease, placed, partial(commit.commit_placements, prices=self._prices, now=now)
        )
        if len(decisions) == MOST_PLACED:
            self.nudge()  # there may be more
        with self._db.read() as tx:
            new = [a for a in store.load_attempts_of(tx, list(runs)) if a.state is AttemptState.STARTING]
            new = [attempt for attempt in new if slots is None or attempt.slot in slots]
            current = {run.id: run for run in store.load_runs(tx, [a.run_id for a in new])}
            earlier = {a.run_id: store.load_history(tx, current[a.run_id]) for a in new if a.number > 1}
        turns = {decision.run_id: turn for turn, decision in enumerate(decisions)}
        for attempt in sorted(new, key=lambda attempt: turns[attempt.run_id]):
            self._launch(current[attempt.run_id], attempt, earlier.get(attempt.run_id, []))

    def make_room(self) -> None:
        """Tell those that are to give way to others. After placing: who has just started elsewhere needs their room no
        more."""
        self._stops.make_room()

    def collect(self) -> None:
        """Metric points of live attempts; and rules about those that are quiet."""
        now = self._clock.now()
        if not is_due(self._next_collect, now, every_s=COLLECT_EVERY_S):
            return
        self._next_collect = now + COLLECT_EVERY_S
        self._recorder.catch_up(now)
        with self._db.read() as tx:
            writing = store.load_live_log_dirs(tx, self._lease.slots)
            positions = load_positions(tx, [run_id for run_id, _, _ in writing])
            quiet = load_quiet(tx, now=now, since=self._listens_since, slots=self._lease.slots)
        spooled = [part for run_id, id, folders in writing for part in read_spools(run_id, id, folders, positions)]
        if spooled or quiet:
            with self._db.write() as tx:
                self._lease.beat(tx)
                commit_spooled(tx, spooled, now=now)
                commit_quiet(tx, quiet, now=now)

    def release(self) -> None:
        """Let engines forget attempts whose end is on record."""
        with self._db.read() as tx:
            ended = aftermath.load_unreleased(tx, self._lease.slots)
        if not ended:
            return
        released = []
        for attempt_id, engine in ended:
            if self._inventory.is_away(engine):
                continue  # each would wait for it in vain
            self._keep_beating()
            with self._inventory.asking(engine):
                if engine in self._engines:
                    self._engines[engine].release(attempt_id)
                released.append(attempt_id)
            self._stops.forget(attempt_id)
            self._recorder.forget(attempt_id)
        now = self._clock.now()
        with self._db.write() as tx:
            self._lease.beat(tx)
            aftermath.mark_released(tx, released, now=now)
        for one in self._aside:
            one.nudge()

    # ---- effects -----------------------------------------------------------------------------------------------

    def _poll(self, attempts: Sequence[AttemptRecord]) -> dict[str, Observation]:
        by_engine: dict[str, list[str]] = {}
        for attempt in attempts:
            by_engine.setdefault(attempt.engine, []).append(attempt.id)
        found: dict[str, Observation] = {attempt.id: Observation(phase=Phase.UNKNOWN) for attempt in attempts}
        for name, ids in by_engine.items():
            engine = self._engines.get(name)
            if engine is None:
                away = Observation(phase=Phase.UNKNOWN, detail=f"engine '{name}' is not in the controller's config")
                found.update(dict.fromkeys(ids, away))
            else:
                with self._inventory.asking(name):
                    found.update(self._poller.poll(engine, ids))
        return found

    def _launch(self, run: RunRecord, attempt: AttemptRecord, earlier: Sequence[Ended]) -> None:
        engine = self._engines.get(attempt.engine)
        if engine is None or self._inventory.is_away(attempt.engine):
            return
        self._keep_beating()
        hand_over = partial(self._hand_over, engine, run, attempt)
        if engine.launches_at_once > 1:
            if self._settling:
                return
            self._launches.begin(run, attempt, earlier, hand_over, at_once=engine.launches_at_once)
            return
        failure: Exception | None = None
        try:
            hand_over()
        except Exception as error:
            failure = error
        self._end_launch(LaunchEnd(run=run, attempt=attempt, earlier=earlier, error=failure))

    def _hand_over(self, engine: Engine, run: RunRecord, attempt: AttemptRecord) -> None:
        """In a thread of its own on engines that can bear it."""
        secrets = self._open_secrets(run)
        own = {**(run.origin.get("env") or {}), **(run.spec_data.get("env") or {}), **secrets}
        told, credentials = self._access.tell(run, engine.type, own) if self._access else ({}, {})
        launch = render_launch(
            run,
            attempt,
            {**secrets, **credentials},
            engine_type=engine.type,
            inherited=os.environ,
            key=os.urandom(16).hex(),
            told=told,
            log_limit_bytes=self._log_limit_bytes,
        )
        if not self._lease.is_fresh():
            raise Unavailable("the lease was not renewed in time: it may be another controller's by now")
        engine.launch(launch)

    def _end_launch(self, end: LaunchEnd) -> None:
        attempt, error, now = end.attempt, end.error, self._clock.now()
        if isinstance(error, Unavailable):
            log.warning("attempt %s cannot be launched now: %s", attempt.id, error)
        elif isinstance(error, WindlassError | OSError):
            message = error.message if isinstance(error, WindlassError) else str(error)
            decision = decide_failed_launch(
                end.run, attempt, message, end.earlier, now=now, jitter=self._jitter.random()
            )
            absent = Observation(phase=Phase.ABSENT)
            self._record([Work(run=end.run, attempt=attempt, seen=absent, decisions=[decision])], now)
        elif error is not None:
            # Nothing that anybody foresaw: the others shall be launched all the same.
            log.error("attempt %s cannot be launched; trying again", attempt.id, exc_info=error)

    def _open_secrets(self, run: RunRecord) -> dict[str, str]:
        if not run.spec_data.get("secrets"):
            return {}
        with self._db.read() as tx:
            return self._seal.open(tx, run.id)

    def _record(self, work: Sequence[Work], now: float) -> None:
        self._recorder.record(work, now)
        if any(_blames_a_node(item.attempt, decision) for item in work for decision in item.decisions):
            self._inventory.hurry()

    def _stop(self, attempt: AttemptRecord, decision: StopAttempt) -> None:
        self._keep_beating()
        with self._inventory.asking(attempt.engine):
            self._engines[attempt.engine].stop(attempt.id, grace_s=decision.grace_s, kind=decision.kind)
            self._stops.heard(attempt, decision)

    def _close_engines(self) -> bool:
        """Whether nothing is being done about any run any more: only then may others take over at once."""
        settled = self._launches.settle(_CLOSE_WITHIN_S)
        if not settled:
            log.warning("launches are under way that do not end; leaving them, and the lease to its time")
        self._launches.close()
        engines, self._engines = self._engines, {}
        for name, engine in engines.items():
            try:
                engine.close()
            except Exception:
                log.exception("engine %s could not be closed", name)
        return settled

    def _keep_beating(self) -> None:
        """Also between two effects: hundreds of launches take longer than a lease lasts, and one that has lost it must
        not go on launching what another controller looks after by now."""
        if self._lease.wants_beat():
            with self._db.write() as tx:
                self._lease.beat(tx)


def _turn(item: Work) -> tuple[float, int, float]:
    """Those placed first come first, and of these the first of the queue."""
    return item.attempt.created_at, -item.run.priority, item.run.queued_at


def _blames_a_node(attempt: AttemptRecord, decision: Decision) -> bool:
    """Not where the scheduler wanted it to end."""
    if not isinstance(decision, EndAttempt) or attempt.giving_way is not None:
        return False
    return decision.exit.reason in (ExitReason.LOST, ExitReason.PREEMPTED)
