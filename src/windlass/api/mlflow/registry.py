"""Calls of the model registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windlass.api.context import Services
from windlass.api.mlflow.calls import Calls
from windlass.api.mlflow.fields import Asked, at_most, items, read_fields, text, texts, whole, yes_or_no
from windlass.registry.naming import read_version
from windlass.registry.service import MOST_MODELS, MOST_VERSIONS
from windlass.registry.types import ModelVersion, NewVersion, RegisteredModel

calls = Calls()

_NAME = text(required=True)
_VERSION = text(required=True)
_TAG = {"key": text(), "value": text()}


# ---- models ----------------------------------------------------------------------------------------------------------


@calls.post("/mlflow/registered-models/create", name=_NAME, tags=items(), description=text())
def create_model(services: Services, asked: Asked) -> Mapping[str, Any]:
    model = services.registry.create_model(
        asked["name"], tags=_read_tags(asked["tags"]), description=asked["description"]
    )
    return {"registered_model": render_model(model)}


@calls.get("/mlflow/registered-models/get", name=_NAME)
def get_model(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"registered_model": render_model(services.registry.get_model(asked["name"]))}


@calls.patch("/mlflow/registered-models/update", name=_NAME, description=text())
def update_model(services: Services, asked: Asked) -> Mapping[str, Any]:
    model = services.registry.update_model(asked["name"], description=asked["description"])
    return {"registered_model": render_model(model)}


@calls.post("/mlflow/registered-models/rename", name=_NAME, new_name=text(required=True))
def rename_model(services: Services, asked: Asked) -> Mapping[str, Any]:
    model = services.registry.rename_model(asked["name"], asked["new_name"])
    return {"registered_model": render_model(model)}


@calls.delete("/mlflow/registered-models/delete", name=_NAME)
def delete_model(services: Services, asked: Asked) -> None:
    services.registry.delete_model(asked["name"])


@calls.get(
    "/mlflow/registered-models/search",
    filter=text(),
    max_results=whole(at_most(MOST_MODELS), empty=100),
    order_by=texts(),
    page_token=text(),
)
def search_models(services: Services, asked: Asked) -> Mapping[str, Any]:
    found, token = services.registry.search_models(
        filter=asked["filter"], orders=asked["order_by"], most=asked["max_results"], token=asked["page_token"]
    )
    return _page("registered_models", [render_model(model) for model in found], token)


def latest_versions(services: Services, asked: Asked) -> Mapping[str, Any]:
    found = services.registry.latest_versions(asked["name"], asked["stages"])
    return {"model_versions": [render_version(version) for version in found]} if found else {}


calls.post("/mlflow/registered-models/get-latest-versions", name=_NAME, stages=texts())(latest_versions)
calls.get("/mlflow/registered-models/get-latest-versions", name=_NAME, stages=texts())(latest_versions)


@calls.post("/mlflow/registered-models/set-tag", name=_NAME, key=text(required=True), value=text())
def set_model_tag(services: Services, asked: Asked) -> None:
    services.registry.set_model_tag(asked["name"], asked["key"], asked["value"])


@calls.delete("/mlflow/registered-models/delete-tag", name=_NAME, key=text(required=True))
def delete_model_tag(services: Services, asked: Asked) -> None:
    services.registry.delete_model_tag(asked["name"], asked["key"])


@calls.post("/mlflow/registered-models/alias", name=_NAME, alias=text(required=True), version=_VERSION)
def set_alias(services: Services, asked: Asked) -> None:
    services.registry.set_alias(asked["name"], asked["alias"], read_version(asked["version"]))


@calls.delete("/mlflow/registered-models/alias", name=_NAME, alias=text(required=True))
def delete_alias(services: Services, asked: Asked) -> None:
    services.registry.delete_alias(asked["name"], asked["alias"])


@calls.get("/mlflow/registered-models/alias", name=_NAME, alias=text(required=True))
def get_version_by_alias(services: Services, asked: Asked) -> Mapping[str, Any]:
    return _one(services.registry.get_version_by_alias(asked["name"], asked["alias"]))


# ---- versions --------------------------------------------------------------------------------------------------------


@calls.post(
    "/mlflow/model-versions/create",
    name=_NAME,
    source=text(required=True),
    run_id=text(),
    tags=items(),
    run_link=text(),
    description=text(),
    model_id=text(),
)
def create_version(services: Services, asked: Asked) -> Mapping[str, Any]:
    new = NewVersion(
        name=asked["name"],
        source=asked["source"],
        run_id=asked["run_id"],
        run_link=asked["run_link"],
        description=asked["description"],
        model_id=asked["model_id"] or None,
        tags=_read_tags(asked["tags"]),
    )
    return _one(services.registry.create_version(new))


@calls.get("/mlflow/model-versions/get", name=_NAME, version=_VERSION)
def get_version(services: Services, asked: Asked) -> Mapping[str, Any]:
    return _one(services.registry.get_version(asked["name"], read_version(asked["version"])))


@calls.patch("/mlflow/model-versions/update", name=_NAME, version=_VERSION, description=text())
def update_version(services: Services, asked: Asked) -> Mapping[str, Any]:
    version = read_version(asked["version"])
    return _one(services.registry.update_version(asked["name"], version, description=asked.or_none("description")))


@calls.post(
    "/mlflow/model-versions/transition-stage",
    name=_NAME,
    version=_VERSION,
    stage=text(required=True),
    archive_existing_versions=yes_or_no(),
)
def move_version(services: Services, asked: Asked) -> Mapping[str, Any]:
    archive = asked["archive_existing_versions"]
    version = read_version(asked["version"])
    return _one(services.registry.move_version(asked["name"], version, asked["stage"], archive_existing=archive))


@calls.delete("/mlflow/model-versions/delete", name=_NAME, version=_VERSION)
def delete_version(services: Services, asked: Asked) -> None:
    services.registry.delete_version(asked["name"], read_version(asked["version"]))


@calls.get("/mlflow/model-versions/get-download-uri", name=_NAME, version=_VERSION)
def get_download_uri(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"artifact_uri": services.registry.download_uri(asked["name"], read_version(asked["version"]))}


@calls.get(
    "/mlflow/model-versions/search",
    filter=text(),
    max_results=whole(at_most(MOST_VERSIONS), empty=MOST_VERSIONS),
    order_by=texts(),
    page_token=text(),
)
def search_versions(services: Services, asked: Asked) -> Mapping[str, Any]:
    found, token = services.registry.search_versions(
        filter=asked["filter"], orders=asked["order_by"], most=asked["max_results"], token=asked["page_token"]
    )
    return _page("model_versions", [render_version(version) for version in found], token)


@calls.post("/mlflow/model-versions/set-tag", name=_NAME, version=_VERSION, key=text(required=True), value=text())
def set_version_tag(services: Services, asked: Asked) -> None:
    services.registry.set_version_tag(asked["name"], read_version(asked["version"]), asked["key"], asked["value"])


@calls.delete("/mlflow/model-versions/delete-tag", name=_NAME, version=_VERSION, key=text(required=True))
def delete_version_tag(services: Services, asked: Asked) -> None:
    services.registry.delete_version_tag(asked["name"], read_version(asked["version"]), asked["key"])


# ---- as JSON ---------------------------------------------------------------------------------------------------------


def render_model(model: RegisteredModel) -> dict[str, Any]:
    return _present(
        name=model.name,
        creation_timestamp=_milliseconds(model.created_at),
        last_updated_timestamp=_milliseconds(model.updated_at),
        description=model.description or None,
        latest_versions=[render_version(version) for version in model.latest] or None,
        tags=_render_tags(model.tags),
        aliases=[{"alias": alias, "version": str(version)} for alias, version in model.aliases.items()] or None,
    )


def render_version(version: ModelVersion) -> dict[str, Any]:
    return _present(
        name=version.name,
        version=str(version.version),
        creation_timestamp=_milliseconds(version.created_at),
        last_updated_timestamp=_milliseconds(version.updated_at),
        current_stage=version.stage.value,
        description=version.description,
        source=version.source,
        run_id=version.run_id,
        status="READY",
        tags=_render_tags(version.tags),
        run_link=version.run_link,
        aliases=list(version.aliases) or None,
    )


def _one(version: ModelVersion) -> dict[str, Any]:
    return {"model_version": render_version(version)}


def _page(name: str, found: list[dict[str, Any]], token: str | None) -> dict[str, Any]:
    return _present(**{name: found or None, "next_page_token": token})


def _read_tags(given: Sequence[Any]) -> dict[str, str]:
    """Of several with one key the last one counts."""
    read = [read_fields(_TAG, tag if isinstance(tag, dict) else {}) for tag in given]
    return {tag["key"]: tag["value"] for tag in read}


def _render_tags(tags: Mapping[str, str]) -> list[dict[str, str]] | None:
    return [{"key": key, "value": value} for key, value in tags.items()] or None


def _milliseconds(at: float) -> int:
    return int(at * 1000)


def _present(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
