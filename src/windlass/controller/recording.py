"""Writing down what a pass has found out and decided: notes about attempts, their usage, beginnings and ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection

from windlass.controller import commit
from windlass.controller.collecting import Spooled, commit_spooled, read_spools
from windlass.controller.comebacks import decide_comeback
from windlass.controller.decide import Decision, EndAttempt, MarkRunning
from windlass.controller.environments import LateEnvironments
from windlass.controller.lease import ShardLeases
from windlass.controller.recoveries import commit_comeback, commit_recoveries, news_of
from windlass.core.clock import is_due
from windlass.core.ids import attempt_id
from windlass.core.storable import storable
from windlass.db.database import Database
from windlass.engines.contract import Observation, Phase
from windlass.runs import store
from windlass.runs.records import AttemptRecord, RunRecord
from windlass.tenancy.prices import PriceBook
from windlass.tracking.points import read_printed
from windlass.tracking.store import load_positions, lock, log_points, note_printed
from windlass.tracking.system import SAMPLE_EVERY_S, system_points

MOST_USAGES = 50  # written in one pass
USAGE_EVERY_S = 1.0  # of one attempt, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One live attempt in one pass."""

    run: RunRecord
    attempt: AttemptRecord
    seen: Observation
    decisions: Sequence[Decision]

    @property
    def changes(self) -> list[MarkRunning | EndAttempt]:
        return [decision for decision in self.decisions if isinstance(decision, MarkRunning | EndAttempt)]

    @property
    def ends(self) -> bool:
        return any(isinstance(decision, EndAttempt) for decision in self.decisions)


class Recorder:
    """Not thread-safe: one controller loop owns it. What it remembers spares writing, no more."""

    def __init__(
        self,
        db: Database,
        lease: ShardLeases,
        prices: PriceBook,
        *,
        why_away: Callable[[str], str],
        about_to_write: Callable[[Iterable[str]], None],
    ) -> None:
        """`about_to_write` is told the ids of attempts whose notes and usage are about to change."""
        self._db = db
        self._lease = lease
        self._prices = prices
        self._why_away = why_away
        self._about_to_write = about_to_write
        self._noted: dict[str, float] = {}
        self._sampled: dict[str, float] = {}
        self._told: dict[str, tuple[float, float]] = {}  # when what it prints was told first, and last
        self._late = LateEnvironments()
        self._before: dict[str, AttemptRecord] = {}  # by the id of the attempt after it

    def record(self, work: Sequence[Work], now: float) -> None:
        notes = {item.attempt.id: note for item in work if (note := self._note(item, now))}
        usages = self._usages_due(work, now)
        back = [(item.attempt, news) for item in work if (news := news_of(item.seen, item.attempt))]
        caught_up = self._caught_up(work)
        if notes or usages or back or caught_up:
            changed = [attempt.id for attempt, _ in (*back, *caught_up)]
            self._about_to_write([*notes, *usages, *changed])
            with self._db.write() as tx:
                self._lease.beat(tx)
                store.update_attempts(tx, _with_digests(tx, notes))
                store.update_attempts(tx, {attempt_id: {"usage": usage} for attempt_id, usage in usages.items()})
                self._log_system(tx, work, usages, now)
                for attempt, news in back:
                    commit_recoveries(tx, attempt, news, now=now)
                for attempt, entry in caught_up:
                    commit_comeback(tx, attempt, entry, now=now)
        changing = {item.run.id: item for item in work if item.changes}
        points = self._last_points([item for item in changing.values() if item.ends])
        commit.commit_each(self._db, self._lease, changing, partial(self._apply, points=points, now=now))
        for item in changing.values():
            if item.ends and item.attempt.environment_digest is None and item.seen.environment is None:
                self._late.await_of(item.attempt.id, item.seen.log_dirs or item.attempt.log_dirs, now)

    def catch_up(self, now: float) -> None:
        """Write down what was found out about attempts only after they had ended."""
        if found := self._late.take(now):
            with self._db.write() as tx:
                self._lease.beat(tx)
                notes = {attempt_id: {"environment": storable(data)} for attempt_id, data in found.items()}
                store.update_attempts(tx, _with_digests(tx, notes))

    def forget(self, attempt_id: str) -> None:
        self._noted.pop(attempt_id, None)
        self._sampled.pop(attempt_id, None)
        self._told.pop(attempt_id, None)
        self._before.pop(attempt_id, None)

    def _caught_up(self, work: Sequence[Work]) -> list[tuple[AttemptRecord, dict[str, Any]]]:
        """Attempts that have just gone beyond where the one before them died."""
        behind = [
            item
            for item in work
            if item.attempt.number > item.run.first_attempt
            and item.attempt.recovered_at is None
            and "progress" in (item.seen.usage or {})
        ]
        unread = [item.attempt for item in behind if item.attempt.id not in self._before]
        if unread:
            ids = {attempt_id(attempt.run_id, attempt.number - 1): attempt.id for attempt in unread}
            with self._db.read() as tx:
                self._before |= {ids[found.id]: found for found in store.load_attempts_by_id(tx, list(ids))}
        decided = [
            (item.attempt, decide_comeback(before, item.attempt, item.seen))
            for item in behind
            if (before := self._before.get(item.attempt.id)) is not None
        ]
        return [(attempt, entry) for attempt, entry in decided if entry is not None]

    def _apply(
        self, tx: Connection, changing: Sequence[Work], *, points: Mapping[str, Sequence[Spooled]], now: float
    ) -> None:
        changes = [(item, decision) for item in changing for decision in item.changes]
        # Before any row of theirs, as clients do that log to several runs at once.
        lock(tx, *(item.run.id for item in changing))
        store.lock_runs(tx, [item.run.id for item in changing])
        started = [(item.run, item.attempt, how) for item, how in changes if isinstance(how, MarkRunning)]
        if started:
            commit.commit_running(tx, started, now=now)
        for item, decision in changes:
            if isinstance(decision, EndAttempt):
                # The last points first: whoever sees the end sees them too.
                commit_spooled(tx, points.get(item.attempt.id, []), now=now, ending=True)
                self._tell_printed(tx, item, item.seen.usage or item.attempt.usage)
                places = item.seen.log_dirs or item.attempt.log_dirs
                commit.commit_end(tx, item.run, item.attempt, decision, self._prices, now=now, log_dirs=places)

    def _last_points(self, ending: Sequence[Work]) -> dict[str, list[Spooled]]:
        if not ending:
            return {}
        with self._db.read() as tx:
            positions = load_positions(tx, [item.run.id for item in ending])
        return {
            item.attempt.id: list(
                read_spools(
                    item.run.id, item.attempt.id, item.seen.log_dirs or item.attempt.log_dirs, positions, drain=True
                )
            )
            for item in ending
        }

    def _usages_due(self, work: Sequence[Work], now: float) -> dict[str, Any]:
        """The newest usage of some: of those that end, and of those whose turn it is. With many live attempts each has
        its turn less often, so that a pass never has more than a few to write."""
        changed = [item for item in work if item.seen.usage is not None and item.seen.usage != item.attempt.usage]
        ending = [item for item in changed if item.seen.phase is Phase.ENDED]
        going_on = [item for item in changed if item.seen.phase is not Phase.ENDED and self._is_turn_of(item, now)]
        going_on.sort(key=self._last)
        chosen = {item.attempt.id: storable(item.seen.usage) for item in ending + going_on[:MOST_USAGES]}
        self._noted |= dict.fromkeys(chosen, now)
        return chosen

    def _log_system(self, tx: Connection, work: Sequence[Work], usages: Mapping[str, Any], now: float) -> None:
        """Samples of machines among the run's metrics, and how far it says it is, now and then. Told twice, a point is
        there once. In the order of their ids, as all have it who lock several runs."""
        for item in sorted(work, key=lambda item: item.run.id):
            usage = usages.get(item.attempt.id)
            if usage is None:
                continue
            sampled_at = self._sampled.get(item.attempt.id, 0.0)
            if is_due(sampled_at + SAMPLE_EVERY_S, now, every_s=SAMPLE_EVERY_S):
                self._sampled[item.attempt.id] = now
                if points := system_points(usage):
                    log_points(tx, item.run.id, points)
            first, last = self._told.get(item.attempt.id, (now, 0.0))
            first = min(first, now)  # if the clock has been set back
            # Soon after the first, since that says little; then ever less often.
            pause_s = min(SAMPLE_EVERY_S, (now - first) / 2)
            if is_due(last + pause_s, now, every_s=pause_s) and self._tell_printed(tx, item, usage):
                self._told[item.attempt.id] = (first, now)

    def _tell_printed(self, tx: Connection, item: Work, usage: Mapping[str, Any] | None) -> bool:
        """How far it says it is in what it prints. At the end of an attempt with that end, whatever was told before:
        nobody looks at its usage again, and that is what will be shown of it from then on."""
        printed = read_printed((usage or {}).get("printed"))
        if printed is not None:
            note_printed(tx, item.run.id, printed, attempt=item.attempt.number)
        return printed is not None

    def _is_turn_of(self, item: Work, now: float) -> bool:
        return is_due(self._last(item) + USAGE_EVERY_S, now, every_s=USAGE_EVERY_S)

    def _last(self, item: Work) -> float:
        return self._noted.get(item.attempt.id, 0.0)

    def _note(self, item: Work, now: float) -> dict[str, Any]:
        """What is worth keeping of an observation besides the state and the usage."""
        attempt, seen = item.attempt, item.seen
        note: dict[str, Any] = {}
        unknown = seen.phase is Phase.UNKNOWN
        if unknown != (attempt.unknown_since is not None):
            note["unknown_since"] = now if unknown else None
        detail = seen.detail or (self._why_away(attempt.engine) if unknown else None) or None
        if detail != attempt.detail:
            note["detail"] = storable(detail)
        if seen.log_dirs and seen.log_dirs != attempt.log_dirs:
            note["log_dirs"] = list(seen.log_dirs)
        if seen.environment is not None and attempt.environment_digest is None:
            note["environment"] = storable(seen.environment)
        return note


def _with_digests(tx: Connection, notes: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The notes with each environment put where it is kept, and its digest instead."""
    digests = store.put_environments(tx, [note["environment"] for note in notes.values() if "environment" in note])
    left = iter(digests)
    return {
        attempt_id: {
            **{name: value for name, value in note.items() if name != "environment"},
            **({"environment_digest": next(left)} if "environment" in note else {}),
        }
        for attempt_id, note in notes.items()
    }
