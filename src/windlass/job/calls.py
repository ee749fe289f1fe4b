"""What the ranks of a run do together, counted: steps and evaluations, which all must begin in the same order.

A rank that turns from one to the other tells it, and waits until all have: one that takes part in what others do not
would be lost in an exchange. Who hears of a turn that is not its own tells what it did instead. Nothing here sends.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

_TURNS = 64  # of its own that a rank remembers: others are a call or two away
_ALL = "all ranks need the same number of batches, to train with and to evaluate with"


class Call(StrEnum):
    STEP = "step"
    EVALUATION = "evaluation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    call: int  # from this one on, counted from 1
    kind: Call
    before: dict[Call, int]


class Calls:
    """Of one rank. Its own thread begins them, another one hears of those of others."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._lock = threading.Lock()
        self._done = dict.fromkeys(Call, 0)
        self._turns = deque([Turn(call=1, kind=Call.STEP, before=dict(self._done))], maxlen=_TURNS)
        self._told: dict[int, tuple[int, Call]] = {}  # by others, of calls that this rank has not begun
        self._ended: dict[int, dict[Call, int]] = {}
        self._difference: str | None = None
        self._known = threading.Event()  # whether all have turned as this rank has, or why they will not
        self._is_alone = False

    @property
    def begun(self) -> int:
        return sum(self._done.values())

    @property
    def counts(self) -> str:
        """As `end` takes them."""
        return " ".join(str(self._done[kind]) for kind in Call)

    def begin(self, kind: Call) -> Turn | None:
        """If it is a turn, which is to be told, and then waited for; or if it is not what another rank has told."""
        with self._lock:
            number = self.begun + 1
            turns = kind is not self._turns[-1].kind
            if turns:
                self._turns.append(Turn(call=number, kind=kind, before=dict(self._done)))
                if not self._is_alone:
                    self._known.clear()
            self._done[kind] += 1
            rank, theirs = self._told.pop(number, (self._rank, kind))
            if theirs is not kind:
                self._note_difference(number, rank, theirs)
            return Turn(call=number, kind=kind, before=self._turns[-1].before) if turns or theirs is not kind else None

    def wait(self, patience_s: float) -> None:
        """Until all have turned, or will not."""
        if self.missed() is None:
            self._known.wait(patience_s)

    def hear(self, rank: int, number: int, theirs: Call) -> Turn | None:
        """Another rank's call is of this kind. This rank's own turn if it is of another, to be told in return."""
        with self._lock:
            if number > self.begun:
                self._told[number] = rank, theirs
                return None
            turn = self._turn_at(number)
            if turn is None or turn.kind is theirs:
                return None
            self._note_difference(number, rank, theirs)
            return Turn(call=number, kind=turn.kind, before=turn.before)

    def agree(self, number: int) -> None:
        """All have turned in this call."""
        if number == self._turns[-1].call:
            self._known.set()

    def end(self, rank: int, counts: list[int]) -> None:
        """Another rank has ended well, after so many of each kind."""
        with self._lock:
            self._ended[rank] = dict(zip(Call, counts, strict=True))
        if self.missed() is not None:
            self._known.set()

    def give_up(self) -> None:
        """Nobody will be heard any more."""
        with self._lock:
            self._is_alone = True
            self._known.set()

    def missed(self) -> str | None:
        """What the call under way cannot do without."""
        with self._lock:
            if self._difference is not None:
                return self._difference
            ended = [(rank, counts) for rank, counts in self._ended.items() if sum(counts.values()) < self.begun]
            if not ended:
                return None
            rank, counts = min(ended, key=lambda one: one[0])
            mine, more = self._turns[-1].kind, counts[Call.EVALUATION]
            return (
                f"rank {rank} ended after {counts[Call.STEP]} steps{f' and {more} evaluations' if more else ''} while "
                f"rank {self._rank} was in {mine} {self._done[mine]}; all ranks need the same number of batches"
            )

    def _turn_at(self, number: int) -> Turn | None:
        return next((turn for turn in reversed(self._turns) if turn.call <= number), None)

    def _note_difference(self, number: int, rank: int, theirs: Call) -> None:
        turn = self._turn_at(number)
        if turn is None or self._difference is not None:
            return
        # Up to here both have done the same.
        done = {**turn.before, turn.kind: turn.before[turn.kind] + number - turn.call}
        self._difference = (
            f"rank {rank} was in {theirs} {done[theirs] + 1} while rank {self._rank} was in {turn.kind} "
            f"{done[turn.kind] + 1}; {_ALL}"
        )
        self._known.set()
