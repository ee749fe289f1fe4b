"""Routes of artifacts: the files of a run, whole or in ranges, and uploads that go on where they broke off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from windlass.api.context import Context, Services
from windlass.api.downloads import send
from windlass.api.holdings import content, entries, find_holding, find_run
from windlass.api.mlflow.filenames import download_headers
from windlass.api.receiving import put_together, receive
from windlass.api.routes.runs import Ref
from windlass.artifacts.locations import Ours, locate
from windlass.artifacts.paths import clean_path, file_path, joined
from windlass.artifacts.types import Artifact, Entry, Part, Upload
from windlass.blobs.contract import Intake
from windlass.core.errors import Conflict, NotFound
from windlass.wire import artifacts as wire

router = APIRouter(prefix="/api", tags=["artifacts"])

_FILE = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
TAKES_FILE: dict[str, Any] = {"requestBody": _FILE}
_ANY_FILE = {"content": {"*/*": {"schema": {"type": "string", "format": "binary"}}}}  # its name tells the type
_GIVES_FILE: dict[int | str, dict[str, Any]] = {
    200: {"description": "the file", **_ANY_FILE},
    206: {"description": "the range of it that was asked for", **_ANY_FILE},
    304: {"description": "the client has it already"},
    416: {"description": "there is nothing at that place"},
}
UploadId = Annotated[str, Path(min_length=1, max_length=64, pattern="^[0-9a-f]+$")]
Number = Annotated[int, Path(ge=1, le=10_000)]


@router.get("/runs/{ref}/artifacts")
def list_artifacts(
    ref: Ref,
    services: Context,
    path: Annotated[str, Query(max_length=2_000, description="a folder; by default the outermost")] = "",
    recursive: Annotated[bool, Query(description="all files below it, rather than what lies right in it")] = False,
) -> wire.ArtifactList:
    """What a run or a logged model (`m-…`) has, by path. Below the name of a model that a run has logged its files are
    among the run's."""
    found = find_holding(services.db, ref, path)
    files = [_view(entry) for entry in entries(services.artifact_places, found, path, recursive=recursive)]
    models = [wire.ModelView(id=model.id, name=model.name) for model in (() if path else found.models)]
    return wire.ArtifactList(run_id=found.id, root=found.root, path=clean_path(path), files=files, models=models)


@router.head("/runs/{ref}/artifacts/{path:path}", include_in_schema=False)
@router.get("/runs/{ref}/artifacts/{path:path}", response_class=Response, responses=_GIVES_FILE)
async def download(ref: Ref, path: str, request: Request, services: Context) -> Response:
    """A file of either. `Range`, `If-Range` and `If-None-Match` work; the ETag is the content's sha256."""

    def find() -> Any:
        return content(services.artifact_places, find_holding(services.db, ref, path), path)

    found = await run_in_threadpool(find)
    return await send(request, found, download_headers(found.name))


@router.put("/runs/{ref}/artifacts/{path:path}", openapi_extra=TAKES_FILE)
async def upload(ref: Ref, path: str, request: Request, services: Context) -> wire.ArtifactView:
    """Put a file; one that is there is replaced. It appears when all of it is on disk."""
    whole = await run_in_threadpool(_own_path, services, ref, path)

    def end(intake: Intake) -> Artifact:
        with _told_as(whole, path):
            return services.artifacts.put(whole, intake)

    kept = await receive(request, services.artifacts.intake, end)
    return _kept(kept, path)


@router.delete("/runs/{ref}/artifacts/{path:path}")
def remove(ref: Ref, path: str, services: Context) -> wire.Removal:
    """Delete a file, or a folder and all that is in it."""
    count = services.artifacts.delete(_own_path(services, ref, path))
    if not count:
        raise NotFound(f"there is no artifact '{path}'")
    return wire.Removal(files=count)


@router.post("/runs/{ref}/artifact-uploads", status_code=201)
def begin_upload(ref: Ref, request: wire.UploadRequest, services: Context) -> wire.UploadView:
    """Begin to send a file in parts, in any order and number of tries. What gets no part for a week is given up."""
    return _upload(services.uploads.begin(_own_path(services, ref, request.path)))


@router.get("/artifact-uploads/{upload_id}")
def show_upload(upload_id: UploadId, services: Context) -> wire.UploadView:
    """Which parts have come."""
    return _upload(services.uploads.load(upload_id))


@router.put("/artifact-uploads/{upload_id}/parts/{number}", openapi_extra=TAKES_FILE)
async def put_part(upload_id: UploadId, number: Number, request: Request, services: Context) -> wire.PartView:
    """Send a part; the same number again replaces it. The file is its parts in the order of their numbers."""
    await run_in_threadpool(services.uploads.check_awaited, upload_id, number)

    def end(intake: Intake) -> Part:
        return services.uploads.put_part(upload_id, number, intake)

    return _part(await receive(request, services.artifacts.intake, end))


@router.post("/artifact-uploads/{upload_id}/complete")
async def complete_upload(
    upload_id: UploadId, http: Request, services: Context, request: wire.CompleteRequest | None = None
) -> wire.ArtifactView:
    """Make the file of its parts; with `digest`, only if that is what they make."""
    digest = request.digest if request else None
    kept = await put_together(http, partial(services.uploads.complete, upload_id, digest=digest))
    return _kept(kept, kept.path)


@router.delete("/artifact-uploads/{upload_id}", status_code=204)
def abort_upload(upload_id: UploadId, services: Context) -> None:
    services.uploads.abort(upload_id)


def _own_path(services: Services, ref: str, path: str) -> str:
    """Where in our tree a file of a run belongs. Raises Conflict for runs whose files are elsewhere."""
    with services.db.read() as tx:
        root = find_run(tx, ref).root
    match locate(root):
        case Ours(folder):
            return joined(folder, file_path(path))
    raise Conflict(f"the artifacts of '{ref}' are kept at {root}, not by this server", hint="put and remove them there")


@contextmanager
def _told_as(whole: str, path: str) -> Iterator[None]:
    """Where a run's files are in our tree means nothing to who sends one."""
    try:
        yield
    except Conflict as error:
        root = whole.removesuffix(clean_path(path))
        raise Conflict(error.message.replace(f"'{root}", "'") if root else error.message, hint=error.hint) from None


def _view(entry: Entry) -> wire.ArtifactView:
    return wire.ArtifactView(
        path=entry.path,
        is_dir=entry.is_dir,
        size_bytes=entry.size_bytes,
        digest=entry.digest,
        created_at=entry.created_at,
    )


def _kept(kept: Artifact, path: str) -> wire.ArtifactView:
    return wire.ArtifactView(
        path=clean_path(path), size_bytes=kept.size_bytes, digest=kept.digest, created_at=kept.created_at
    )


def _part(part: Part) -> wire.PartView:
    return wire.PartView(number=part.number, digest=part.digest, size_bytes=part.size_bytes)


def _upload(upload: Upload) -> wire.UploadView:
    parts = [_part(part) for part in upload.parts]
    return wire.UploadView(id=upload.id, path=upload.path, created_at=upload.created_at, parts=parts)
