"""How many runs may wait: counted in the database, in the transaction that would add one more."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.core.errors import QueueFull
from windlass.db.database import Database
from windlass.runs.service import RunService
from windlass.runs.submission import check_queue
from windlass.scheduling.rules import Rules
from windlass.wire.runs import SubmitRequest


def submit(service: RunService, project: str, user: str | None) -> str:
    request = SubmitRequest(spec={"command": "true", "code": None, "workdir": "/", "project": project})
    return service.submit(request, idempotency_key=None, user=user).id


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({"most_queued_of_project": {"vision": 2}}, "2 runs of project vision wait, and 2 may"),
        ({"most_queued_of_user": 3}, "3 runs of user ada wait, and 3 may"),
        ({"most_queued": 4}, "4 runs in all wait, and 4 may"),
    ],
)
def test_as_many_runs_wait_as_may(service: RunService, database: Database, rules: dict[str, Any], told: str) -> None:
    ids = [submit(service, *run) for run in (("vision", "ada"), ("vision", "ada"), ("speech", "ada"), ("a", "bob"))]
    row = {"project": "vision", "user": "ada"}
    with database.write() as tx, pytest.raises(QueueFull, match=told) as refused:
        check_queue(tx, row, Rules(**rules))
    assert refused.value.code == "queue_full"
    service.cancel(ids[0], grace_s=None)
    with database.write() as tx:
        check_queue(tx, row, Rules(**rules))


def test_limits_of_others_and_runs_of_nobody_are_not_counted(service: RunService, database: Database) -> None:
    submit(service, "vision", "ada")
    with database.write() as tx:
        check_queue(tx, {"project": "speech", "user": "bob"}, Rules(most_queued_of_project={"vision": 1}))
        check_queue(tx, {"project": "speech", "user": None}, Rules(most_queued_of_user=1))
