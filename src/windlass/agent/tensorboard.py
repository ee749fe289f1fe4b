"""What TensorBoard's writers log becomes points of the run: event files in its folders are followed while it runs, and
read to their end when it has ended. The first node's supervisor does it, between other things and a little at a time.

Points go to the first rank's spool. Each line says how far its file was read, so that whoever goes on after a death,
in the next attempt, knows it to the byte; `tensorboard.json` in the run's folder spares reading old spools.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

from . import eventfile, layout
from .environ import global_rank
from .files import read_json, write_json

STATE = "tensorboard.json"
_SEARCH_EVERY_S = 10.0
_SEARCH_SHARE = 200  # a search that takes long comes again only after so many times as long
_LONGEST_SEARCH_S = 0.1
_MOST_FOLDERS = 5_000
_DEEPEST = 8
_BUDGET_S = 0.1  # of reading, each time: output waits as long
_DRAIN_S = 60.0
_WRITE_BYTES = 64 << 10
_LONGEST_NAME = 250
_PASSED_OVER = ("__pycache__", "node_modules", "site-packages", "venv", "env")
# Where users are told to put them, besides the working folder.
_FOLDERS = ("TENSORBOARD_LOGDIR", "TENSORBOARD_LOGGING_DIR", "AIP_TENSORBOARD_LOG_DIR", "SM_OUTPUT_DATA_DIR")
# Folders of writers that are named for what they log: their name is part of the metric's from the first.
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
        self._ended: Set[str] = set()  # files that are damaged, and were told of
        self._unwritten = b""
        self._names = Names()
        self._files: List[str] = []
        self._search_at = 0.0
        self._said = ""

    def begin_again(self) -> None:
        """The ranks start anew: their writers take the place of those before."""
        self.drain()
        self._names = Names()

    def look(self, now: float) -> None:
        """A little of what is new."""
        self._follow(now, _BUDGET_S)

    def drain(self) -> None:
        """All of what is new: no rank writes any more."""
        self._search_at = 0.0
        begin = time.monotonic()
        self._follow(begin, _DRAIN_S)
        if time.monotonic() - begin >= _DRAIN_S:
            self._unwritten += _alert("event files were not read to their end within %g s" % _DRAIN_S)
            self._follow(begin, 0.0)

    def _follow(self, now: float, budget_s: float) -> None:
        if not self._roots:
            return
        try:
            if now >= self._search_at:
                self._search(now)
            self._append()  # what the disk did not take last time
            if self._files:
                self._read_all(time.monotonic() + budget_s)
        except Exception as error:  # whatever it is: it costs points, not the run
            self._say("event files cannot be followed: %s: %s" % (type(error).__name__, error))

    def _say(self, trouble: str) -> None:
        if trouble != self._said:
            self._said = trouble
            with contextlib.suppress(OSError):  # the supervisor's own log may be on a disk that is full
                sys.stderr.write(trouble + "\n")

    def _search(self, now: float) -> None:
        self._load()
        begin = time.monotonic()
        found = find_files(self._roots, since=self._since, deadline=begin + _LONGEST_SEARCH_S)
        self._files = sorted(set(self._files) | set(found), key=_order)
        if new := [path for path in self._files if path not in self._offsets]:
            self._offsets.update(dict.fromkeys(new, 0))
            self._numbers = {path: number for number, path in enumerate(self._offsets)}
            self._save()  # before a line counts on its number
        self._search_at = now + max(_SEARCH_EVERY_S, (time.monotonic() - begin) * _SEARCH_SHARE)

    def _read_all(self, deadline: float) -> None:
        before = dict(self._offsets)
        for path in list(self._files):
            if path not in self._ended and time.monotonic() < deadline:
                self._read(path, deadline)
        if self._offsets != before:
            self._save()

    def _read(self, path: str, deadline: float) -> None:
        try:
            for scalars, offset in read_file(path, self._offsets.get(path, 0), deadline):
                self._offsets[path] = offset
                if scalars is not None:
                    # Not before there is something: folders of former ranks, read to their end, have no say.
                    prefix = self._names.prefix(os.path.dirname(path))
                    self._unwritten += _line(scalars, prefix, (self._numbers[path], offset))
                    if len(self._unwritten) >= _WRITE_BYTES:
                        self._append()
        except eventfile.Damaged as damage:
            self._ended.add(path)
            where = (path, self._offsets.get(path, 0), damage)
            self._unwritten += _alert("%s is damaged at byte %d: %s; what follows is not read" % where)
        except (FileNotFoundError, PermissionError):
            self._files.remove(path)
        self._append()

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
    of the data; those of others begin with where they are, seen from the first."""

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
        return "" if inside == "." else inside.replace(os.sep, "/") + "/"


def find_files(roots: List[str], *, since: int, deadline: float) -> Iterator[str]:
    """Event files that were begun since then, the outermost first. No further than a search may go: a working folder
    may hold a million files of data."""
    left = [(root, 0) for root in roots]
    seen: Set[str] = set()
    while left and len(seen) < _MOST_FOLDERS and time.monotonic() < deadline:
        folder, depth = left.pop(0)
        if folder in seen:
            continue
        seen.add(folder)
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if time.monotonic() >= deadline:
                        return
                    began = eventfile.began_at(entry.name)
                    if began is not None and began >= since and entry.is_file(follow_symlinks=False):
                        yield entry.path
                    elif began is None and depth < _DEEPEST and _is_worth_a_look(entry):
                        left.append((entry.path, depth + 1))
        except OSError:
            continue  # not there yet, or not for us


def _order(path: str) -> Tuple[int, int, str]:
    """The first writer first, and the outermost of those that began together: others are named as seen from it."""
    return eventfile.began_at(os.path.basename(path)) or 0, path.count(os.sep), path


def _is_worth_a_look(entry: "os.DirEntry[str]") -> bool:
    name = entry.name
    return not name.startswith(".") and name not in _PASSED_OVER and entry.is_dir(follow_symlinks=False)


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
                    number, offset = json.loads(line)["o"]
                    found[int(number)] = int(offset)
    except (OSError, ValueError, KeyError, TypeError):
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
