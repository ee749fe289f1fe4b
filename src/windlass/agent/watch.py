"""Following the ranks of a node to their end: logs, samples, limits, stopping. One thread, asleep between events."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any, Mapping, Union

from . import advice, comeback, conclusion, kernel, layout, progress, savers, stacks
from .blame import Candidate, decide_culprit, is_certain, missed_peers
from .failure import describe_failure, describe_unfinished
from .files import read_json, write_json
from .hang import Hangs
from .kin import Kin
from .pipes import Pipes
from .printed import Printed
from .ranklog import RankLog
from .ranks import Rank
from .recovery import Failed
from .restarts import Restarts
from .sampling import Sampler
from .status import Status
from .tensorboard import Boards
from .verdict import Verdict

_FIRST_SAMPLE_S = 0.5
_MEMORY_CHECK_S = 0.5
_TERM_PATIENCE_S = 0.3
_DOUBT_S = 3.0  # how long to wait for a better explanation than that a peer is gone
FROM_OUTSIDE = "its node was told to stop from outside"


class Watch:
    def __init__(self, *, plan: Mapping[str, Any], status: Status, wakeup_fd: int, restarts: Restarts) -> None:
        self._plan = plan
        self._node_dir = plan["node_dir"]
        self._status = status
        self._wakeup_fd = wakeup_fd
        self._pipes = Pipes(wakeup_fd, self._on_signals)
        self._kin = Kin(self._reap)
        self._ranks: dict[int, Rank] = {}
        self._verdict: Verdict | None = None
        self._failed: list[Candidate] = []
        self._doubt_until: float | None = None  # while the failures known so far may be consequences only
        self._done: frozenset[int] = frozenset()  # ranks whose work was done when they were told to stop
        self._killed = False
        self._kill_at: float | None = None
        self._sample_at: float | None = None
        self._memory_at: float | None = None
        self._timeout_at: float | None = None
        self._oom_kills = kernel.oom_kills()
        self._sampler: Sampler | None = None
        self._hangs = Hangs(plan)
        self._boards = Boards(plan)
        self._printed = Printed()
        self._usage: dict[str, Any] = {}  # the newest sample
        self._dead = conclusion.Dead()  # ranks of former generations
        self._restarts = restarts
        self._linger_until: float | None = None  # once all ranks have ended: for what savers still write
        self.started_at = time.time()

    # Taking over ------------------------------------------------------------------------------------------------

    def add(self, rank: int, pid: int, out_fd: int, err_fd: int, log: RankLog) -> None:
        if self._sample_at is None:
            self._begin()
        self._boards.add(pid)
        self._ranks[pid] = Rank(rank=rank, pid=pid, log=log, plan=self._plan)
        self._pipes.add(out_fd, log.out, log)
        self._pipes.add(err_fd, log.err, log)

    def leave_alone(self, pid: int | None) -> None:
        """A process that may outlive the ranks, with those that it starts."""
        self._kin.left_alone = pid

    def _begin(self) -> None:
        """Time counts from the first rank."""
        start = time.monotonic()
        self.started_at = time.time()
        self._sample_at = start + _FIRST_SAMPLE_S
        if self._plan["memory_limit_bytes"]:
            self._memory_at = start + _MEMORY_CHECK_S
        if self._plan["timeout_s"]:
            self._timeout_at = start + self._plan["timeout_s"]

    def abandon(self) -> None:
        """Kill what was started: the attempt cannot go on."""
        self._verdict = Verdict("launch_failed", "")
        self._kin.kill()

    def begin_again(self, failed: Failed) -> None:
        """The ranks to come are of the next generation. What they are followed by stays; of the dead a sum is kept."""
        self._dead = self._dead.joined_by(self._ranks.values())
        self._ranks = {}
        self._failed, self._doubt_until, self._linger_until = [], None, None
        self._oom_kills = kernel.oom_kills()
        self._hangs.begin_again(time.monotonic())
        self._boards.begin_again()
        self._status.begin_generation(failed.generation)

    def run(self) -> Union[dict[str, Any], Failed]:
        """Until every rank has ended; the outcome, or the failure after which they are to be started again."""
        self._sampler = self._sampler or Sampler(
            self._plan["gpu_indices"], folder=self._node_dir, node=int(self._plan["node_rank"])
        )
        self._sampler.open()
        self._restarts.attach(self._pipes.open())
        self._look_for_completion()
        while not self._is_over():
            self._pipes.heed(self._wait_s)
            self._tick()
        again = self._restarts.again if self._verdict is None else None
        self._kin.kill(sparing_savers=again is not None)
        self._restarts.detach()
        self._pipes.close(at_once=again is not None)
        self._close_logs(again)
        self._restarts.ranks_have_ended()
        self._sampler.close()
        return self._outcome() if again is None else again

    def give_up(self, failed: Failed, why: str) -> dict[str, Any]:
        """The ranks cannot be started again: the outcome of the failure that they were to come back from."""
        message = "%s; its ranks could not be started again: %s" % (failed.verdict.message, why)
        self._verdict = failed.verdict._replace(message=message)
        self._kin.kill()
        return self._outcome()

    # Events -----------------------------------------------------------------------------------------------------

    def _on_signals(self) -> None:
        numbers = os.read(self._wakeup_fd, 4096)
        if signal.SIGTERM in numbers:
            self._on_stop()  # first: ranks that were told as well end because of it
        elif signal.SIGCONT in numbers:
            self._look_for_wish()
        if signal.SIGCHLD in numbers:
            self._reap()

    def _look_for_wish(self) -> None:
        if self._wish_is_there():
            self._on_stop()

    def _wish_is_there(self) -> bool:
        return os.path.exists(os.path.join(self._node_dir, layout.STOP))

    def _on_stop(self) -> None:
        self._conclude()  # what failed before the wish has failed
        if self._verdict is None and self._hangs.is_suspicious(time.monotonic()):
            self._dump_stacks()  # another node may have found what hangs here too
        wish = read_json(os.path.join(self._node_dir, layout.STOP))
        if wish is None:
            # Whoever stops nodes (Slurm, a kubelet, the machine's shutdown) does it like this.
            self._stop(Verdict("preempted", FROM_OUTSIDE), self._plan["grace_s"])
        else:
            if not self._plan.get("signalled_together"):
                self._reap()  # who has ended before we pass it on has not ended because of it
            self._stop(Verdict(str(wish["kind"]), str(wish["reason"])), float(wish["grace_s"]))

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            rank = self._ranks.get(pid)
            if rank is not None:
                self._on_rank_end(rank, status, usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime)
        self._judge()

    def _on_rank_end(self, rank: Rank, status: int, max_rss_bytes: int, cpu_s: float) -> None:
        signal_number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        exit_code = None if signal_number is not None else os.WEXITSTATUS(status)
        rank.end = {
            "rank": rank.rank,
            "exit_code": exit_code,
            "signal": signal_number,
            "ended_at": time.time(),
            "max_rss_bytes": max_rss_bytes,
            "cpu_seconds": round(cpu_s, 3),
        }
        if self._verdict is not None or self._restarts.is_settling:
            return
        if exit_code == 0:
            self._look_for_completion()
            return
        if self._wish_is_there() or self._is_told_too():
            self._on_stop()  # the wish was there before its signal: an end that follows from it is no failure
            return
        self._pipes.read_all()  # its last words
        failure = describe_failure(
            rank=rank.rank,
            exit_code=exit_code,
            signal_number=signal_number,
            stderr_tail=rank.log.err.tail,
            kernel_oom=kernel.oom_kills() > self._oom_kills,
        )
        self._failed.append(Candidate(rank.rank, failure, rank.end["ended_at"], exit_code, signal_number))

    def _judge(self) -> None:
        """Conclude from the failures so far, unless there may come a better explanation: a rank that lost a peer is
        often gone before that peer, here or on another node."""
        if not self._failed or self._verdict is not None or self._restarts.is_settling:
            return
        if is_certain(self._failed) or not (self._living() or int(self._plan["nnodes"]) > 1):
            self._conclude()
        elif self._doubt_until is None:
            self._doubt_until = time.monotonic() + _DOUBT_S

    def _conclude(self) -> None:
        if not self._failed or self._verdict is not None or self._restarts.is_settling:
            return
        self._pipes.read_all()
        unfinished = [
            Candidate(rank.rank, failure, None, 1)
            for rank in self._ranks.values()
            if rank.end is None and (failure := describe_unfinished(rank=rank.rank, stderr_tail=rank.log.err.tail))
        ]
        found = decide_culprit([*self._failed, *unfinished])
        assert found is not None
        ended_well = [rank.rank for rank in self._ranks.values() if rank.end and rank.end["exit_code"] == 0]
        verdict = Verdict.on(found)
        verdict = verdict._replace(message=verdict.message + missed_peers(found, ended_well))
        self._give_in(advice.explain(verdict, self._plan), found.ended_at)

    def _give_in(self, verdict: Verdict, failed_at: float | None) -> None:
        """End the ranks because of a failure, at that time: for good, or to start them again."""
        self._doubt_until = None
        final = verdict if self._wish_is_there() else self._restarts.consider(verdict, failed_at)
        self._proceed(final)

    def _proceed(self, final: Verdict | None) -> None:
        again = self._restarts.again
        verdict = final or (again.verdict if again is not None else None)
        if self._verdict is None and verdict is not None and verdict.reason == "hang":
            self._dump_stacks()  # here as on the node where it was found: who waits for whom is seen from all of them
        if final is not None:
            self._stop(final, self._plan["grace_s"])
        elif again is not None and self._verdict is None:
            self._doubt_until = None  # another node may have explained what was doubtful here
            if self._living():
                # At once: with a peer gone they can finish nothing, and what they would save they have in memory.
                self._kin.kill(sparing_savers=True)

    def _look_for_completion(self) -> None:
        """Once all ranks that the attempt is for have ended well, the others are told to stop; with several nodes
        only whoever sees all of them can tell."""
        living = [rank for rank in self._ranks.values() if rank.end is None]
        if self._verdict is not None or not living or any(rank.essential for rank in living):
            return
        if int(self._plan["nnodes"]) == 1:
            self._stop(Verdict("completed", ""), self._plan["grace_s"])
        else:
            self._status.change(state="serving")

    def _is_told_too(self) -> bool:
        """Whether the signal that a rank ended for is on its way to us: a cluster signals processes one by one."""
        if not self._plan.get("signalled_together"):
            return False
        deadline = time.monotonic() + _TERM_PATIENCE_S
        while (left_s := deadline - time.monotonic()) > 0:
            if select.select([self._wakeup_fd], [], [], left_s)[0] and signal.SIGTERM in os.read(self._wakeup_fd, 4096):
                return True
        return False

    def _tick(self) -> None:
        for rank in self._ranks.values():
            rank.log.flush_partials(time.time())
        now = time.monotonic()
        if self._sample_at is not None and now >= self._sample_at:
            self._sample_at = now + self._plan["sample_interval_s"]
            self._sample()
            self._look_for_hang(now)
        if self._memory_at is not None and now >= self._memory_at:
            self._memory_at = now + _MEMORY_CHECK_S
            self._check_memory()
        if self._timeout_at is not None and now >= self._timeout_at:
            self._timeout_at = None
            message = "ran longer than its time limit of %g s" % self._plan["timeout_s"]
            self._stop(Verdict("timeout", message), self._plan["grace_s"])
        if self._doubt_until is not None and now >= self._doubt_until:
            self._conclude()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._killed = True
            self._kin.kill()
        self._kin.kill_overdue(now)
        if self._verdict is None:  # one that stops agrees to nothing any more
            self._proceed(self._restarts.settle(now))

    # Decisions --------------------------------------------------------------------------------------------------

    def _living(self) -> dict[int, int]:
        return {rank.rank: pid for pid, rank in self._ranks.items() if rank.end is None}

    def _is_over(self) -> bool:
        if self._living() or self._doubt_until is not None:
            return False
        if self._restarts.is_waiting and self._verdict is None:
            return False
        if self._restarts.again is not None and self._verdict is None:
            return True
        now = time.monotonic()
        if self._linger_until is None:
            self._linger_until = now + savers.PATIENCE_S
        # The shell has gone at the first signal, but what it had started may still be using its grace period.
        if self._kill_at is not None and any(rank.signals_group for rank in self._ranks.values()) and self._kin.all():
            return False
        return self._killed or now >= self._linger_until or not self._kin.has_savers()

    def _stop(self, verdict: Verdict, grace_s: float) -> None:
        now = time.monotonic()
        if self._verdict is None:
            self._verdict = verdict
            self._done = conclusion.done_ranks(self._plan, self._ranks.values())
            self._restarts.leave()  # before any rank ends of it, here or elsewhere: its failure is not to be mended
            self._doubt_until = None
            self._status.change(state="stopping")
            for pid in self._living().values():
                self._send(pid, signal.SIGTERM)
            self._kill_at = now + grace_s
        elif self._kill_at is not None:
            self._kill_at = min(self._kill_at, now + grace_s)

    def _send(self, pid: int, number: int) -> None:
        try:
            if self._ranks[pid].signals_group:
                os.killpg(pid, number)
            else:
                os.kill(pid, number)
        except ProcessLookupError:
            pass  # it has just ended

    def _check_memory(self) -> None:
        limit = self._plan["memory_limit_bytes"]
        pids = list(self._living().values())
        if self._sampler is None or self._verdict is not None or self._sampler.memory_bytes(pids) <= limit:
            return
        used = self._sampler.exact_memory_bytes(pids)  # ranks forked from one interpreter share pages
        if used > limit:
            self._sampler.peak_rss_bytes = max(self._sampler.peak_rss_bytes, used)
            message = "used %.0f MB of memory, over its limit of %.0f MB" % (used / 1e6, limit / 1e6)
            self._stop(Verdict("oom", message, signal_number=int(signal.SIGKILL)), 0.0)

    def _look_for_hang(self, now: float) -> None:
        if self._verdict is not None or self._restarts.is_settling:
            return
        ended = [rank.rank for rank in self._ranks.values() if rank.end is not None]
        found = self._hangs.look(now, ended=ended)
        if found is not None:
            message = found.message + "; stacks of all processes are in the logs of their ranks"
            self._give_in(Verdict("hang", message, rank=found.rank), time.time() - found.quiet_s)

    def _dump_stacks(self) -> None:
        stacks.dump([rank for rank in self._ranks.values() if rank.end is None], self._node_dir, self._pipes.read_all)

    def _sample(self) -> None:
        if self._sampler is None:
            return
        self._status.retry()
        self._look_for_wish()  # whoever wanted to tell us may have had no way to
        self._usage = self._sampler.sample(self._living())
        self._write_usage()
        self._boards.look(time.monotonic())

    def _write_usage(self) -> None:
        told = progress.tell(comeback.told_progress(self._node_dir))
        if told is not None:
            self._usage["progress"] = told
        self._usage.update(self._printed.look(self._ranks.values(), time.time()))
        try:
            write_json(os.path.join(self._node_dir, layout.USAGE), self._usage)
        except OSError:
            pass  # a full disk costs a sample, not the run

    # Waiting and ending -----------------------------------------------------------------------------------------

    def _wait_s(self) -> float:
        now = time.monotonic()
        marks = [self._sample_at, self._memory_at, self._timeout_at, self._kill_at, self._doubt_until]
        marks += [self._linger_until, self._kin.next_at(), self._restarts.next_at() if self._verdict is None else None]
        waits = [mark - now for mark in marks if mark is not None]
        flushes = [rank.log.next_flush_at() for rank in self._ranks.values()]
        waits.extend(at - time.time() for at in flushes if at is not None)
        return max(0.0, min(waits))

    def _close_logs(self, again: Failed | None) -> None:
        for rank in self._ranks.values():
            for stream in (rank.log.out, rank.log.err):
                rank.log.finish(stream, time.time())
            if again is not None:
                rank.log.note(again.note, time.time())
            rank.log.close()

    def _outcome(self) -> dict[str, Any]:
        assert self._sampler is not None
        # A machine that is to be taken away, or ranks that had to be killed, leave no time.
        self._boards.drain(hurry=self._killed or (self._verdict is not None and self._verdict.reason == "preempted"))
        said = self._printed.look(self._ranks.values(), time.time())  # and once more below: the last bar counts
        if self._usage or said or comeback.newest_step(self._node_dir) >= 0:
            self._usage = self._usage or self._sampler.sample({})
            self._write_usage()  # with the last step that was told
        return conclusion.conclude(
            self._verdict or Verdict("completed", ""),
            self._dead,
            self._ranks.values(),
            done=self._done,
            usage=self._sampler.peaks(),
            started_at=self.started_at,
            had_to_be_killed=self._killed,
        )
