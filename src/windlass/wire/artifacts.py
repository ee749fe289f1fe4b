"""HTTP bodies about artifacts."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ArtifactView(BaseModel):
    """A file or a folder. Paths are those within the run."""

    model_config = ConfigDict(frozen=True)

    path: str
    is_dir: bool = False
    size_bytes: int | None = None
    digest: str | None = Field(default=None, description="sha256 of the content; none of what clients put elsewhere")
    created_at: float | None = None


class ModelView(BaseModel):
    """A logged model, which has files of its own."""

    model_config = ConfigDict(frozen=True)

    id: str
    name: str = Field(description="below which its files are found among the run's too")


class ArtifactList(BaseModel):
    model_config = ConfigDict(frozen=True)

    run_id: str = Field(description="or the logged model's, if one was asked for")
    root: str = Field(description="where it keeps its artifacts")
    path: str = Field(description="the folder that was listed")
    files: list[ArtifactView]
    models: list[ModelView] = Field(
        default_factory=list, description="that the run has logged, the newest first; where no folder was asked for"
    )


class UploadRequest(BaseModel):
    path: str = Field(min_length=1, max_length=2_000)


class PartView(BaseModel):
    model_config = ConfigDict(frozen=True)

    number: int
    digest: str
    size_bytes: int


class UploadView(BaseModel):
    """An upload that goes on: the parts that have come need not be sent again."""

    model_config = ConfigDict(frozen=True)

    id: str
    path: str = Field(description="in the tree of all artifacts")
    created_at: float
    parts: list[PartView]


class CompleteRequest(BaseModel):
    digest: str | None = Field(
        default=None, pattern="^[0-9a-f]{64}$", description="what the whole file's sha256 must be"
    )


class Removal(BaseModel):
    model_config = ConfigDict(frozen=True)

    files: int
