"""Whether a failed attempt is tried again, and when, and whether its node is to blame. Pure: the history comes in, a
decision goes out. What is done about which failure is the table of `windlass.agent.remedy`: supervisors go by it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from windlass.agent import remedy
from windlass.agent.remedy import Remedy
from windlass.core.exits import Exit, ExitReason

DEFAULT_MAX = 3
DEFAULT_BACKOFF_S = 2.0
LONGEST_BACKOFF_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    max: int = DEFAULT_MAX
    backoff_s: float = DEFAULT_BACKOFF_S
    errors_too: bool = False  # also failures of the program itself, not only of its surroundings


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    after_s: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """An attempt that is over."""

    exit: Exit
    has_run: bool = True
    step: int | None = None  # the newest that its ranks have told, or that it must have reached; None: they told none


def decide_retry(history: Sequence[Ended], policy: RetryPolicy, *, jitter: float) -> Retry | GiveUp:
    """`history`: the attempts since submission or resumption, the newest last. `jitter` is from [0, 1)."""
    exits = [ended.exit for ended in history]
    last = exits[-1]
    if _remedy(last).again == remedy.ALWAYS:
        in_a_row = sum(1 for _ in takewhile(lambda exit: exit.reason is ExitReason.PREEMPTED, reversed(exits)))
        after_s = _backoff_s(policy, in_a_row - 1, jitter)
        return Retry(after_s=after_s, why="it was preempted and goes on when there is room")
    if refusal := _refusal(_counted(exits), policy):
        return GiveUp(why=refusal)
    exits = _counted(_since_progress(history))
    retries = len(exits) - 1
    if retries >= policy.max:
        if policy.max == 0:
            return GiveUp(why="retries are off")
        advice = _remedy(last).advice
        why = f"failed {len(exits)} times; the limit is {policy.max} retries"
        return GiveUp(why=f"{why}; {advice}" if advice else why)
    after_s = _backoff_s(policy, retries, jitter)
    return Retry(after_s=after_s, why=f"{_words(last)} may pass; retry {retries + 1} of {policy.max}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """A node that is to be set aside."""

    node: str
    first_s: float  # for how long, the first time


def decide_blame(exits: Sequence[Exit]) -> Blame | None:
    """Whether a node is to be set aside because of the last of `exits`: where something of the machine's own broke, or
    where attempts were lost or hung twice in a row."""
    last = exits[-1]
    found = _remedy(last)
    before = _counted(exits[:-1])[-1:]
    again = any(exit.node == last.node and _remedy(exit).elsewhere_next for exit in before)
    if last.node is None or not (found.elsewhere or (found.elsewhere_next and again)):
        return None
    return Blame(node=last.node, first_s=found.aside_s)


def kind_of(exit: Exit) -> str:
    """The row of the table of remedies."""
    return remedy.kind_of(exit.reason.value, exit.signal, exit.trouble)


def _remedy(exit: Exit) -> Remedy:
    return remedy.decide_remedy(exit.reason.value, exit.signal, exit.trouble)


def _counted(exits: Sequence[Exit]) -> list[Exit]:
    return [exit for exit in exits if _remedy(exit).again != remedy.ALWAYS]


def _since_progress(history: Sequence[Ended]) -> list[Exit]:
    """Of the last attempt that came further than all before it, and of those after it: what was overcome is no reason
    to give up."""
    newest, first = -1, 0
    for number, ended in enumerate(history):
        if ended.step is not None and ended.step > newest:
            newest, first = ended.step, number
    return [ended.exit for ended in history[first:]]


def _backoff_s(policy: RetryPolicy, before: int, jitter: float) -> float:
    """Full jitter over the upper half: spreads a crowd, never returns at once."""
    return min(policy.backoff_s * 2.0 ** min(before, 64), LONGEST_BACKOFF_S) * (0.5 + 0.5 * jitter)


def _refusal(exits: Sequence[Exit], policy: RetryPolicy) -> str | None:
    last = exits[-1]
    found = _remedy(last)
    if found.again == remedy.NEVER:
        return f"{_words(last)} is final" + (f": {found.advice}" if found.advice else "")
    if found.again == remedy.ONCE and sum(kind_of(exit) == kind_of(last) for exit in exits) > 1:
        return f"{_words(last)} again; {found.advice}"
    if found.again == remedy.IF_ASKED:
        if not policy.errors_too:
            return "the program failed by itself; add `retry: {max: N}` to the spec to try again all the same"
        if _same_failure_before(exits):
            return "the same failure twice: trying again would not help"
    return None


def _words(exit: Exit) -> str:
    return {"oom": "out of memory", "own": str(exit.reason)}.get(kind_of(exit), kind_of(exit).replace("_", " "))


def _same_failure_before(exits: Sequence[Exit]) -> bool:
    last = exits[-1]
    return last.fingerprint is not None and any(e.fingerprint == last.fingerprint for e in exits[:-1])
