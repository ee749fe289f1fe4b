"""The local engine on a machine that its cloud may take away: runs are warned, and nothing new is placed.

A thread asks the cloud for as long as the engine is open. Supervisors need not ask themselves, as they do elsewhere:
the server is on the machine that goes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from windlass.agent import spot
from windlass.core.errors import Unavailable
from windlass.core.resources import Node
from windlass.engines.contract import Launch, Notice, Observation, Phase, StopKind
from windlass.engines.local.engine import LocalEngine

log = logging.getLogger(__name__)


class CloudNotices:
    def __init__(self, cloud: str, environ: Mapping[str, str], notify: Callable[[], None]) -> None:
        """`environ` may say where and how often to ask."""
        self._environ = {**environ, spot.CLOUD: cloud}
        self._notify = notify
        self._closing = threading.Event()
        self._notice: Notice | None = None  # replaced whole, by the thread alone
        threading.Thread(target=self._watch, name="spot", daemon=True).start()

    def current(self) -> Notice | None:
        """What is certain; what the cloud only thinks likely is no reason to stop."""
        return self._notice

    def close(self) -> None:
        self._closing.set()  # a question that waits for its answer is not waited for

    def _watch(self) -> None:
        while not self._closing.is_set():
            try:
                self._take(_certain(spot.ask(self._environ)))
            except spot.UNANSWERED:
                pass  # a cloud that does not answer has not taken back what it said
            self._closing.wait(spot.every_s(self._environ))

    def _take(self, notice: Notice | None) -> None:
        # Where a cloud tells no deadline, ours is counted from its first word.
        if notice is not None and self._notice is not None and notice.message == self._notice.message:
            return
        if notice != self._notice:
            log.warning("%s", notice.message if notice else "the cloud leaves this machine here after all")
            self._notice = notice
            self._notify()


class SpotEngine:
    def __init__(self, engine: LocalEngine, notices: CloudNotices) -> None:
        self.name = engine.name
        self.type = engine.type
        self.launches_at_once = engine.launches_at_once
        self._engine = engine
        self._notices = notices

    def inventory(self) -> Sequence[Node]:
        """Unavailable rather than empty: runs that would fit wait, instead of being told that they never will."""
        notice = self._notices.current()
        if notice is not None:
            raise Unavailable(f"this machine is about to be taken away: {notice.message}")
        return self._engine.inventory()

    def launch(self, launch: Launch) -> None:
        self._engine.launch(launch)

    def poll(self, attempt_ids: Sequence[str]) -> Mapping[str, Observation]:
        found, notice = self._engine.poll(attempt_ids), self._notices.current()
        if notice is None:
            return found
        return {id: seen if seen.phase is Phase.ENDED else replace(seen, notice=notice) for id, seen in found.items()}

    def stop(self, attempt_id: str, *, grace_s: float, kind: StopKind = StopKind.CANCELLED) -> None:
        self._engine.stop(attempt_id, grace_s=grace_s, kind=kind)

    def release(self, attempt_id: str) -> None:
        self._engine.release(attempt_id)

    def close(self) -> None:
        self._notices.close()
        self._engine.close()


def _certain(found: spot.Warned | None) -> Notice | None:
    if found is None or not found.is_certain:
        return None
    return Notice(message=found.message, deadline=found.deadline)
