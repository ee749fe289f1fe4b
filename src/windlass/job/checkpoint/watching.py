"""The watcher: a process beside a run's first rank that takes what the rank saves by itself into the catalogue.

`checkpoint: {watch: "out/*.pt"}` in the spec. A file, or a folder with all in it, counts as finished when nothing of it
has changed for a while, or when the rank is over; one that is renamed into its place is taken like any other.
"""

from __future__ import annotations

import glob
import os
import select
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from windlass.agent.kernel import give_way
from windlass.job.checkpoint.adopting import Adopter, Unsteady, signature_of
from windlass.job.session import session

FOLDER = "WINDLASS_CHECKPOINT_DIR"
_LOOK_EVERY_S = 1.0
_SETTLED_AFTER_S = 3.0
_UNFINISHED = (".tmp", ".partial", ".part", ".temp", ".lock")

Signature = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    signature: Signature
    since: float  # that it looks like this


class Watcher:
    def __init__(self, patterns: Iterable[str], adopter: Adopter) -> None:
        self._patterns = list(patterns)
        self._adopter = adopter
        self._seen: dict[Path, Sight] = {}
        self._taken: dict[Path, Signature] = {}

    def look(self, now: float, *, is_over: bool = False) -> None:
        """Take what is finished, oldest first. `is_over`: nobody writes any more."""
        there = {path: signature_of(path) for pattern in self._patterns for path in matching(pattern)}
        self._seen = decide_sights(self._seen, there, now)
        wait_s = 0.0 if is_over else _SETTLED_AFTER_S
        for path in decide_finished(self._seen, self._taken, now=now, settled_after_s=wait_s):
            try:
                self._adopter.take(path)
            except Unsteady:
                continue  # it is looked at again
            except OSError as error:
                session().alert("checkpoint-failed", f"{path} was not taken: {error}")
            self._taken[path] = self._seen[path].signature
        self._adopter.look()


def matching(pattern: str) -> list[Path]:
    """Hidden files and those that are called unfinished are none."""
    found = (Path(name) for name in glob.glob(pattern, recursive=True))
    return [path for path in found if not path.name.startswith(".") and not path.name.endswith(_UNFINISHED)]


def decide_sights(before: Mapping[Path, Sight], there: Mapping[Path, Signature], now: float) -> dict[Path, Sight]:
    sights = {}
    for path, signature in there.items():
        known = before.get(path)
        same = known is not None and known.signature == signature
        sights[path] = known if same and known is not None else Sight(signature=signature, since=now)
    return sights


def decide_finished(
    seen: Mapping[Path, Sight], taken: Mapping[Path, Signature], *, now: float, settled_after_s: float
) -> list[Path]:
    """What is to be taken now, oldest first."""
    finished = [
        path
        for path, sight in seen.items()
        if sight.signature and taken.get(path) != sight.signature and now - sight.since >= settled_after_s
    ]
    return sorted(finished, key=lambda path: (max(time_ns for *_, time_ns in seen[path].signature), str(path)))


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
    adopter = Adopter(Path(os.environ.get(FOLDER) or session().output_dir / "checkpoints"), wanted)
    watcher = Watcher(patterns, adopter)
    while rank is not None and not select.select([rank], [], [], _LOOK_EVERY_S)[0]:
        watcher.look(time.monotonic())
    watcher.look(time.monotonic(), is_over=True)
    adopter.close()
    session().flush()
