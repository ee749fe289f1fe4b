"""What is to be copied, and under which names. Pure."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from typing import NamedTuple

from windlass.core import marks
from windlass.core.marks import MARK_TAG
from windlass.core.storable import is_storable, storable_text
from windlass.imports.records import Experiment, File, LoggedModel, Point, RegisteredModel, Run, Version

SOURCE_TAG = "windlass.import.source"
RUN_TAG = "windlass.import.run_id"  # of those that could not keep theirs
_PARENT_TAG = "mlflow.parentRunId"
_RUN_ID = re.compile(r"[0-9a-f]{32}")
_MODEL_ID = re.compile(r"m-[0-9a-f]{32}")
_SETTLED_MS = 24 * 3_600_000
_HARMLESS = ("runs", "models", "mlflow-artifacts", "http", "https", "s3", "gs", "wasbs", "abfss", "dbfs", "hdfs")


class Here(NamedTuple):
    """A run that the server has already."""

    mark: str
    deleted: bool
    location: str = ""  # where its artifacts belong


class Deed(StrEnum):
    COPY = "copied"
    UPDATE = "updated"
    COMPARE_FILES = "unchanged"  # files may have come since: nothing but their list tells
    LEAVE = "left"  # deleted here, though not there


def decide_run(run: Run, here: Here | None) -> Deed:
    if here is None:
        return Deed.COPY
    if here.deleted and not run.deleted:
        return Deed.LEAVE
    return Deed.COMPARE_FILES if here.mark == fingerprint(run) else Deed.UPDATE


def may_have_late_points(run: Run, now_ms: int) -> bool:
    """Points of earlier steps are not seen in what is known of a run without asking for them: one that goes on from a
    checkpoint, or is evaluated later, has them. Those that ended long ago are taken for settled."""
    return run.status in ("RUNNING", "SCHEDULED") or run.end_ms is None or now_ms - run.end_ms < _SETTLED_MS


def fingerprint(run: Run) -> str:
    """Of everything that is known of a run without asking for its points and files."""
    known = {key: value for key, value in asdict(run).items() if key != "files"}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:32]


def kept_run_id(run_id: str) -> str:
    """MLflow's ids stay as they are. Others, such as those of another Windlass's own runs, become one that is always
    the same."""
    return run_id if _RUN_ID.fullmatch(run_id) else hashlib.sha256(f"run {run_id}".encode()).hexdigest()[:32]


def kept_model_id(model_id: str) -> str:
    if _MODEL_ID.fullmatch(model_id):
        return model_id
    return "m-" + hashlib.sha256(f"model {model_id}".encode()).hexdigest()[:32]


def storable_run(run: Run) -> tuple[Run, list[str]]:
    """The run with other signs for those that no database keeps, and where they were. Params, tags, name and user."""
    changed: list[str] = []

    def kept(what: str, text: str) -> str:
        if not is_storable(text):
            changed.append(
                f"a NUL or half of a surrogate pair in {what}: \N{REPLACEMENT CHARACTER} stands in its place"
            )
        return storable_text(text)

    params = {storable_text(key): kept(f"param '{storable_text(key)}'", value) for key, value in run.params.items()}
    tags = {storable_text(key): kept(f"tag '{storable_text(key)}'", value) for key, value in run.tags.items()}
    name, user = kept("its name", run.name), kept("its user's name", run.user)
    return replace(run, params=params, tags=tags, name=name, user=user), changed


def tags_of(run: Run, address: str) -> dict[str, str]:
    tags = {**run.tags, SOURCE_TAG: address}
    if parent := run.tags.get(_PARENT_TAG):
        tags[_PARENT_TAG] = kept_run_id(parent)
    if kept_run_id(run.id) != run.id:
        tags[RUN_TAG] = run.id
    return tags


def missing_points(there: Iterable[Point], here: Iterable[Point]) -> list[Point]:
    """Those that the server lacks, each once, in the order of steps."""
    known = {_exact(point) for point in here}
    found: dict[tuple[int, int, str], Point] = {}
    for point in there:
        if (exact := _exact(point)) not in known:
            found[exact] = point
    return sorted(found.values(), key=lambda point: (point.step, point.at_ms))


def _exact(point: Point) -> tuple[int, int, str]:
    return point.step, point.at_ms, "nan" if math.isnan(point.value) else point.value.hex()


def missing_files(there: Iterable[File], here: Mapping[str, int]) -> list[File]:
    """A file of the same name and size is the same: MLflow tells no more of it."""
    return [one for one in there if one.path not in here or one.size_bytes not in (None, here[one.path])]


def choose_experiments(found: Sequence[Experiment], wanted: Collection[str]) -> tuple[list[Experiment], list[str]]:
    """Those of these names (all, if none are given), and the names that none has."""
    names = {one.name for one in found}
    return [one for one in found if not wanted or one.name in wanted], [one for one in wanted if one not in names]


class Places:
    """Where files of runs and models were, and where they are now."""

    def __init__(self) -> None:
        self._moved: dict[str, str] = {}
        self._runs: dict[str, str] = {}
        self._models: set[str] = set()

    def add_run(self, run: Run, location: str) -> None:
        self._runs[run.id] = location
        self._add(run.artifact_uri, location)

    def add_model(self, model: LoggedModel, location: str) -> None:
        self._models.add(model.id)
        self._add(model.artifact_uri, location)

    def _add(self, uri: str, location: str) -> None:
        if uri:
            self._moved[uri.rstrip("/")] = location

    def has_origin(self, version: Version) -> bool:
        """Whether it comes from something that was copied."""
        return (version.run_id in self._runs) or (version.model_id in self._models)

    def source_of(self, version: Version) -> str | None:
        """What the source of a version is here. None if it names files that cannot be told from here."""
        source = version.source
        if match := re.fullmatch(r"runs:/([^/]+)(/.*)?", source):
            return f"runs:/{kept_run_id(match[1])}{match[2] or ''}"
        if match := re.fullmatch(r"models:/(m-[^/@]+)", source):
            return f"models:/{kept_model_id(match[1])}"
        if moved := self._moved_to(source):
            return moved
        match = re.search(r"/([0-9a-f]{32})/artifacts(/.*)?$", source)  # of a folder that was moved before
        if match and (location := self._runs.get(match[1])):
            return location + (match[2] or "")
        scheme, colon, _ = source.partition(":")
        if not colon:
            return None if source.startswith("/") else source or None  # prompts have a word of their own
        return source if scheme.lower() in _HARMLESS and scheme.lower() != "mlflow-artifacts" else None

    def _moved_to(self, source: str) -> str | None:
        above = source.rstrip("/")
        while above:
            if location := self._moved.get(above):
                return location + source[len(above) :].rstrip("/")
            above, slash, _ = above.rpartition("/")
            if not slash:
                return None
        return None


def in_order(versions: Sequence[tuple[str, Version]]) -> list[tuple[str, Version]]:
    """Copies of other versions after what they are copies of."""
    sources = {(name, version.version): _copied_from(version) for name, version in versions}

    def depth(name: str, version: Version) -> int:
        seen = {(name, version.version)}
        above = _copied_from(version)
        while above in sources and above not in seen:
            seen.add(above)
            above = sources[above]
        return len(seen)

    return sorted(versions, key=lambda one: depth(*one))


def _copied_from(version: Version) -> tuple[str, int] | None:
    match = re.fullmatch(r"models:/([^/@]+)/([0-9]{1,9})", version.source)
    return (match[1], int(match[2])) if match else None


def experiment_tags(there: Mapping[str, str], here: Mapping[str, str]) -> dict[str, str]:
    """Those to set on an experiment, the mark last."""
    mark = marks.mark_of(marks.tag_facts(there))
    return {**marks.changed_tags(there, here), **({MARK_TAG: mark} if here.get(MARK_TAG, "") != mark else {})}


def decide_aliases(
    model: RegisteredModel, versions: Collection[int], here: RegisteredModel | None
) -> Sequence[tuple[str, int]]:
    """Those to set, of versions that have come. One that has not changed there since the last time stays as it is here,
    and so does one that was moved here to a version that the source has not."""
    known = marks.read_mark(here.tags) if here else frozenset()
    placed = here.aliases if here else {}
    return [
        (alias, version)
        for alias, version in sorted(model.aliases.items())
        if version in versions
        and placed.get(alias) != version
        and (alias not in placed or placed[alias] in versions)
        and marks.fact("alias", alias, version) not in known
    ]


def model_mark(model: RegisteredModel, versions: Collection[int], here: RegisteredModel | None) -> str:
    """Of its tags, and of aliases that were heeded now or before: others are to come with their versions."""
    known = marks.read_mark(here.tags) if here else frozenset()
    aliases = {marks.fact("alias", alias, number): number for alias, number in model.aliases.items()}
    heeded = {one for one, number in aliases.items() if number in versions or one in known}
    return marks.mark_of(heeded | marks.tag_facts(model.tags))
