"""HTTP bodies about what another server has kept before: runs, logged models and versions that keep their ids, numbers
and times."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from windlass.core.storable import is_storable

_MOST = 10_000  # params, tags or metrics of one model


def _storable(text: str) -> str:
    if not is_storable(text):
        raise ValueError("it has a NUL or half of a surrogate pair, which no database can keep")
    return text


Line = Annotated[str, Field(max_length=500), AfterValidator(_storable)]
Words = Annotated[str, Field(max_length=100_000), AfterValidator(_storable)]
Moment = Annotated[int, Field(ge=0, lt=2**53, description="milliseconds since the epoch")]
Experiment = Annotated[int, Field(ge=0, lt=2**31)]
Whole = Annotated[int, Field(gt=-(2**63), lt=2**63)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class RunHead(_Body):
    """What is known of a run besides what was logged to it."""

    experiment_id: Experiment
    name: Line = ""
    user: Line = ""
    status: Literal["RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED"]
    start_ms: Moment | None = None
    end_ms: Moment | None = None


class Names(_Body):
    names: list[str] = Field(max_length=2_000)


class Histories(BaseModel):
    """Of metrics, each point as step, milliseconds and value; values also `NaN`, `Infinity`, `-Infinity`, as text."""

    points: dict[str, list[tuple[int, int, float | str]]]


class ModelPoint(_Body):
    key: Annotated[Line, Field(max_length=250)]
    value: float = Field(description="also `NaN`, `Infinity`, `-Infinity`, as text")
    at_ms: Moment
    step: Whole = 0
    run_id: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    dataset_name: Line | None = None
    dataset_digest: Annotated[Line, Field(max_length=36)] | None = None


class ModelHead(_Body):
    """A logged model, with all that is known of it but its files."""

    experiment_id: Experiment
    name: Annotated[Line, Field(min_length=1)]
    status: Literal["UNSPECIFIED", "PENDING", "READY", "FAILED"]
    status_message: Words | None = None
    model_type: Line | None = None
    source_run_id: Line | None = None
    created_ms: Moment
    updated_ms: Moment
    params: dict[Annotated[Line, Field(max_length=250)], Words] = Field(default_factory=dict, max_length=_MOST)
    tags: dict[Annotated[Line, Field(max_length=250)], Words] = Field(default_factory=dict, max_length=_MOST)
    metrics: list[ModelPoint] = Field(default_factory=list, max_length=_MOST)


class VersionHead(_Body):
    """A version of a registered model that is there."""

    name: Annotated[Words, Field(max_length=256)]
    version: Annotated[int, Field(ge=1, lt=2**31)]
    source: Annotated[Words, Field(min_length=1)]
    stage: Literal["None", "Staging", "Production", "Archived"] = "None"
    description: Words | None = None
    run_id: Annotated[Words, Field(max_length=256)] | None = None
    run_link: Words | None = None
    model_id: Annotated[Words, Field(max_length=64)] | None = None
    created_ms: Moment
    updated_ms: Moment
    tags: dict[Annotated[Line, Field(max_length=250)], Words] = Field(default_factory=dict, max_length=_MOST)


class Taken(BaseModel):
    """What became of it."""

    model_config = ConfigDict(frozen=True)

    id: str
    created: bool = Field(description="false: it was here, and was brought up to date")
    location: str = Field(description="where its artifacts belong")


class Files(BaseModel):
    """Of a folder, and of the folders in it."""

    model_config = ConfigDict(frozen=True)

    sizes: dict[str, int] = Field(description="in bytes, by path below the folder")


class TakenFile(BaseModel):
    model_config = ConfigDict(frozen=True)

    path: str = Field(description="in the tree of all artifacts")
    size_bytes: int
