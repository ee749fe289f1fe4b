"""Reads an `mlruns` folder, as MLflow's file store writes it: a folder for each experiment, run and model with a
`meta.yaml`, and a file for each param, tag and metric. Needs no MLflow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import yaml

from windlass.core.errors import InvalidInput
from windlass.imports.answers import read_version
from windlass.imports.records import (
    Dataset,
    Experiment,
    File,
    LoggedModel,
    ModelPoint,
    Owner,
    Point,
    RegisteredModel,
    Run,
    Version,
)

_META = "meta.yaml"
_TRASH = ".trash"
_MODELS = "models"
_PIECE_BYTES = 1 << 20
_RUN_STATUSES = {1: "RUNNING", 2: "SCHEDULED", 3: "FINISHED", 4: "FAILED", 5: "KILLED"}
_MODEL_STATUSES = {1: "PENDING", 2: "READY", 3: "FAILED"}
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it is there


class FolderSource:
    def __init__(self, folder: Path) -> None:
        """Raises InvalidInput for a folder that is none of MLflow's."""
        self._root = _find_root(folder)

    @property
    def address(self) -> str:
        return self._root.as_uri()

    def close(self) -> None:
        pass

    # ---- records -----------------------------------------------------------------------------------------------------

    def is_windlass(self) -> bool:
        return False

    def experiments(self, *, deleted: bool) -> Iterator[Experiment]:
        for above in (self._root, self._root / _TRASH) if deleted else (self._root,):
            for folder in _folders(above):
                meta = _read_meta(folder)
                if not meta or "experiment_id" not in meta:
                    continue
                gone = above.name == _TRASH or meta.get("lifecycle_stage") == "deleted"
                if gone and not deleted:
                    continue
                tags = _texts(folder / "tags")
                yield Experiment(id=folder.name, name=str(meta["name"]), deleted=gone, tags=tags)

    def runs(self, experiment: Experiment, *, deleted: bool) -> Iterator[Run]:
        folder = self._experiment(experiment)
        for one in _folders(folder):
            meta = _read_meta(one)
            if not meta or not (meta.get("run_id") or meta.get("run_uuid")):
                continue
            run = _run(one, folder, meta)
            if deleted or not run.deleted:
                yield run

    def whole(self, run: Run) -> Run:
        return run

    def history(self, run: Run, key: str) -> Iterator[Point]:
        file = Path(run.files.place) / "metrics" / key
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n") and (point := _point(line)):  # else somebody is writing it
                    yield point

    def histories(self, run: Run) -> Iterator[tuple[str, Iterator[Point]]]:
        return ((key, self.history(run, key)) for key in run.metrics)

    def logged_models(self, experiment: Experiment) -> Iterator[LoggedModel]:
        for folder in _folders(self._experiment(experiment) / _MODELS):
            meta = _read_meta(folder)
            if meta and meta.get("lifecycle_stage") != "deleted":
                yield _logged_model(folder, meta)

    def registered_models(self) -> Iterator[RegisteredModel]:
        for folder in _folders(self._root / _MODELS):
            if meta := _read_meta(folder):
                aliases = {name: int(text) for name, text in _texts(folder / "aliases").items() if text.isdecimal()}
                found = [_version(one) for one in _folders(folder) if one.name.startswith("version-")]
                yield RegisteredModel(
                    name=str(meta["name"]),
                    description=meta.get("description") or None,
                    tags=_texts(folder / "tags"),
                    aliases=aliases,
                    versions=sorted((one for one in found if one), key=lambda one: one.version),
                )

    # ---- files -------------------------------------------------------------------------------------------------------

    def files(self, owner: Owner) -> Iterator[File]:
        root = self._artifacts(owner)
        for file in sorted(root.rglob("*")) if root.is_dir() else ():
            if file.is_file():
                yield File(file.relative_to(root).as_posix(), file.stat().st_size)

    @contextmanager
    def reading(self, owner: Owner, path: str) -> Iterator[Iterator[bytes]]:
        try:
            file = (self._artifacts(owner) / path).open("rb")
        except OSError as error:
            raise InvalidInput(f"file '{path}' of {owner.kind} {owner.id} cannot be read: {error.strerror}") from error
        with file:
            yield iter(lambda: file.read(_PIECE_BYTES), b"")

    def _artifacts(self, owner: Owner) -> Path:
        """Where they are now: folders are moved, and what they say of themselves stays as it was."""
        here = Path(owner.place) / "artifacts"
        if here.is_dir():
            return here
        meta = _read_meta(Path(owner.place)) or {}
        said = str(meta.get("artifact_uri") or meta.get("artifact_location") or "")
        split = urlsplit(said)
        if split.scheme not in ("", "file"):
            raise InvalidInput(
                f"files of {owner.kind} {owner.id} are at {said}, which is not in the folder",
                hint="start `mlflow server` on the folder, with access to them, and import from its address",
            )
        return Path(url2pathname(split.path)) if said else here

    def _experiment(self, experiment: Experiment) -> Path:
        found = self._root / experiment.id
        return found if found.is_dir() else self._root / _TRASH / experiment.id


def _find_root(folder: Path) -> Path:
    folder = folder.expanduser().absolute()
    if not folder.exists():
        raise InvalidInput(f"there is no folder '{folder}'", hint="give a folder `mlruns`, or the address of a server")
    for root in (folder, folder / "mlruns"):
        if root.is_dir() and any(_is_experiment(one) for one in (*_folders(root), *_folders(root / _TRASH))):
            return root
    hint = "give the folder that has a folder for each experiment, mostly called `mlruns`"
    if next(folder.glob("*.db"), None) if folder.is_dir() else None:
        hint = "there is a database in it: start `mlflow server` on that, and give its address"
    raise InvalidInput(f"'{folder}' is not a folder of MLflow's: no experiment is in it", hint=hint)


def _is_experiment(folder: Path) -> bool:
    return "experiment_id" in (_read_meta(folder) or {})


def _run(folder: Path, experiment: Path, meta: Mapping[str, Any]) -> Run:
    tags = _texts(folder / "tags")
    status = meta.get("status")
    datasets, models = _inputs(folder, experiment)
    run_id = str(meta.get("run_id") or meta["run_uuid"])
    return Run(
        id=run_id,
        name=str(meta.get("run_name") or tags.get("mlflow.runName") or ""),
        user=str(meta.get("user_id") or ""),
        status=_RUN_STATUSES.get(status, "FINISHED") if isinstance(status, int) else str(status or "FINISHED"),
        start_ms=meta.get("start_time"),
        end_ms=meta.get("end_time"),
        deleted=meta.get("lifecycle_stage") == "deleted",
        artifact_uri=str(meta.get("artifact_uri") or ""),
        params=_texts(folder / "params"),
        tags=tags,
        metrics=_latest(folder / "metrics"),
        datasets=datasets,
        model_inputs=models,
        model_outputs=[
            (str(found["destination_id"]), int(found.get("step") or 0))
            for one in _folders(folder / "outputs")
            if (found := _read_meta(one))
        ],
        files=Owner("run", run_id, str(folder)),
    )


def _inputs(folder: Path, experiment: Path) -> tuple[list[Dataset], list[str]]:
    datasets, models = [], []
    for one in _folders(folder / "inputs"):
        found = _read_meta(one) or {}
        if found.get("source_type") == "MODEL":
            models.append(str(found["source_id"]))
        elif found.get("source_type") == "DATASET":
            data = _read_meta(experiment / "datasets" / str(found["source_id"]))
            if data:
                names = ("name", "digest", "source_type", "source", "schema", "profile")
                given = {name: data.get(name) for name in names}
                datasets.append(Dataset(**given, tags=found.get("tags") or {}))  # type: ignore[arg-type]
    return datasets, models


def _logged_model(folder: Path, meta: Mapping[str, Any]) -> LoggedModel:
    created = int(meta.get("creation_timestamp") or 0)
    return LoggedModel(
        id=str(meta["model_id"]),
        name=str(meta.get("name") or meta["model_id"]),
        status=_MODEL_STATUSES.get(meta.get("status") or 0, "UNSPECIFIED"),
        status_message=meta.get("status_message"),
        created_ms=created,
        updated_ms=int(meta.get("last_updated_timestamp") or created),
        artifact_uri=str(meta.get("artifact_location") or ""),
        model_type=meta.get("model_type"),
        source_run_id=meta.get("source_run_id"),
        params=_texts(folder / "params"),
        tags=_texts(folder / "tags"),
        metrics=list(_model_points(folder / "metrics")),
        files=Owner("model", str(meta["model_id"]), str(folder)),
    )


def _model_points(folder: Path) -> Iterator[ModelPoint]:
    for key, file in _leaves(folder):
        for line in file.read_text(encoding="utf-8").splitlines():
            words = line.split(" ")
            if (point := _point(" ".join(words[:3]))) and len(words) >= 4:
                data = (words[4], words[5]) if len(words) == 6 else (None, None)
                yield ModelPoint(key=key, point=point, run_id=words[3], dataset_name=data[0], dataset_digest=data[1])


def _version(folder: Path) -> Version | None:
    meta = _read_meta(folder)
    if not meta or meta.get("current_stage") == "Deleted_Internal":
        return None
    return read_version(meta, _texts(folder / "tags"))


def _latest(folder: Path) -> dict[str, Point]:
    """Of each metric the last line, which tells whether anything has come: the greatest is found by who reads all."""
    found = {}
    for key, file in _leaves(folder):
        if point := _point(_last_line(file)):
            found[key] = point
    return found


def _last_line(file: Path) -> str:
    with file.open("rb") as content:
        content.seek(0, 2)
        content.seek(max(0, content.tell() - 4_096))
        lines = content.read().decode("utf-8", "replace").splitlines()
    return lines[-1] if lines else ""


def _point(line: str) -> Point | None:
    """`time value [step]`. None for a line that is none."""
    words = line.split()
    with contextlib.suppress(ValueError):
        if len(words) in (2, 3, 5):
            return Point(int(words[2]) if len(words) > 2 else 0, int(words[0]), float(words[1]))
    return None


def _texts(folder: Path) -> dict[str, str]:
    return {key: file.read_text(encoding="utf-8", errors="replace") for key, file in _leaves(folder)}


def _leaves(folder: Path) -> Iterator[tuple[str, Path]]:
    """Names may hold slashes, and are folders then."""
    for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if file.is_file():
            yield file.relative_to(folder).as_posix(), file


def _folders(above: Path) -> list[Path]:
    return sorted(one for one in above.iterdir() if one.is_dir()) if above.is_dir() else []


def _read_meta(folder: Path) -> dict[str, Any] | None:
    """None if there is none that can be read: one half written, or another tool's."""
    try:
        found = yaml.load((folder / _META).read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None
    return found if isinstance(found, dict) else None
