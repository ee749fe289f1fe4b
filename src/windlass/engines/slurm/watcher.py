"""One thread that asks Slurm for all attempts together, and carries out what they want of it.

However many attempts there are, each round is one squeue and at most one sacct and two scancel; sinfo comes every tenth
second, and switches are asked for every ten minutes. Rounds follow each other at the configured interval while anything
is live, and stop when nothing is.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from windlass.core.errors import Unavailable
from windlass.engines.slurm.commands import Slurm
from windlass.engines.slurm.tables import JobLife, JobRow, NodeRow, PastJob

log = logging.getLogger(__name__)

_NODES_EVERY_S = 10.0
_SWITCHES_EVERY_S = 600.0
_LINGER_S = 5.0  # rounds go on for this long after somebody has last asked for one
_CLOSE_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What Slurm said at one moment. `asked_at` (monotonic) is from before it was asked: what was submitted earlier
    than that is in it."""

    asked_at: float
    jobs: Mapping[str, tuple[JobRow, ...]]  # by token; ours only
    past: Mapping[str, PastJob | None] = field(default_factory=dict)  # by id; None: nothing is known of it


class Watcher:
    def __init__(
        self,
        slurm: Slurm,
        *,
        prefix: str,
        partition: str | None,
        interval_s: float,
        notify: Callable[[], None],
        wants_switches: bool = True,
    ) -> None:
        self._slurm = slurm
        self._prefix = prefix
        self._partition = partition
        self._interval_s = interval_s
        self._notify = notify
        self._changed = threading.Condition()
        # Guarded by the condition; the tables themselves do not change, they are replaced.
        self._wanted_until = 0.0
        self._closing = False
        self._hurry = False
        self._cancels: dict[str, float] = {}  # token: when it was asked for
        self._nudges: dict[str, float] = {}
        self._look_back: set[str] = set()
        self._past: dict[str, PastJob | None] = {}
        self._nodes_at = float("-inf")
        self._switches_at = float("-inf") if wants_switches else float("inf")
        self.tables: Tables | None = None
        self.nodes: Mapping[str, NodeRow] = {}
        self.switches: Mapping[str, tuple[str, ...]] = {}  # above each node, the widest first
        self.problem: str | None = None  # why the newest tables are not newer
        self._thread = threading.Thread(target=self._watch, name="slurm-watcher", daemon=True)
        self._thread.start()

    def want(self) -> None:
        """Somebody depends on fresh tables."""
        with self._changed:
            was_idle = self._wanted_until < time.monotonic()
            self._wanted_until = time.monotonic() + _LINGER_S + 2 * self._interval_s
            if was_idle:
                self._changed.notify()

    def cancel(self, token: str) -> None:
        """End the jobs of this name, whatever they are doing. Done with the next round."""
        self._ask(self._cancels, token)

    def nudge(self, token: str) -> None:
        """Have the supervisors of this name look for a wish to stop."""
        self._ask(self._nudges, token)

    def look_back(self, job_id: str) -> None:
        """Find out what the accounting has on a job that squeue does not list any more."""
        with self._changed:
            if job_id not in self._past:
                self._look_back.add(job_id)

    def load_nodes(self) -> Mapping[str, NodeRow]:
        """The nodes, a few seconds old. Raises Unavailable if they cannot be told. Only the first call asks itself."""
        self.want()
        if self.problem is not None:
            raise Unavailable(self.problem)
        if not self.nodes:
            self._refresh_nodes()
        return self.nodes

    def close(self) -> None:
        """What was asked for is still done, if Slurm answers."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(_CLOSE_PATIENCE_S)

    def _ask(self, wishes: dict[str, float], token: str) -> None:
        with self._changed:
            wishes.setdefault(token, time.monotonic())
            self._hurry = True
            self._changed.notify()
        self.want()

    # ---- the thread ----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._is_time, timeout=_NODES_EVERY_S)
                closing = self._closing
                if closing and not (self._cancels or self._nudges):
                    return
                self._hurry = False
            began = time.monotonic()
            if closing or began < self._wanted_until:
                self._round()
            if closing:
                return
            with self._changed:
                left_s = began + self._interval_s - time.monotonic()
                self._changed.wait_for(lambda: self._closing or self._hurry, timeout=max(0.0, left_s))

    def _is_time(self) -> bool:
        return self._closing or self._hurry or time.monotonic() < self._wanted_until

    def _round(self) -> None:
        try:
            before = self._failed_on_nodes()
            changed = self._refresh_jobs()
            self._carry_out()
            if self._failed_on_nodes() - before or time.monotonic() - self._nodes_at > _NODES_EVERY_S:
                self._refresh_nodes()
            recovered, self.problem = self.problem is not None, None
        except Unavailable as error:
            if self.problem is None:
                log.warning("Slurm does not answer: %s", error)
            changed, recovered, self.problem = self.problem is None, False, f"Slurm does not answer: {error.message}"
        except Exception:
            # The thread is a boundary: without it, no attempt would ever be seen to end.
            log.exception("reading Slurm's tables failed; trying again")
            return
        if changed or recovered:
            self._notify()

    def _refresh_jobs(self) -> bool:
        """Whether anything about our jobs has changed."""
        asked_at = time.monotonic()
        rows: dict[str, list[JobRow]] = {}
        for row in self._slurm.list_jobs():
            if row.comment.startswith(self._prefix):
                rows.setdefault(row.comment, []).append(row)
        found_past = self._read_accounting()
        jobs = {token: tuple(found) for token, found in rows.items()}
        changed = found_past or self.tables is None or self.tables.jobs != jobs
        self.tables = Tables(asked_at=asked_at, jobs=jobs, past=dict(self._past))
        return changed

    def _read_accounting(self) -> bool:
        """Whether it was asked, and answered. It may be away on its own: what is asked of it then stays open."""
        with self._changed:
            wanted = sorted(self._look_back)
        if not wanted:
            return False
        try:
            by_id = {job.job_id: job for job in self._slurm.list_past_jobs(wanted) or ()}
        except Unavailable as error:
            log.warning("Slurm's accounting does not answer: %s", error)
            return False
        with self._changed:
            self._past.update({job_id: by_id.get(job_id) for job_id in wanted})
            self._look_back.difference_update(wanted)
        return True

    def _failed_on_nodes(self) -> set[str]:
        """Jobs whose end is only explained by the state of a node."""
        rows = [row for found in (self.tables.jobs.values() if self.tables else ()) for row in found]
        return {row.job_id for row in rows if row.state == "NODE_FAIL"}

    def _refresh_nodes(self) -> None:
        rows = {row.name: row for row in self._slurm.list_nodes(self._partition)}
        if time.monotonic() - self._switches_at > _SWITCHES_EVERY_S:
            self._refresh_switches()
        self.nodes = rows
        self._nodes_at = time.monotonic()

    def _refresh_switches(self) -> None:
        """Without them gangs are only less close together: what was known stays, and it is tried again in its turn."""
        try:
            self.switches = self._slurm.list_switches()
        except Unavailable as error:
            log.warning("Slurm does not tell its switches: %s", error)
        self._switches_at = time.monotonic()

    def _carry_out(self) -> None:
        """The wishes whose jobs are listed. One that was asked for before this listing and has no job in it has become
        moot: the job has ended, or never was."""
        assert self.tables is not None
        with self._changed:
            cancels, nudges = dict(self._cancels), dict(self._nudges)
        if cancels:
            if job_ids := self._living(cancels, also_waiting=True):
                self._slurm.cancel(job_ids)
            self._forget(self._cancels, cancels)
        if nudges:
            if job_ids := self._living(nudges, also_waiting=False):
                self._slurm.nudge(job_ids)
            self._forget(self._nudges, nudges)

    def _living(self, tokens: Mapping[str, float], *, also_waiting: bool) -> list[str]:
        assert self.tables is not None
        lives = {JobLife.ALIVE, JobLife.UNKNOWN, *([JobLife.WAITING] if also_waiting else [])}
        rows = [row for token in tokens for row in self.tables.jobs.get(token, ())]
        return [row.job_id for row in rows if row.life in lives and row.state != "COMPLETING"]

    def _forget(self, wishes: dict[str, float], done: Mapping[str, float]) -> None:
        assert self.tables is not None
        with self._changed:
            for token, asked_at in done.items():
                if asked_at < self.tables.asked_at and wishes.get(token) == asked_at:
                    del wishes[token]
