"""What TensorBoard's writers log becomes points of the run: event files in its folders are followed while it runs, and
read to their end when it has ended. The first node's supervisor does it, between other things and a little at a time.

Points go to the first rank's spool. Each line says how far its file was read, so that whoever goes on after a death,
in the next attempt, knows it to the byte; `tensorboard.json` in the run's folder spares reading old spools.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

from . import eventfile, layout
from .environ import global_rank
from .eventsearch import Search
from .files import read_json, write_json
from .writers import Writers

STATE = "tensorboard.json"
_SEARCH_EVERY_S = 10.0
_SEARCH_SHARE = 200  # a search that takes long comes again only after so many times as long
_LONGEST_SEARCH_S = 0.1  # at a time; the next one goes on from there
_LAST_SEARCH_S = 2.0
_BUDGET_S = 0.1  # of reading, each time: output waits as long
_DRAIN_S = 60.0
_HURRY_S = 1.0
_WRITE_BYTES = 64 << 10
_LONGEST_NAME = 250
# Where users are told to put them, besides the working folder.
_FOLDERS = ("TENSORBOARD_LOGDIR", "TENSORBOARD_LOGGING_DIR", "AIP_TENSORBOARD_LOG_DIR", "SM_OUTPUT_DATA_DIR")
# Folders of writers that are named for what they log: their name is part of the metric's from the first.
_STAMP = re.compile(r"[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_.")  # Nov19_06-00-23_host
_USUAL = "runs"  # where SummaryWriter() makes them
_SPLITS = ("train", "training", "val", "valid", "validation", "eval", "evaluation", "test", "testing")


class State(NamedTuple):
    """How far event files of a run were read, when its spool was so long."""

    since: int
    spool: str
    size: int
    files: Dict[str, int]


class Boards:
    def __init__(self, plan: Mapping[str, Any]) -> None:
        """Does nothing until the first look."""
        self._roots = _roots(plan)
        self._state = os.path.join(plan["run_dir"], STATE)
        self._spool = os.path.join(plan["node_dir"], layout.metrics_spool(global_rank(plan, 0)))
        self._began = int(time.time())
        self._loaded = False
        self._since = self._began
        self._offsets: Dict[str, int] = {}
        self._numbers: Dict[str, int] = {}  # lines name files by their place among these
        self._ended: Set[str] = set()  # files that are damaged or not for us, and were told of
        self._unwritten = b""
        self._names = Names()
        self._files: List[str] = []
        self._search = Search(self._roots)
        self._search_at = 0.0
        self._writers = Writers(plan["run_dir"], self._roots)
        self._is_wanted = isinstance(plan.get("tensorboard"), str)
        self._said = ""

    def add(self, pid: int) -> None:
        """A rank, whose files are the run's."""
        self._writers.add(pid)

    def begin_again(self) -> None:
        """The ranks start anew, and do not wait long: their writers take the place of those before."""
        self._search_at = 0.0
        self._follow(time.monotonic(), _HURRY_S, _LONGEST_SEARCH_S)
        self._names = Names()

    def look(self, now: float) -> None:
        """A little of what is new."""
        self._follow(now, _BUDGET_S, _LONGEST_SEARCH_S)

    def drain(self, *, hurry: bool = False) -> None:
        """All of what is new: no rank writes any more. In a hurry, what can be had at once."""
        if not self._roots:
            return
        limit_s = _HURRY_S if hurry else _DRAIN_S
        self._search_at = 0.0
        self._search.begin(self._files)
        begin = time.monotonic()
        self._follow(begin, limit_s, _LONGEST_SEARCH_S if hurry else _LAST_SEARCH_S)
        if self._search.is_under_way:
            self._tell_unfound()
        if self._files and time.monotonic() - begin >= limit_s:
            self._unwritten += _alert("event files were not read to their end within %g s" % limit_s)
        if self._unwritten:
            self._follow(begin, 0.0, 0.0)

    def _tell_unfound(self) -> None:
        """To the user only where there are event files, as far as we know: most who have many files have none."""
        trouble = "not all folders were searched for event files: say in `tensorboard` of the spec which one has them"
        if self._files or self._is_wanted:
            self._unwritten += _alert(trouble)
        else:
            self._say(trouble)

    def _follow(self, now: float, budget_s: float, search_s: float) -> None:
        if not self._roots:
            return
        try:
            self._append()  # what the disk did not take last time, before anything is said to have been read
            self._writers.look()
            if search_s and now >= self._search_at:
                self._look_for_files(now, search_s)
            if self._files:
                self._read_all(time.monotonic() + budget_s)
        except Exception as error:  # whatever it is: it costs points, not the run
            self._say("event files cannot be followed: %s: %s" % (type(error).__name__, error))

    def _say(self, trouble: str) -> None:
        if trouble != self._said:
            self._said = trouble
            with contextlib.suppress(OSError):  # the supervisor's own log may be on a disk that is full
                sys.stderr.write(trouble + "\n")

    def _look_for_files(self, now: float, search_s: float) -> None:
        self._load()
        begin = time.monotonic()
        found = self._search.look(since=self._since, known=self._files, seconds=search_s)
        new = self._writers.choose(path for path in found if path not in self._offsets)
        known = [path for path in found if path in self._offsets]
        self._files = sorted({*self._files, *known, *new}, key=_order)
        if new:
            self._offsets.update(dict.fromkeys(sorted(new, key=_order), 0))
            self._numbers = {path: number for number, path in enumerate(self._offsets)}
            self._save()  # before a line counts on its number
        if self._search.completed or not self._search.is_under_way:  # the first one goes on at the next look
            self._search_at = now + max(_SEARCH_EVERY_S, (time.monotonic() - begin) * _SEARCH_SHARE)

    def _read_all(self, deadline: float) -> None:
        before = dict(self._offsets)
        for path in list(self._files):
            if path not in self._ended and time.monotonic() < deadline:
                self._read(path, deadline)
        if self._offsets != before:
            self._save()

    def _read(self, path: str, deadline: float) -> None:
        more = True
        while more:
            more = False
            try:
                more = self._take(path, deadline)
            except FileNotFoundError:
                self._files.remove(path)
            except eventfile.Damaged as damage:
                self._set_aside(path, "is damaged at byte %d: %s" % (self._offsets.get(path, 0), damage))
            except Exception as error:  # one that cannot be read does not hide the others
                self._set_aside(path, "cannot be read: %s" % error)
            self._append()

    def _take(self, path: str, deadline: float) -> bool:
        """As much as is written at a time; whether there may be more."""
        for scalars, offset in read_file(path, self._offsets.get(path, 0), deadline):
            self._offsets[path] = offset
            if scalars is not None:
                # Not before there is something: folders of former ranks, read to their end, have no say.
                prefix = self._names.prefix(os.path.dirname(path))
                self._unwritten += _line(scalars, prefix, (self._numbers[path], offset))
                if len(self._unwritten) >= _WRITE_BYTES:
                    return True
        return False

    def _set_aside(self, path: str, why: str) -> None:
        self._ended.add(path)
        self._unwritten += _alert("%s %s; what follows is not read" % (path, why))

    def _append(self) -> None:
        """Whole lines at once: the rank appends to the file too."""
        if not self._unwritten:
            return
        fd = os.open(self._spool, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(fd, self._unwritten) :]
        finally:
            os.close(fd)

    # How far files were read ----------------------------------------------------------------------------------------

    def _load(self) -> None:
        """What an earlier attempt has read of the same folder."""
        if self._loaded:
            return
        self._loaded = True
        state = _read_state(self._state)
        if state is None:
            self._save()  # an attempt that comes after must know what is the run's
            return
        self._since = state.since
        self._offsets.update(state.files)
        self._numbers = {path: number for number, path in enumerate(self._offsets)}
        told = _told(state.spool, state.size)
        self._offsets.update({path: told[number] for path, number in self._numbers.items() if number in told})

    def _save(self) -> None:
        size = os.path.getsize(self._spool) if os.path.exists(self._spool) else 0
        write_json(self._state, State(self._since, self._spool, size, self._offsets)._asdict())


class Names:
    """What metrics of a folder's writer are called. The first folder's keep their tags, unless it is named for a part
    of the data; those of others begin with where they are, seen from the first. What `SummaryWriter()` makes of date
    and host says nothing of a writer, and could not be compared between runs: such folders are counted."""

    def __init__(self) -> None:
        self._base: Optional[str] = None
        self._prefixes: Dict[str, str] = {}

    def prefix(self, folder: str) -> str:
        found = self._prefixes.get(folder)
        if found is None:
            found = self._prefixes[folder] = self._decide(folder)
        return found

    def _decide(self, folder: str) -> str:
        above, name = os.path.split(folder)
        if self._base is None:
            self._base = above if name.lower() in _SPLITS else folder
        inside = os.path.relpath(folder, os.path.commonpath([self._base, folder]))
        parts = [] if inside == "." else inside.split(os.sep)
        if parts and _STAMP.match(parts[-1]):
            return self._counted([] if parts[:-1] == [_USUAL] else parts[:-1])
        for count, part in enumerate(parts[:-1], start=1):
            if _STAMP.match(part):  # below such a one, as `add_scalars` makes them
                rest = parts[count:]
                return (
                    self.prefix(os.path.normpath(os.path.join(folder, *[os.pardir] * len(rest)))) + "/".join(rest) + "/"
                )
        return "".join(part + "/" for part in parts)

    def _counted(self, parts: List[str]) -> str:
        prefix, number = "".join(part + "/" for part in parts), 1
        while prefix in self._prefixes.values():
            number += 1
            prefix = "".join(part + "/" for part in [*parts, str(number)])
        return prefix


def _order(path: str) -> Tuple[int, bool, int, str]:
    """The first writer first. Of those that began together first what is not named for a part of the data, then the
    outermost: others are named as seen from it."""
    folder, name = os.path.split(path)
    is_part = os.path.basename(folder).lower() in _SPLITS
    return eventfile.began_at(name) or 0, is_part, path.count(os.sep), path


def read_file(path: str, offset: int, deadline: float) -> Iterator[Tuple[Optional[eventfile.Scalars], int]]:
    """What is whole from `offset` on, each with where it ends. A record that is only half there is left for later.
    Raises Damaged."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if offset > size:
            raise eventfile.Damaged("it has become shorter")
        file.seek(offset)
        while offset + eventfile.HEADER_BYTES <= size and time.monotonic() < deadline:
            length = eventfile.record_length(file.read(eventfile.HEADER_BYTES))
            end = offset + eventfile.HEADER_BYTES + length + eventfile.FOOTER_BYTES
            if end > size:
                return
            scalars = None
            if length <= eventfile.LONGEST_BYTES:
                message = file.read(length)
                eventfile.check_record(message, file.read(eventfile.FOOTER_BYTES))
                scalars = eventfile.read_event(message)
            else:
                file.seek(end)
            offset = end
            yield scalars, offset


def _line(scalars: eventfile.Scalars, prefix: str, read_to: Tuple[int, int]) -> bytes:
    values = {prefix + tag: value for tag, value in scalars.values if len(prefix + tag) <= _LONGEST_NAME}
    step = scalars.step if scalars.step >= 0 else None
    point = {"t": round(scalars.at, 6), "s": step, "m": values, "o": read_to}
    return json.dumps(point).encode() + b"\n"


def _alert(message: str) -> bytes:
    said = {"t": round(time.time(), 6), "s": None, "a": {"kind": "tensorboard", "message": message}}
    return json.dumps(said).encode() + b"\n"


def _read_state(path: str) -> Optional[State]:
    """None also for one that makes no sense: lost power may have left it empty, and programs can write there."""
    try:
        found = read_json(path)
        if found is None:
            return None
        files = {str(name): max(0, int(offset)) for name, offset in found["files"].items()}
        return State(int(found["since"]), str(found["spool"]), max(0, int(found["size"])), files)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _told(spool: str, position: int) -> Dict[int, int]:
    """How far files were read by what was appended after the state was written."""
    found: Dict[int, int] = {}
    try:
        with open(spool, "rb") as file:
            file.seek(position)
            for line in file:
                if b'"o":' in line and line.endswith(b"\n"):
                    with contextlib.suppress(ValueError, KeyError, TypeError):  # a metric may be called so
                        number, offset = json.loads(line)["o"]
                        found[int(number)] = int(offset)
    except OSError:
        pass  # an old attempt's folder may be gone; readers see what comes twice once
    return found


def _roots(plan: Mapping[str, Any]) -> List[str]:
    wanted = plan.get("tensorboard", True)
    if wanted is False or int(plan["node_rank"]):
        return []
    workdir = plan["workdir"]
    if isinstance(wanted, str):
        given = [wanted]
    else:
        given = [".", plan["run_dir"] + "/model", *(plan["env"].get(name, "") for name in _FOLDERS)]
    return [os.path.normpath(os.path.join(workdir, one)) for one in given if one and "://" not in one]
