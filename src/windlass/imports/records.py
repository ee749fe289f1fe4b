"""What readers give: experiments, runs, models and files as another tool has kept them; and what a reader can do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol


class Point(NamedTuple):
    """Of one metric. The value may be NaN or infinite."""

    step: int
    at_ms: int
    value: float


class File(NamedTuple):
    path: str  # below its owner's folder
    size_bytes: int | None


class Owner(NamedTuple):
    """Whose files are meant. `place` is what the reader knows it by: a folder, or nothing."""

    kind: Literal["run", "model"]
    id: str
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    id: str
    name: str
    deleted: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    name: str
    digest: str
    source_type: str = ""
    source: str = ""
    schema: str | None = None
    profile: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    id: str
    name: str
    user: str = ""
    status: str = "FINISHED"
    start_ms: int | None = None
    end_ms: int | None = None
    deleted: bool = False
    artifact_uri: str = ""
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, Point] = field(default_factory=dict)  # the latest of each
    datasets: Sequence[Dataset] = ()
    model_inputs: Sequence[str] = ()
    model_outputs: Sequence[tuple[str, int]] = ()  # model, step
    files: Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPoint:
    key: str
    point: Point
    run_id: str
    dataset_name: str | None = None
    dataset_digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedModel:
    id: str
    name: str
    status: str
    created_ms: int
    updated_ms: int
    artifact_uri: str = ""
    status_message: str | None = None
    model_type: str | None = None
    source_run_id: str | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    metrics: Sequence[ModelPoint] = ()
    files: Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    version: int
    source: str
    stage: str = "None"
    description: str | None = None
    run_id: str | None = None
    run_link: str | None = None
    model_id: str | None = None
    created_ms: int = 0
    updated_ms: int = 0
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredModel:
    name: str
    description: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, int] = field(default_factory=dict)
    versions: Sequence[Version] = ()


class Source(Protocol):
    """Reads what a tool has kept; any number of threads may. Raises ServerUnreachable, Unauthorized, InvalidInput."""

    @property
    def address(self) -> str: ...

    def is_windlass(self) -> bool:
        """Whether it is a server of ours."""
        ...

    def experiments(self, *, deleted: bool) -> Iterator[Experiment]: ...

    def runs(self, experiment: Experiment, *, deleted: bool) -> Iterator[Run]: ...

    def whole(self, run: Run) -> Run:
        """With inputs and outputs that `runs` may have left out."""
        ...

    def history(self, run: Run, key: str) -> Iterator[Point]:
        """All points of a metric, in no order that counts."""
        ...

    def histories(self, run: Run) -> Iterator[tuple[str, Iterable[Point]]]:
        """Of all its metrics, one after the other."""
        ...

    def logged_models(self, experiment: Experiment) -> Iterator[LoggedModel]: ...

    def registered_models(self) -> Iterator[RegisteredModel]: ...

    def files(self, owner: Owner) -> Iterator[File]: ...

    def reading(self, owner: Owner, path: str) -> AbstractContextManager[Iterator[bytes]]:
        """The content of a file, in pieces as they come."""
        ...

    def close(self) -> None: ...
