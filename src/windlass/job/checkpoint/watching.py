"""The watcher: a process beside a run's first rank that takes what the rank saves by itself into the catalogue.

`checkpoint: {watch: "out/*.pt"}` in the spec. A file, or a folder with all in it, counts as finished when nothing of it
has changed for a while, or when the rank is over; one that is renamed into its place is taken like any other. Files of
one step are one checkpoint.
"""

from __future__ import annotations

import glob
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from windlass.agent.kernel import give_way
from windlass.agent.layout import metrics_spool
from windlass.job.checkpoint.adopting import Adopter, Unsteady, signature_of
from windlass.job.checkpoint.logged import Logged
from windlass.job.checkpoint.naming import is_epoch, numbers_in, step_in
from windlass.job.session import session

_LOOK_EVERY_S = 1.0
_SETTLED_AFTER_S = 3.0
_TOGETHER_WITHIN_S = 60.0  # what another pattern has of the same step is waited for so long
_TICK_S = 0.02  # files are dated by the kernel's last tick, which may be before what was logged just before them
_AGAIN_AFTER_S = 30.0  # after an error: a full disk, say
_UNFINISHED = (".tmp", ".partial", ".part", ".temp", ".lock")

Signature = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    signature: Signature
    since: float  # that it looks like this
    pattern: int = 0  # the number of the one that names it

    @property
    def written_ns(self) -> int:
        return max((time_ns for *_, time_ns in self.signature), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What makes one checkpoint: all that is of one step, or all whose names tell none and have the same numbers."""

    step: int | None
    sights: Mapping[Path, Sight]

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(sorted(self.sights))

    @property
    def signatures(self) -> dict[Path, Signature]:
        return {path: sight.signature for path, sight in self.sights.items()}

    @property
    def since(self) -> float:
        return max(sight.since for sight in self.sights.values())

    @property
    def written_ns(self) -> int:
        return max(sight.written_ns for sight in self.sights.values())


class Watcher:
    def __init__(self, patterns: Sequence[str], adopter: Adopter, logged: Logged | None = None) -> None:
        self._patterns = patterns
        self._adopter = adopter
        self._logged = logged
        self._seen: dict[Path, Sight] = {}
        self._taken: dict[Path, Signature] = {}
        self._again_at: dict[int | None, float] = {}  # by the step, after an error

    def look(self, now: float, *, is_over: bool = False) -> None:
        """Take what is finished, oldest first. `is_over`: nobody writes any more."""
        self._seen = decide_sights(self._seen, self._there(), now)
        if self._logged is not None:
            self._logged.read()
        groups = decide_groups(self._seen)
        for group in decide_finished(groups, self._taken, len(self._patterns), now=now, is_over=is_over):
            if is_over or now >= self._again_at.get(group.step, now):
                self._take(group, now)
        self._adopter.look()

    def _there(self) -> dict[Path, tuple[int, Signature]]:
        """By the first pattern that names it."""
        there: dict[Path, tuple[int, Signature]] = {}
        for number, pattern in enumerate(self._patterns):
            for path in matching(pattern):
                if path not in there:
                    there[path] = (number, signature_of(path))
        return there

    def _take(self, group: Group, now: float) -> None:
        try:
            if self._adopter.take(*group.paths, metrics=self._metrics(group)) is None:
                self._tell_of_late(group)
        except Unsteady:
            return  # it is looked at again
        except OSError as error:
            self._again_at[group.step] = now + _AGAIN_AFTER_S
            names = ", ".join(map(str, group.paths))
            session().alert("checkpoint-failed", f"not taken for now, for {error}: {names}", group.step)
            return
        self._taken.update(group.signatures)

    def _tell_of_late(self, group: Group) -> None:
        if group.step is not None and (late := self._adopter.left_out(*group.paths, step=group.step)):
            came = f"{', '.join(late)} came when the checkpoint of step {group.step} had been taken"
            what = f"{came}, and {'is' if len(late) == 1 else 'are'} not in it"
            session().alert("checkpoint-failed", what, group.step)

    def _metrics(self, group: Group) -> dict[str, float]:
        if self._logged is None:
            return {}
        is_step = not any(is_epoch(path.name) for path in group.paths)
        return self._logged.up_to(group.step if is_step else None, group.written_ns / 1e9 + _TICK_S)


def matching(pattern: str) -> list[Path]:
    """Hidden files and those that are called unfinished are none."""
    found = (Path(name) for name in glob.glob(pattern, recursive=True))
    return [path for path in found if not path.name.startswith(".") and not path.name.endswith(_UNFINISHED)]


def decide_sights(
    before: Mapping[Path, Sight], there: Mapping[Path, tuple[int, Signature]], now: float
) -> dict[Path, Sight]:
    sights = {}
    for path, (pattern, signature) in there.items():
        known = before.get(path)
        same = known is not None and known.signature == signature
        sights[path] = known if same and known is not None else Sight(signature=signature, since=now, pattern=pattern)
    return sights


def decide_groups(seen: Mapping[Path, Sight]) -> list[Group]:
    """What there is, the oldest first."""
    by_name: dict[tuple[int | None, tuple[str, ...]], dict[Path, Sight]] = {}
    for path, sight in seen.items():
        if sight.signature:
            step = step_in(path.name)
            by_name.setdefault((step, numbers_in(path.name) if step is None else ()), {})[path] = sight
    groups = [Group(step=step, sights=sights) for (step, _), sights in by_name.items()]
    return sorted(groups, key=lambda group: (group.written_ns, group.paths))


def decide_finished(
    groups: Sequence[Group], taken: Mapping[Path, Signature], patterns: int, *, now: float, is_over: bool
) -> list[Group]:
    """Those to be taken now: new ones that nobody writes, and that have something of every pattern. What a pattern has
    of a step may come a little later; no more, when there is something of a later one."""
    finished = []
    for number, group in enumerate(groups):
        if all(taken.get(path) == signature for path, signature in group.signatures.items()):
            continue
        settled_s = now - group.since
        is_whole = len({sight.pattern for sight in group.sights.values()}) == patterns
        is_passed = settled_s >= _TOGETHER_WITHIN_S or any(later.step is not None for later in groups[number + 1 :])
        if is_over or (settled_s >= _SETTLED_AFTER_S and (is_whole or is_passed)):
            finished.append(group)
    return finished


def main(pid: int, cwd: str) -> None:
    """Until process `pid` has ended; then what it left last."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the rank is told by these, and may save because of it
    give_way(10)
    os.chdir(cwd)
    try:
        rank = os.pidfd_open(pid)
    except ProcessLookupError:
        rank = None
    wanted = session().wanted_checkpoints
    patterns = [wanted["watch"]] if isinstance(wanted["watch"], str) else list(wanted["watch"])
    adopter = Adopter(session().checkpoint_dir, wanted)
    watcher = Watcher(patterns, adopter, Logged(Path(os.environ["WINDLASS_NODE_DIR"], metrics_spool(session().rank))))
    while rank is not None and not select.select([rank], [], [], _LOOK_EVERY_S)[0]:
        watcher.look(time.monotonic())
    watcher.look(time.monotonic(), is_over=True)
    adopter.close()
    session().flush()
