"""Whether the ranks of an attempt start again in place after a failure, and the record of how they came back. Pure.

Which failures are for that says `windlass.agent.remedy`. At most `most` times in a row without a new step, and once
where nobody tells steps; the program's own failures only after new steps, and not the same one twice. What is not done
in place ends the attempt, and the controller decides on the next one.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, NamedTuple

from . import remedy
from .progress import Progress
from .verdict import Verdict

MOST_KEPT = 50  # entries of the record on disk: the server is seldom away for more of them


class Policy(NamedTuple):
    most: int
    errors_too: bool

    @staticmethod
    def of(plan: Mapping[str, Any]) -> Policy | None:
        told = plan.get("recovery")
        return Policy(int(told["most"]), bool(told["errors_too"])) if told else None


class Past(NamedTuple):
    """What has become of the attempt so far."""

    step: int = -1  # the newest that any rank has told, of all generations
    in_a_row: int = 0  # restarts since the last new step
    known: frozenset[str] = frozenset()  # kinds and fingerprints of the failures before

    def after(self, step: int) -> Past:
        """With what the ranks of one more generation have told."""
        return self._replace(step=step, in_a_row=0) if step > self.step else self

    def restarted(self, verdict: Verdict) -> Past:
        marks = filter(None, (kind_of(verdict), verdict.fingerprint))
        return self._replace(in_a_row=self.in_a_row + 1, known=self.known.union(marks))


def decide_in_place(verdict: Verdict, policy: Policy | None, past: Past) -> str | None:
    """None: the ranks start again. Otherwise why not. `past` is as of the failure."""
    if policy is None or policy.most == 0:
        return "retries are off"
    kind = kind_of(verdict)
    found = remedy.decide_remedy(verdict.reason, verdict.signal_number, verdict.trouble)
    if not found.in_place:
        return "nothing is gained in place after: %s" % found.means
    if found.again == remedy.ONCE and kind in past.known:
        return "%s again" % kind.replace("_", " ")
    if found.again == remedy.IF_ASKED:
        if not policy.errors_too:
            return "the program failed by itself"
        if past.step < 0 or past.in_a_row:
            return "the program failed by itself, and made no new step before"
        if verdict.fingerprint is not None and verdict.fingerprint in past.known:
            return "the same failure twice"
    if past.in_a_row >= (policy.most if past.step >= 0 else 1):
        return "%d restarts in place brought no new step" % past.in_a_row
    return None


def kind_of(verdict: Verdict) -> str:
    return remedy.kind_of(verdict.reason, verdict.signal_number, verdict.trouble)


class Failed(NamedTuple):
    """A failure that the ranks come back from. Times are CLOCK_MONOTONIC; `wall_at` is for people."""

    verdict: Verdict
    generation: int  # of the ranks that come next
    node: str
    step: int  # the newest that any rank had told before; -1: none did
    wall_at: float
    failed_at: float
    noticed_at: float
    decided_at: float

    @property
    def note(self) -> str:
        """For the logs of all ranks, between the two lives."""
        cause = " ".join(self.verdict.message.split())[:500]
        return "%s; all ranks start again, generation %d" % (cause, self.generation)


def render_recovery(failed: Failed, started_at: float, ranks: Iterable[Progress], now: float) -> dict[str, Any]:
    """The record of one recovery, as far as it is known. `started_at`: when the new ranks had been started; `ranks`:
    what they have told."""
    told = list(ranks)
    restored = [one for one in told if one.restored_at > 0]
    ready_at, load_s = started_at, None
    if restored:
        ready_at = max(one.restored_at for one in restored)
        load_s = max(one.load_s for one in restored)
    beyond = first_beyond(failed.step, told, now)
    went_on_from = min((one.restored_step for one in restored), default=0)
    return {
        "level": 1,
        "generation": failed.generation,
        "at": failed.wall_at,
        "rank": failed.verdict.rank,
        "node": failed.node,
        "reason": failed.verdict.reason,
        "message": failed.verdict.message[:500],
        "step": failed.step if failed.step >= 0 else None,
        "restored_step": went_on_from if restored else None,
        "steps_lost": max(0, failed.step - went_on_from) if failed.step >= 0 and told else None,
        "detect_s": _span(failed.failed_at, failed.noticed_at),
        "decide_s": _span(failed.noticed_at, failed.decided_at),
        "respawn_s": _span(failed.decided_at, ready_at - (load_s or 0.0)),
        "load_s": None if load_s is None else round(load_s, 3),
        "replay_s": None if beyond is None else _span(ready_at, beyond),
    }


def first_beyond(step: int, ranks: Iterable[Progress], now: float) -> float | None:
    """When the first new step after `step` was finished; None: not yet. Exact if somebody looked in time."""
    beyond = [one for one in ranks if one.step > step]
    if step < 0 or not beyond:
        return None
    return min(one.stepped_at if one.step == step + 1 else min(now, one.stepped_at) for one in beyond)


def _span(begin: float, end: float) -> float:
    return round(max(0.0, end - begin), 3)
