"""The server that things are copied to: heads under their own ids and files by its imports API, all else by its MLflow
API. Every call may be repeated."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from windlass.client.transport import Transport
from windlass.core.artifactnames import check_sendable
from windlass.core.errors import InvalidInput
from windlass.core.marks import HERE_TAG, MARK_TAG, unmarked
from windlass.imports import answers
from windlass.imports.histories import together
from windlass.imports.plan import Here, kept_model_id, kept_run_id
from windlass.imports.records import Dataset, LoggedModel, ModelPoint, Point, RegisteredModel, Run, Version

_MLFLOW = "/api/2.0/mlflow"
_FILES = "/api/imports/files"
POINTS_AT_ONCE = 1_000  # what one batch may hold
_MODEL_POINTS_AT_ONCE = 5_000
_PAIRS_AT_ONCE = 100
_OURS = "mlflow-artifacts:/"
_T = TypeVar("_T")


class KnownExperiment(NamedTuple):
    id: str
    deleted: bool
    tags: Mapping[str, str]


class Taken(NamedTuple):
    created: bool
    location: str  # where its artifacts belong


class Destination:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    # ---- experiments and runs ----------------------------------------------------------------------------------------

    def experiments(self) -> dict[str, KnownExperiment]:
        found = self._pages("experiments/search", {"view_type": "ALL", "max_results": 500}, "experiments")
        return {one.name: KnownExperiment(one.id, one.deleted, one.tags) for one in map(answers.read_experiment, found)}

    def create_experiment(self, name: str) -> str:
        return str(self._post("experiments/create", {"name": name})["experiment_id"])

    def set_experiment_tags(self, experiment_id: str, tags: Mapping[str, str]) -> None:
        for key, value in tags.items():
            self._post("experiments/set-experiment-tag", {"experiment_id": experiment_id, "key": key, "value": value})

    def change_experiment(self, experiment_id: str, *, deleted: bool) -> None:
        self._post(f"experiments/{'delete' if deleted else 'restore'}", {"experiment_id": experiment_id})

    def runs(self, experiment_id: str) -> dict[str, Here]:
        asked = {"experiment_ids": [experiment_id], "run_view_type": "ALL", "max_results": 1_000}
        found = map(answers.read_run, self._pages("runs/search", asked, "runs"))
        return {run.id: Here(run.tags.get(MARK_TAG, ""), run.deleted, run.artifact_uri) for run in found}

    def put_run(self, run: Run, experiment_id: str) -> Taken:
        body = {
            "experiment_id": int(experiment_id),
            "name": run.name[:500],
            "user": run.user[:500],
            "status": run.status,
            "start_ms": run.start_ms,
            "end_ms": run.end_ms,
        }
        return self._take(f"/api/imports/runs/{kept_run_id(run.id)}", body)

    def change_run(self, run_id: str, *, deleted: bool) -> None:
        self._post(f"runs/{'delete' if deleted else 'restore'}", {"run_id": run_id})

    def log_pairs(self, run_id: str, what: str, pairs: Mapping[str, str]) -> None:
        """`what`: params or tags."""
        given = [{"key": key, "value": value} for key, value in pairs.items()]
        for some in _parts(given, _PAIRS_AT_ONCE):
            self._post("runs/log-batch", {"run_id": run_id, what: some})

    def log_inputs(self, run_id: str, run: Run) -> None:
        if run.datasets or run.model_inputs:
            models = [{"model_id": kept_model_id(one)} for one in run.model_inputs]
            datasets = [_dataset(one) for one in run.datasets]
            self._post("runs/log-inputs", {"run_id": run_id, "datasets": datasets, "models": models})
        if run.model_outputs:
            made = [{"model_id": kept_model_id(one), "step": step} for one, step in run.model_outputs]
            self._post("runs/outputs", {"run_id": run_id, "models": made})

    @contextmanager
    def marked(self, experiment_id: str) -> Iterator[str]:
        """One of its experiments has this mark meanwhile: whoever reads it there reads this server."""
        mark = secrets.token_hex(16)
        self.set_experiment_tags(experiment_id, {HERE_TAG: mark})
        try:
            yield mark
        finally:
            self._post("experiments/delete-experiment-tag", {"experiment_id": experiment_id, "key": HERE_TAG})

    def histories(self, run_id: str, keys: Iterable[str]) -> Iterator[tuple[str, Iterable[Point]]]:
        def fetch(some: Sequence[str]) -> Mapping[str, Sequence[Point]]:
            path = f"/api/imports/runs/{run_id}/points"
            return answers.read_histories(self._transport.post(path, {"names": list(some)}, repeat=True))

        return together(keys, fetch, lambda key: self.history(run_id, key))

    def history(self, run_id: str, key: str) -> Iterator[Point]:
        asked: dict[str, Any] = {"run_id": run_id, "metric_key": key, "max_results": 100_000}
        while True:
            page = self._transport.get(f"{_MLFLOW}/metrics/get-history", asked)
            yield from map(answers.read_point, page.get("metrics") or ())
            if not (token := page.get("next_page_token")):
                return
            asked["page_token"] = token

    def log_points(self, run_id: str, points: Sequence[tuple[str, Point]]) -> None:
        """Of any metrics, `POINTS_AT_ONCE` at most."""
        metrics = [
            {"key": key, "value": _number(one.value), "timestamp": one.at_ms, "step": one.step} for key, one in points
        ]
        self._post("runs/log-batch", {"run_id": run_id, "metrics": metrics})

    # ---- models ------------------------------------------------------------------------------------------------------

    def put_logged_model(self, model: LoggedModel, experiment_id: str) -> Taken:
        body = {
            "experiment_id": int(experiment_id),
            "name": model.name[:500],
            "status": model.status,
            "status_message": model.status_message,
            "model_type": model.model_type,
            "source_run_id": model.source_run_id and kept_run_id(model.source_run_id),
            "created_ms": model.created_ms,
            "updated_ms": model.updated_ms,
            "params": dict(model.params),
            "tags": dict(model.tags),
        }
        path = f"/api/imports/logged-models/{kept_model_id(model.id)}"
        parts = [[_model_point(one) for one in some] for some in _parts(model.metrics, _MODEL_POINTS_AT_ONCE)]
        taken = [self._take(path, {**body, "metrics": part}) for part in parts or [[]]]
        return taken[0]

    def registered_models(self) -> dict[str, RegisteredModel]:
        """Prompts too; without versions."""
        found: dict[str, RegisteredModel] = {}
        for only in ("", "tags.`mlflow.prompt.is_prompt` = 'true'"):
            asked = {"max_results": 500, **({"filter": only} if only else {})}
            for one in self._pages("registered-models/search", asked, "registered_models", method="GET"):
                found[str(one["name"])] = answers.read_registered_model(one, ())
        return found

    def create_registered_model(self, model: RegisteredModel) -> None:
        tags = [{"key": key, "value": value} for key, value in unmarked(model.tags).items()]
        body = {"name": model.name, "description": model.description or "", "tags": tags}
        self._post("registered-models/create", body)

    def set_model_tag(self, name: str, key: str, value: str) -> None:
        self._post("registered-models/set-tag", {"name": name, "key": key, "value": value})

    def set_alias(self, name: str, alias: str, version: int) -> None:
        self._post("registered-models/alias", {"name": name, "alias": alias, "version": str(version)})

    def put_version(self, name: str, version: Version, source: str) -> Taken:
        body = {
            "name": name,
            "version": version.version,
            "source": source,
            "stage": version.stage,
            "description": version.description,
            "run_id": version.run_id and kept_run_id(version.run_id),
            "run_link": version.run_link,
            "model_id": version.model_id and kept_model_id(version.model_id),
            "created_ms": version.created_ms,
            "updated_ms": version.updated_ms,
            "tags": dict(version.tags),
        }
        return self._take("/api/imports/model-versions", body)

    # ---- files -------------------------------------------------------------------------------------------------------

    def files(self, location: str) -> dict[str, int]:
        """Sizes by path. Raises InvalidInput for a place that the server does not keep."""
        sizes = self._transport.get(_FILES, {"folder": _folder_of(location)})["sizes"]
        return {str(path): int(size) for path, size in sizes.items()}

    def put_file(self, location: str, path: str, chunks: Callable[[], Iterable[bytes]]) -> None:
        """`chunks` is called anew for each try. Not by MLflow's call, which decodes names: `q%20.txt` and `q .txt`
        would be one file."""
        check_sendable(path)
        whole = quote(f"{_folder_of(location)}/{path}")
        self._transport.put(f"{_FILES}/{whole}", chunks, patience_s=3_600.0)

    # ---- calls -------------------------------------------------------------------------------------------------------

    def _take(self, path: str, body: Mapping[str, Any]) -> Taken:
        made = self._transport.post(path, body, repeat=True, patience_s=120.0)
        return Taken(bool(made["created"]), str(made["location"]))

    def _post(self, call: str, body: Mapping[str, Any]) -> dict[str, Any]:
        made: dict[str, Any] = self._transport.post(f"{_MLFLOW}/{call}", body, repeat=True, patience_s=120.0)
        return made

    def _pages(
        self, call: str, asked: Mapping[str, Any], name: str, *, method: str = "POST"
    ) -> Iterator[dict[str, Any]]:
        token = None
        while True:
            wanted = {**asked, **({"page_token": token} if token else {})}
            page = self._transport.get(f"{_MLFLOW}/{call}", wanted) if method == "GET" else self._post(call, wanted)
            yield from page.get(name) or ()
            if not (token := page.get("next_page_token")):
                return


def _folder_of(location: str) -> str:
    if not location.startswith(_OURS):
        raise InvalidInput(
            f"files belong to {location}, which the server does not keep",
            hint="its experiment was made with that place: copy them there yourself, or use --no-artifacts",
        )
    return location.removeprefix(_OURS).strip("/")


def _number(value: float) -> float | str:
    """JSON has no others."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _model_point(one: ModelPoint) -> dict[str, Any]:
    return {
        "key": one.key,
        "value": _number(one.point.value),
        "at_ms": one.point.at_ms,
        "step": one.point.step,
        "run_id": kept_run_id(one.run_id),
        "dataset_name": one.dataset_name,
        "dataset_digest": one.dataset_digest,
    }


def _dataset(one: Dataset) -> dict[str, Any]:
    given = {
        "name": one.name,
        "digest": one.digest,
        "source_type": one.source_type,
        "source": one.source,
        "schema": one.schema,
        "profile": one.profile,
    }
    tags = [{"key": key, "value": value} for key, value in one.tags.items()]
    return {"dataset": {name: value for name, value in given.items() if value is not None}, "tags": tags}


def _parts(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
