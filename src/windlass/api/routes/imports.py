"""Routes that take in what another server has kept, under its own ids, numbers and times. Everything that MLflow's API
can say too is left to it: params, tags and metrics follow through that."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from windlass.api.answers import json_of
from windlass.api.context import Context
from windlass.api.mlflow.answers import number
from windlass.api.receiving import receive
from windlass.api.routes.artifacts import TAKES_FILE
from windlass.artifacts.paths import clean_path, file_path
from windlass.artifacts.types import Artifact
from windlass.blobs.contract import Intake
from windlass.experiments.modelsearch import STATUSES
from windlass.experiments.types import LoggedModel, ModelMetric, Pair, RunInfo, Stage
from windlass.registry.types import ModelVersion
from windlass.registry.types import Stage as VersionStage
from windlass.wire import imports as wire

router = APIRouter(prefix="/api/imports", tags=["imports"])

RunId = Annotated[str, Path(pattern="^[0-9a-f]{32}$")]
AnyRunId = Annotated[str, Path(pattern=r"^[^\x00/]{1,200}$")]
ModelId = Annotated[str, Path(pattern="^m-[0-9a-f]{32}$")]


@router.post("/runs/{run_id}")
def put_run(run_id: RunId, head: wire.RunHead, services: Context) -> wire.Taken:
    """A run as MLflow knows it. One that is here is brought up to date; one that was deleted here is refused."""
    given = RunInfo(
        id=run_id,
        experiment_id=head.experiment_id,
        name=head.name,
        user=head.user,
        status=head.status,
        start_ms=head.start_ms,
        end_ms=head.end_ms,
        stage=Stage.ACTIVE,
        artifact_uri="",
    )
    info, created = services.tracked_runs.adopt(given)
    return wire.Taken(id=info.id, created=created, location=info.artifact_uri)


@router.post("/runs/{run_id}/points", response_model=wire.Histories)
def points(run_id: AnyRunId, wanted: wire.Names, services: Context) -> Response:
    """All points of metrics of a run, of ours too: from the first name on as many as fit into one answer. If that is
    none, the first alone is longer than that: MLflow's API tells it in pages."""
    found = services.tracked_runs.all_points(run_id, wanted.names)
    points = {name: [(one.step, one.at_ms, number(one.value)) for one in rows] for name, rows in found.items()}
    return json_of(wire.Histories.model_construct(points=points))


@router.post("/logged-models/{model_id}")
def put_model(model_id: ModelId, head: wire.ModelHead, services: Context) -> wire.Taken:
    """A logged model. One that is here is brought up to date."""
    given = LoggedModel(
        id=model_id,
        experiment_id=head.experiment_id,
        name=head.name,
        artifact_location="",
        created_ms=head.created_ms,
        updated_ms=head.updated_ms,
        status=STATUSES[head.status],
        stage=Stage.ACTIVE,
        model_type=head.model_type,
        source_run_id=head.source_run_id,
        status_message=head.status_message,
        params=[Pair(key, value) for key, value in head.params.items()],
        tags=[Pair(key, value) for key, value in head.tags.items()],
        metrics=[
            ModelMetric(
                key=point.key,
                value=point.value,
                at_ms=point.at_ms,
                step=point.step,
                model_id=model_id,
                run_id=point.run_id,
                dataset_name=point.dataset_name,
                dataset_digest=point.dataset_digest,
            )
            for point in head.metrics
        ],
    )
    location, created = services.logged_models.adopt(given)
    return wire.Taken(id=model_id, created=created, location=location)


@router.post("/model-versions")
def put_version(head: wire.VersionHead, services: Context) -> wire.Taken:
    """A version of a registered model, with its number. Refused if that number is another version's here: one that was
    made at another moment."""
    given = ModelVersion(
        name=head.name,
        version=head.version,
        stage=VersionStage(head.stage),
        description=head.description,
        source=head.source,
        location=None,
        run_id=head.run_id,
        run_link=head.run_link,
        model_id=head.model_id,
        created_at=head.created_ms / 1000,
        updated_at=head.updated_ms / 1000,
        tags=head.tags,
    )
    location, created = services.registry.adopt_version(given)
    return wire.Taken(id=f"{head.name}/{head.version}", created=created, location=location)


@router.get("/files", response_model=wire.Files)
def files(services: Context, folder: Annotated[str, Query(max_length=2_000)]) -> Response:
    """All files below a folder of the tree of all artifacts, where a run's or a model's `location` lies."""
    above = clean_path(folder)
    cut = len(above) + 1 if above else 0
    found = services.artifacts.files_below(above)
    return json_of(wire.Files.model_construct(sizes={one.path[cut:]: one.size_bytes or 0 for one in found}))


@router.put("/files/{path:path}", openapi_extra=TAKES_FILE)
async def put_file(path: str, request: Request, services: Context) -> wire.TakenFile:
    """A file, at a path of the tree of all artifacts. Its name is taken as it is: MLflow's call would decode it."""
    whole = file_path(path)

    def end(intake: Intake) -> Artifact:
        return services.artifacts.put(whole, intake)

    kept = await receive(request, services.artifacts.intake, end)
    return wire.TakenFile(path=kept.path, size_bytes=kept.size_bytes)
