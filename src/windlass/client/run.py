"""`Run`: one run, as last seen, with what can be asked of it and done to it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack
from urllib.parse import quote

from windlass.client.answers import read
from windlass.client.metrics import Metric
from windlass.wire.checkpoints import CheckpointDetail, CheckpointList, CheckpointView, Verification
from windlass.wire.runs import (
    AttemptList,
    AttemptView,
    EventPage,
    EventView,
    LogLine,
    LogPage,
    Pin,
    PinList,
    Reproduction,
    RunSummary,
    RunView,
    Why,
)

if TYPE_CHECKING:
    from windlass.client.client import Client
    from windlass.client.submission import Secrets

_PATIENCE_S = 120.0
_READING_S = 3_600.0  # for a server that reads all of a checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Something that happened to a followed run: `value` is a LogLine for kind `log`, an EventView for `event`, a
    RunSummary for `run`, a mapping for `progress` and the final RunView for `end`."""

    kind: str
    value: Any


_UPDATES: Mapping[str, Callable[[Any], Any]] = {
    "log": partial(read, LogLine),
    "event": partial(read, EventView),
    "run": partial(read, RunSummary),
    "end": partial(read, RunView),
}


class LogWish(TypedDict, total=False):
    """Which lines of a log."""

    rank: int | None
    attempt: int | None
    stream: str | None  # stdout or stderr
    tail: int | None  # the last so many of those wanted
    grep: str | None  # a regular expression that they match
    ignore_case: bool
    since: float | None  # seconds since the epoch
    until: float | None


class Run:
    def __init__(self, client: Client, view: RunView) -> None:
        self.client = client
        self.view = view

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.name!r} {self.state}>"

    @property
    def id(self) -> str:
        return self.view.id

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def state(self) -> str:
        """As last seen; `refresh()` asks again."""
        return self.view.state

    @property
    def exit_code(self) -> int | None:
        """Set once the run is over."""
        return self.view.exit_code

    @property
    def is_over(self) -> bool:
        return self.view.exit_code is not None

    @property
    def world_size(self) -> int:
        """Of an elastic run, or one with a range of GPUs, the most that it may have."""
        from windlass.wire.spec import most_ranks

        return most_ranks(self.view.spec)

    def _path(self, tail: str = "") -> str:
        return f"/api/runs/{self.id}{tail}"

    def refresh(self) -> Run:
        self.view = read(RunView, self.client.transport.get(self._path()))
        return self

    def wait(self, timeout: float | None = None) -> Run:
        """Wait for the end. Raises TimeoutError after `timeout` seconds; the run goes on then."""
        deadline = None if timeout is None else time.monotonic() + timeout
        query = {"logs": "false"}
        try:
            stream = self.client.transport.follow(
                self._path("/stream"), query, patience_s=math.inf if deadline else _PATIENCE_S, deadline=deadline
            )
            for event in stream:
                if event.kind == "end":
                    self.view = read(RunView, event.data)
        except TimeoutError:
            raise TimeoutError(f"{self.id} is not over after {timeout:g} s; it is {self.refresh().state}") from None
        return self

    def follow(
        self,
        *,
        logs: bool = True,
        rank: int | None = None,
        tail: int | None = None,
        on_gap: Callable[[bool], None] = lambda _lost: None,
    ) -> Iterator[Update]:
        """Log lines, events, progress and state changes as they happen, up to and with the end. Goes on across lost
        connections (`on_gap` tells of them) and raises ServerUnreachable when there is none for two minutes."""
        query = {"logs": str(logs).lower(), "rank": rank, "tail": tail}
        yield from self._updates("/stream", query, on_gap)

    def follow_logs(
        self, *, on_gap: Callable[[bool], None] = lambda _lost: None, **wanted: Unpack[LogWish]
    ) -> Iterator[LogLine]:
        """Log lines as they are written, until the run is over."""
        for update in self._updates("/logs", {"follow": "true", **wanted}, on_gap):
            if update.kind == "log":
                yield update.value

    def _updates(self, tail: str, query: Mapping[str, Any], on_gap: Callable[[bool], None]) -> Iterator[Update]:
        stream = self.client.transport.follow(self._path(tail), query, patience_s=_PATIENCE_S, on_gap=on_gap)
        for event in stream:
            read = _UPDATES.get(event.kind)
            value = read(event.data) if read else event.data
            if event.kind == "end":
                self.view = value
            yield Update(kind=event.kind, value=value)

    def logs(self, **wanted: Unpack[LogWish]) -> list[LogLine]:
        return list(self.iter_logs(**wanted))

    def iter_logs(self, **wanted: Unpack[LogWish]) -> Iterator[LogLine]:
        """The lines there are now, page by page."""
        query: dict[str, Any] = dict(wanted)
        while True:
            page = read(LogPage, self.client.transport.get(self._path("/logs"), query))
            yield from page.lines
            if page.next_cursor in (None, query.get("after")) or not (page.lines or page.more):
                return
            query = {**wanted, "after": page.next_cursor}

    def metrics(
        self, name: str | None = None, *, system: bool = False, limit: int | None = None, most: int | None = None
    ) -> dict[str, Metric]:
        """What it has logged; with `system` also how its machines were used, as `system/cpu_percent` and the like.
        `limit`: so many metrics at most, losses first; `most`: about so many points of each. What is known of each
        without its points is in `view.metrics`."""
        return self.client.metrics(self.id, name, system=system, limit=limit, most=most)

    def events(self) -> list[EventView]:
        events: list[EventView] = []
        after = 0
        while True:
            page = read(EventPage, self.client.transport.get(self._path("/events"), {"after": after}))
            events += page.events
            if not page.events or page.next_after == after:
                return events
            after = page.next_after

    def attempts(self) -> list[AttemptView]:
        return read(AttemptList, self.client.transport.get(self._path("/attempts"))).attempts

    def why(self) -> Why:
        """Why the run is in the state it is in: what it waits for, or what ended it."""
        return read(Why, self.client.transport.get(self._path("/why")))

    def checkpoints(self, *, everything: bool = False) -> CheckpointList:
        """Newest first; with `everything` also those that are corrupt or deleted."""
        return read(
            CheckpointList, self.client.transport.get(self._path("/checkpoints"), {"all": str(everything).lower()})
        )

    def checkpoint(self, which: str = "newest") -> CheckpointDetail:
        """By step, id, `newest` or `best`. Raises NotFound."""
        return read(CheckpointDetail, self.client.transport.get(self._path(f"/checkpoints/{_word(which)}")))

    def verify_checkpoint(self, which: str = "newest") -> Verification:
        """Have the server read all of its files and compare them with the manifest; that may take minutes."""
        path = self._path(f"/checkpoints/{_word(which)}/verify")
        return read(Verification, self.client.transport.post(path, {}, repeat=True, patience_s=_READING_S))

    def remove_checkpoint(self, which: str, *, forget: bool = False, tier: str | None = None) -> CheckpointView:
        """Delete its files, or with `forget` only take it off the list: everywhere, only in the `tier` (folder or
        store), or only at the place that an id names. Raises Conflict for what a run that is not over would go on
        from."""
        path, body = self._path(f"/checkpoints/{_word(which)}/remove"), {"forget": forget, "tier": tier}
        return read(CheckpointView, self.client.transport.post(path, body, repeat=True, patience_s=_READING_S))

    def diff(self) -> str:
        """The uncommitted changes that the run was submitted with."""
        return self.client.transport.get_text(self._path("/diff"))

    def cancel(self, grace_s: float | None = None) -> Run:
        """Ask the run to end; `wait()` waits until it has. Raises Conflict for a run that is over."""
        body = {} if grace_s is None else {"grace_s": grace_s}
        return self._seen(self.client.transport.post(self._path("/cancel"), body, repeat=True))

    def resume(self) -> Run:
        """Start a run that ended before its goal once more, as a new attempt of the same run."""
        return self._seen(self.client.transport.post(self._path("/resume"), {}))

    def clone(
        self, *, set: Mapping[str, Any] | None = None, name: str | None = None, secrets: Secrets | None = None
    ) -> Run:
        """Submit the same code and spec again as a new run, with changes: `lr`, `params.lr` or `resources.gpus`."""
        from windlass.client.provenance import asker
        from windlass.client.submission import given_secrets

        body: dict[str, Any] = {"set": dict(set or {}), "secrets": given_secrets(secrets), "asker": asker()}
        if name is not None:
            body["name"] = name
        return Run(self.client, read(RunView, self.client.transport.post(self._path("/clone"), body)))

    def reproduce(self, *, name: str | None = None, secrets: Secrets | None = None) -> tuple[Run, list[Pin]]:
        """Submit exactly this run again. The pins say what of it is the same for certain."""
        from windlass.client.provenance import asker
        from windlass.client.submission import given_secrets

        body: dict[str, Any] = {"secrets": given_secrets(secrets), "asker": asker(), **({"name": name} if name else {})}
        found = read(Reproduction, self.client.transport.post(self._path("/reproduce"), body))
        return Run(self.client, found.run), found.pins

    def pins(self) -> list[Pin]:
        """What `reproduce` would say, without a new run."""
        return read(PinList, self.client.transport.get(self._path("/pins"))).pins

    def _seen(self, data: Any) -> Run:
        self.view = read(RunView, data)
        return self


def _word(which: str) -> str:
    return quote(str(which), safe="")
