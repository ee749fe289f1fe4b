"""Calls of issues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.api.context import Services
from windlass.api.mlflow.calls import Calls
from windlass.api.mlflow.fields import Asked, text, texts, whole, yes_or_no
from windlass.evaluation.issues import Issue

calls = Calls()


@calls.post(
    "/mlflow/issues",
    3,
    experiment_id=text(required=True),
    name=text(required=True),
    description=text(required=True),
    status=text(),
    severity=text(),
    root_causes=texts(),
    categories=texts(),
    source_run_id=text(),
    created_by=text(),
)
def create(services: Services, asked: Asked) -> Mapping[str, Any]:
    issue = services.issues.create(
        experiment_id=asked["experiment_id"],
        name=asked["name"],
        description=asked["description"],
        status=asked.or_none("status"),
        severity=asked.or_none("severity"),
        root_causes=asked["root_causes"],
        categories=asked["categories"],
        source_run_id=asked["source_run_id"] or None,
        created_by=asked["created_by"] or None,
    )
    return {"issue": _issue(issue)}


@calls.post(
    "/mlflow/issues/search",
    3,
    experiment_id=text(),
    filter_string=text(),
    max_results=whole(),
    page_token=text(),
    include_trace_count=yes_or_no(),
)
def search(services: Services, asked: Asked) -> Mapping[str, Any]:
    found, token = services.issues.search(
        experiment_id=asked["experiment_id"] or None,
        filter=asked["filter_string"],
        limit=asked.or_none("max_results"),
        token=asked["page_token"],
        count_traces=asked["include_trace_count"],
    )
    return {"issues": [_issue(one) for one in found], "next_page_token": token or ""}


@calls.get("/mlflow/issues/{issue_id}", 3, issue_id=text())
def get(services: Services, asked: Asked) -> Mapping[str, Any]:
    return {"issue": _issue(services.issues.get(asked["issue_id"]))}


@calls.patch(
    "/mlflow/issues/{issue_id}",
    3,
    issue_id=text(required=True),
    name=text(),
    description=text(),
    status=text(),
    severity=text(),
)
def update(services: Services, asked: Asked) -> Mapping[str, Any]:
    issue = services.issues.update(
        asked["issue_id"],
        name=asked["name"] or None,
        description=asked["description"] or None,
        status=asked.or_none("status"),
        severity=asked.or_none("severity"),
    )
    return {"issue": _issue(issue)}


def _issue(one: Issue) -> dict[str, Any]:
    optional = {
        "severity": one.severity,
        "root_causes": list(one.root_causes) or None,
        "source_run_id": one.source_run_id,
        "created_by": one.created_by,
        "categories": list(one.categories) or None,
        "trace_count": one.trace_count,
    }
    return {
        "issue_id": one.id,
        "experiment_id": str(one.experiment_id),
        "name": one.name,
        "description": one.description,
        "status": one.status,
        "created_timestamp": one.created_ms,
        "last_updated_timestamp": one.updated_ms,
        **{name: value for name, value in optional.items() if value is not None},
    }
