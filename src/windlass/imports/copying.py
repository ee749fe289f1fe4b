"""Copies what a source has to a server: experiments one after the other, several of their runs at a time. What is there
already is not sent again, so that the same call goes on where one was broken off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Protocol, TypeVar

from windlass.core.artifactnames import shown
from windlass.core.clock import Clock, SystemClock
from windlass.core.errors import Gone, InvalidInput, ServerUnreachable, Unauthorized, WindlassError
from windlass.core.marks import HERE_TAG, MARK_TAG, changed_tags
from windlass.imports import plan
from windlass.imports.destination import POINTS_AT_ONCE, Destination, KnownExperiment, Taken
from windlass.imports.plan import Deed, Here, Places
from windlass.imports.records import Experiment, File, LoggedModel, Owner, Point, RegisteredModel, Run, Source, Version

_T = TypeVar("_T")
INCOMPLETE = "incomplete"  # runs of which something could not be copied: the problems say what
_AHEAD = 4  # runs read ahead for each that is being copied


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    experiments: Sequence[str] = ()  # names; all if there are none
    deleted: bool = False
    files: bool = True
    dry_run: bool = False
    full: bool = False  # compare points of all runs, however long ago they ended
    at_once: int = 8


@dataclass(slots=True, kw_only=True)
class Summary:
    """What was done, or with a dry run what would be."""

    experiments: int = 0
    experiments_created: int = 0
    runs: dict[str, int] = field(default_factory=lambda: {**{deed.value: 0 for deed in Deed}, INCOMPLETE: 0})
    points: int = 0
    files: int = 0
    bytes: int = 0
    logged_models: int = 0
    models: int = 0
    versions: int = 0
    problems: list[str] = field(default_factory=list)


class Watcher(Protocol):
    """Told how far it has come, by any thread."""

    def found(self, runs: int) -> None: ...

    def ended(self, run: str) -> None: ...

    def sent(self, size: int) -> None: ...

    def logged(self, points: int) -> None: ...


class Copier:
    def __init__(
        self,
        source: Source,
        server: Destination,
        wishes: Wishes,
        watcher: Watcher,
        clock: Clock | None = None,
    ) -> None:
        self._source = source
        self._server = server
        self._wishes = wishes
        self._watcher = watcher
        self._lock = threading.Lock()
        self._now_ms = int((clock or SystemClock()).now() * 1000)
        self._places = Places()
        self.summary = Summary()

    def copy(self) -> Summary:
        """Raises ServerUnreachable and Unauthorized; what goes wrong with one run is among the summary's problems."""
        known = self._server.experiments()
        self._check_other(known.values())
        chosen = self._chosen()
        for experiment in chosen:
            self._copy_experiment(experiment, known.get(experiment.name))
        with self._tolerating("registered models"):
            self._copy_registered(list(self._source.registered_models()), self._server.registered_models())
        return self.summary

    def _check_other(self, known: Iterable[KnownExperiment]) -> None:
        """Raises InvalidInput if the source is the server itself, by whatever address."""
        marked = next((one.id for one in known if not one.deleted), None)
        if marked is None or not self._source.is_windlass():
            return
        with self._server.marked(marked) as mark:
            if any(one.tags.get(HERE_TAG) == mark for one in self._source.experiments(deleted=False)):
                raise InvalidInput(
                    f"{self._source.address} is the server that would be copied to",
                    hint="give the address of another server; --url and WINDLASS_URL name the one to copy to",
                )

    def _chosen(self) -> list[Experiment]:
        found = list(self._source.experiments(deleted=self._wishes.deleted))
        chosen, unknown = plan.choose_experiments(found, self._wishes.experiments)
        if unknown:
            names = ", ".join(f"'{one.name}'" for one in found[:20]) or "none"
            raise InvalidInput(f"{self._source.address} has no experiment '{unknown[0]}'", hint=f"there are: {names}")
        return chosen

    # ---- experiments and runs ----------------------------------------------------------------------------------------

    def _copy_experiment(self, experiment: Experiment, known: KnownExperiment | None) -> None:
        self.summary.experiments += 1
        self.summary.experiments_created += known is None
        if known and known.deleted and not experiment.deleted:
            self.summary.problems.append(
                f"experiment '{experiment.name}' was deleted here: restore it, or rename it there"
            )
            return
        here = self._server.runs(known.id) if known else {}
        if self._wishes.dry_run:
            self._count_experiment(experiment, here)
            return
        target = known.id if known else self._server.create_experiment(experiment.name)
        if known and known.deleted:
            self._server.change_experiment(target, deleted=False)
        with self._tolerating(f"tags of experiment '{experiment.name}'"):
            here_tags = known.tags if known else {}
            self._server.set_experiment_tags(target, plan.experiment_tags(experiment.tags, here_tags))
        runs = self._source.runs(experiment, deleted=self._wishes.deleted or experiment.deleted)
        self._at_once(lambda run: self._copy_run(run, target, here.get(plan.kept_run_id(run.id))), self._counted(runs))
        self._at_once(lambda model: self._copy_model(model, target), self._source.logged_models(experiment))
        if experiment.deleted and (known is None or known.deleted):
            self._server.change_experiment(target, deleted=True)

    def _count_experiment(self, experiment: Experiment, here: dict[str, Here]) -> None:
        for run in self._counted(self._source.runs(experiment, deleted=self._wishes.deleted)):
            deed = plan.decide_run(run, here.get(plan.kept_run_id(run.id)))
            self.summary.runs[deed] += 1
            self._places.add_run(run, "")
            self._watcher.ended(run.name)
        for model in self._source.logged_models(experiment):
            self._places.add_model(model, "")
            self.summary.logged_models += 1

    def _counted(self, runs: Iterable[Run]) -> Iterator[Run]:
        for run in runs:
            self._watcher.found(1)
            yield run

    def _copy_run(self, run: Run, experiment_id: str, here: Here | None) -> None:
        deed, whole = plan.decide_run(run, here), False
        with self._tolerating(f"run {run.id}"):
            if here:
                self._note_place(run, here.location)
            if deed is Deed.COMPARE_FILES and here and not run.deleted:
                whole = self._compare_run(run, here)
            elif deed in (Deed.COPY, Deed.UPDATE):
                whole = self._bring_run(run, experiment_id, here)
            else:
                whole = True
        with self._lock:
            self.summary.runs[deed.value if whole else INCOMPLETE] += 1
        self._watcher.ended(run.name or run.id)

    def _compare_run(self, run: Run, here: Here) -> bool:
        """Whether it is whole, of one that looks the same there and here."""
        whole, run_id = True, plan.kept_run_id(run.id)
        if self._wishes.full or plan.may_have_late_points(run, self._now_ms):
            if (told := self._source.whole(run)) != run:  # what the list has not is not in the mark either
                self._server.log_inputs(run_id, told)
            whole = self._copy_points(run, run_id, Taken(False, here.location))
        return (self._copy_files(run.files, here.location) and whole) if self._wishes.files else whole

    def _bring_run(self, run: Run, experiment_id: str, here: Here | None) -> bool:
        """Whether all of it has come. If not, it has no mark, and is brought again the next time."""
        run_id, server = plan.kept_run_id(run.id), self._server
        if here and here.deleted:
            server.change_run(run_id, deleted=False)
        storable, changed = plan.storable_run(run)
        taken = server.put_run(storable, experiment_id)
        self._note_place(run, taken.location)
        server.log_pairs(run_id, "params", storable.params)
        server.log_pairs(run_id, "tags", plan.tags_of(storable, self._source.address))
        self.summary.problems.extend(f"run {run.id}: {one}" for one in changed)
        server.log_inputs(run_id, self._source.whole(run))
        whole = self._copy_points(run, run_id, taken)
        if self._wishes.files:
            whole &= self._copy_files(run.files, taken.location)
        server.log_pairs(run_id, "tags", {MARK_TAG: plan.fingerprint(run) if whole else ""})
        if run.deleted:
            server.change_run(run_id, deleted=True)
        return whole

    def _note_place(self, run: Run, location: str) -> None:
        with self._lock:
            self._places.add_run(run, location)

    def _copy_points(self, run: Run, run_id: str, taken: Taken) -> bool:
        """As many at a time as fit; one by one metric what is refused together. Whether all have come."""
        whole = True
        missing = self._missing_points(run, run_id, taken)
        while some := list(islice(missing, POINTS_AT_ONCE)):
            try:
                self._send_points(run_id, some)
            except (ServerUnreachable, Unauthorized):
                raise
            except WindlassError:
                for key, named in groupby(some, key=itemgetter(0)):
                    with self._tolerating(f"metric '{key}' of run {run.id}") as tried:
                        self._send_points(run_id, list(named))
                    whole &= tried.succeeded
        return whole

    def _send_points(self, run_id: str, points: Sequence[tuple[str, Point]]) -> None:
        self._server.log_points(run_id, points)
        with self._lock:
            self.summary.points += len(points)
        self._watcher.logged(len(points))

    def _missing_points(self, run: Run, run_id: str, taken: Taken) -> Iterator[tuple[str, Point]]:
        here: Iterator[tuple[str, Iterable[Point]]]
        here = ((key, ()) for key in run.metrics) if taken.created else self._server.histories(run_id, run.metrics)
        for (key, known), (_, points) in zip(here, self._source.histories(run), strict=True):
            for point in plan.missing_points(points, known):
                yield key, point

    # ---- models ------------------------------------------------------------------------------------------------------

    def _copy_model(self, model: LoggedModel, experiment_id: str) -> None:
        with self._tolerating(f"logged model {model.id}"):
            try:
                taken = self._server.put_logged_model(model, experiment_id)
            except Gone:
                return  # deleted here: it stays so
            with self._lock:
                self._places.add_model(model, taken.location)
                self.summary.logged_models += taken.created
            if self._wishes.files:
                self._copy_files(model.files, taken.location)

    def _copy_registered(self, models: Sequence[RegisteredModel], here: Mapping[str, RegisteredModel]) -> None:
        """All models first, then their versions, of which some are copies of others'; then what names versions."""
        taken: dict[str, set[int]] = {}
        coming: list[tuple[str, Version]] = []
        for model in models:
            versions = [one for one in model.versions if not self._wishes.experiments or self._places.has_origin(one)]
            if self._wishes.experiments and not versions:
                continue
            with self._tolerating(f"model '{model.name}'"):
                self._put_registered(model, here.get(model.name))
                taken[model.name] = set()
                coming += [(model.name, version) for version in versions]
        if self._wishes.dry_run:
            self.summary.versions += len(coming)
            return
        for name, version in plan.in_order(coming):
            with self._tolerating(f"version {version.version} of model '{name}'"):
                self._put_version(name, version)
                taken[name].add(version.version)
        for model in models:
            if model.name in taken:
                with self._tolerating(f"aliases of model '{model.name}'"):
                    self._put_aliases(model, taken[model.name], here.get(model.name))

    def _put_registered(self, model: RegisteredModel, here: RegisteredModel | None) -> None:
        self.summary.models += here is None
        if self._wishes.dry_run:
            return
        if here is None:
            self._server.create_registered_model(model)
        else:
            for key, value in changed_tags(model.tags, here.tags).items():
                self._server.set_model_tag(model.name, key, value)

    def _put_version(self, name: str, version: Version) -> None:
        source = self._places.source_of(version)
        if source is None:
            raise InvalidInput(f"its files are at '{version.source}', in no run or model that was copied")
        self.summary.versions += self._server.put_version(name, version, source).created

    def _put_aliases(self, model: RegisteredModel, taken: set[int], here: RegisteredModel | None) -> None:
        for alias, number in plan.decide_aliases(model, taken, here):
            self._server.set_alias(model.name, alias, number)
        mark = plan.model_mark(model, taken, here)
        if mark != (here.tags.get(MARK_TAG, "") if here else ""):
            self._server.set_model_tag(model.name, MARK_TAG, mark)

    # ---- files -------------------------------------------------------------------------------------------------------

    def _copy_files(self, owner: Owner, location: str) -> bool:
        """Whether all of them are here."""
        there, whole = list(self._source.files(owner)), True
        if not there:
            return whole
        for file in plan.missing_files(there, self._server.files(location)):
            with self._tolerating(f"file {shown(file.path)} of {owner.kind} {owner.id}") as tried:
                self._server.put_file(location, file.path, lambda file=file: self._pieces(owner, file))  # type: ignore[misc]
                with self._lock:
                    self.summary.files += 1
                    self.summary.bytes += file.size_bytes or 0
            whole &= tried.succeeded
        return whole

    def _pieces(self, owner: Owner, file: File) -> Iterator[bytes]:
        try:
            with self._source.reading(owner, file.path) as pieces:
                for piece in pieces:
                    yield piece
                    self._watcher.sent(len(piece))
        except OSError as error:
            raise InvalidInput(f"it cannot be read: {error.strerror or error}") from error

    # ---- order -------------------------------------------------------------------------------------------------------

    def _tolerating(self, what: str) -> _Tolerating:
        return _Tolerating(what, self.summary.problems)

    def _at_once(self, deed: Callable[[_T], None], items: Iterable[_T]) -> None:
        """Several at a time, and no more read ahead than that. What one raises ends it all."""
        with ThreadPoolExecutor(self._wishes.at_once) as pool:
            left: set[Future[None]] = set()
            try:
                for item in items:
                    left.add(pool.submit(deed, item))
                    if len(left) >= self._wishes.at_once * _AHEAD:
                        done, left = wait(left, return_when=FIRST_COMPLETED)
                        _raise_first(done)
                _raise_first(wait(left).done)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


class _Tolerating:
    """What is wrong with one thing is noted, and the others go on. A server that is away or lets nobody in is not."""

    def __init__(self, what: str, problems: list[str]) -> None:
        self._what = what
        self._problems = problems
        self.succeeded = False

    def __enter__(self) -> _Tolerating:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: Any) -> bool:
        self.succeeded = error is None
        if not isinstance(error, WindlassError) or isinstance(error, ServerUnreachable | Unauthorized):
            return False
        self._problems.append(f"{self._what}: {error.message}")
        return True


def _raise_first(done: Iterable[Future[None]]) -> None:
    for future in done:
        future.result()
