"""Starting ranks again within an attempt, as far as it is not about processes: who decides, what the other nodes are
told, what is put on record. On one node its supervisor decides; in a gang the first node's does, for all.
"""

from __future__ import annotations

import selectors
import time
from typing import Any, Callable, Mapping, Union

from . import comeback
from .gang import Hub, Member, Message
from .recovery import Failed, Past, Policy, decide_in_place
from .status import Status
from .verdict import Verdict

_ANSWER_PATIENCE_S = 10.0  # for the first node's decision
_BEGIN_PATIENCE_S = 30.0  # for all nodes to say that their ranks have started again


class Restarts:
    """`again` is set once the ranks are to be ended and started again; until `begin`."""

    def __init__(
        self, plan: Mapping[str, Any], status: Status, line: Union[Hub, Member, None], choose_port: Callable[[], int]
    ) -> None:
        self._plan = plan
        self._node_dir = str(plan["node_dir"])
        self._status = status
        self._line = line
        self._choose_port = choose_port
        self._past = Past()
        self._asked: tuple[Verdict, float] | None = None  # our failure, and until when we wait for the answer
        self._begun: set[int] = set()  # nodes that have said so of the newest generation
        self._awaited: tuple[Failed, float] | None = None  # until when all nodes are to have begun
        self._comeback: comeback.Comeback | None = None
        self._missing: list[int] | None = None  # nodes without a line, as the status says it
        self.again: Failed | None = None
        self.port = 0  # for the ranks of the next generation

    @property
    def is_settling(self) -> bool:
        """Whether what becomes of a failure is being decided, or is that the ranks start again."""
        return self._asked is not None or self.again is not None

    @property
    def is_waiting(self) -> bool:
        return self._asked is not None

    def attach(self, selector: selectors.BaseSelector) -> None:
        """From now on it hears the other nodes, whenever `settle` is called."""
        if self._line is not None:
            self._line.attach(selector)

    def detach(self) -> None:
        if self._line is not None:
            self._line.detach()

    def leave(self) -> None:
        """The node stops: it agrees to nothing any more, and no other is to count on it."""
        self._asked = self._awaited = None
        if self._line is not None:
            self._line.close()

    def consider(self, verdict: Verdict, failed_at: float | None) -> Verdict | None:
        """After a failure here, by the wall clock: the verdict with which the node is to stop; None if it need not, for
        now or for good."""
        wall_at = time.time()
        age_s = max(0.0, wall_at - (failed_at or wall_at))
        if isinstance(self._line, Member):
            asked = {"failed": list(verdict), "generation": self._generation, "age_s": age_s}
            if Policy.of(self._plan) is not None and self._line.tell(asked):
                self._asked = (verdict, time.monotonic() + _ANSWER_PATIENCE_S)
                return None
            return verdict
        return verdict if self._decide(verdict, str(self._plan["node_name"]), age_s) is not None else None

    def settle(self, now: float) -> Verdict | None:
        """What others have said meanwhile. The verdict with which the node is to stop, if it is."""
        if self._line is not None:
            self._line.tick(now)
            for node, message in self._line.take():
                self._heed(node, message)
        if isinstance(self._line, Hub) and self._line.missing() != self._missing:
            self._missing = self._line.missing()
            self._status.change(off_line=self._missing)
        if self._comeback is not None and now >= self._comeback.look_at:
            self._record(self._comeback.look(now))
        if self._awaited is not None and self._all_have_begun():
            self._awaited = None
        if self._awaited is not None and now >= self._awaited[1]:
            return self._broken_off(self._awaited[0])
        is_cut_off = isinstance(self._line, Member) and not self._line.is_up  # no answer comes any more
        if self._asked is None or (now < self._asked[1] and not is_cut_off):
            return None
        verdict, self._asked = self._asked[0], None
        return verdict

    def next_at(self) -> float | None:
        marks = [self._asked[1] if self._asked else None, self._comeback.look_at if self._comeback else None]
        marks.append(self._awaited[1] if self._awaited else None)
        if self._line is not None:
            marks.append(self._line.next_at())
        return min((mark for mark in marks if mark is not None), default=None)

    def ranks_have_ended(self) -> None:
        """All of them. What they had come back from is over, and what they told is not to be taken for others'."""
        if self._comeback is not None:
            self._record(self._comeback.break_off(time.monotonic()))
        if self.again is not None:
            comeback.forget_progress(self._node_dir)

    def begin(self) -> None:
        """The ranks of the next generation are about to be started."""
        self.again = None

    def begun(self, failed: Failed) -> None:
        """They have been. The first node of a gang keeps the record for all, and waits for the others' word: what it
        said may not have reached them, and its ranks would wait for theirs."""
        if self._line is not None:
            self._awaited = (failed, time.monotonic() + _BEGIN_PATIENCE_S)
        if int(self._plan["node_rank"]) == 0:
            self._comeback = comeback.Comeback(self._node_dir, failed, time.monotonic())

    # ----------------------------------------------------------------------------------------------------------------

    @property
    def _generation(self) -> int:
        return int(self._plan.get("generation", 0))

    def _heed(self, node: int, message: Message) -> None:
        if isinstance(self._line, Hub) and "failed" in message:
            if message.get("generation") != self._generation or self.again is not None:
                return  # of ranks that are dead already
            verdict = Verdict(*message["failed"])
            refusal = self._decide(verdict, str(self._plan["node_names"][node]), float(message.get("age_s", 0.0)))
            if refusal is not None:
                self._line.tell_all({"refused": self._generation, "why": refusal})
        elif isinstance(self._line, Hub) and "begun" in message:
            if message["begun"] == (self.again.generation if self.again is not None else self._generation):
                self._begun.add(node)
        elif "again" in message and int(message["again"]) > self._generation:
            self._asked = self._awaited = None
            self.port = int(message["port"])
            self.again = self._failed(Verdict(*message["failed"]), str(message["node"]), 0.0, int(message["again"]))
        elif message.get("refused") == self._generation and self._asked is not None:
            self._asked = (self._asked[0], 0.0)  # no need to wait any longer

    def _all_have_begun(self) -> bool:
        """As far as this node is to know: the first one hears it of all others, another one tells the first."""
        if isinstance(self._line, Member):
            return self._line.tell({"begun": self._generation})
        return len(self._begun) == int(self._plan["nnodes"]) - 1

    def _broken_off(self, failed: Failed) -> Verdict:
        """Not all nodes have come along: the end is that of the failure that the ranks were to come back from."""
        absent = sorted(set(range(1, int(self._plan["nnodes"]))) - self._begun) if isinstance(self._line, Hub) else [0]
        why = "no word from node %s after the restart in place" % ", ".join(map(str, absent))
        return failed.verdict._replace(message="%s; %s" % (failed.verdict.message, why))

    def _decide(self, verdict: Verdict, node: str, age_s: float) -> str | None:
        """For all nodes; None: all ranks start again, otherwise why not."""
        self._past = self._past.after(comeback.newest_step(self._node_dir))
        refusal = decide_in_place(verdict, Policy.of(self._plan), self._past)
        if refusal is None and int(self._plan["nnodes"]) > 1:
            missing = self._line.missing() if isinstance(self._line, Hub) else [0]
            refusal = "no line to node %s" % ", ".join(map(str, missing)) if missing else None
        if refusal is not None:
            return refusal
        failed = self._failed(verdict, node, age_s, self._generation + 1)
        self._past = self._past.restarted(verdict)
        self.port = self._choose_port()
        self._awaited = None
        self._begun.clear()
        if isinstance(self._line, Hub):
            told = {"again": failed.generation, "port": self.port, "failed": list(verdict), "node": node}
            self._line.tell_all(told)
        self.again = failed
        return None

    def _failed(self, verdict: Verdict, node: str, age_s: float, generation: int) -> Failed:
        now = time.monotonic()
        return Failed(
            verdict=verdict,
            generation=generation,
            node=node,
            step=max(comeback.newest_step(self._node_dir), self._past.step),  # also of those who died before
            wall_at=time.time() - age_s,
            failed_at=now - age_s,
            noticed_at=now,
            decided_at=time.monotonic(),
        )

    def _record(self, entry: Mapping[str, Any] | None) -> None:
        if entry is not None:
            self._status.add_recovery(entry)
            self._comeback = None
