"""How many runs may wait: counted in the database, in the transaction that would add one more."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.blobs.local import LocalBlobs
from windlass.core.errors import QueueFull
from windlass.db.database import Database
from windlass.runs.sealing import Seal
from windlass.runs.service import RunService
from windlass.runs.submission import check_queue
from windlass.scheduling.rules import Rules
from windlass.tenancy.prices import PriceBook
from windlass.testing.clock import FakeClock
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


def test_a_run_that_is_resumed_waits_again_and_counts(
    database: Database, blobs: LocalBlobs, seal: Seal, clock: FakeClock
) -> None:
    rules = Rules(most_queued_of_project={"vision": 1})
    service = RunService(
        database, blobs, seal, clock, prices=PriceBook(), runs_dir=None, nudge=lambda: None, rules=rules
    )
    first = submit(service, "vision", "ada")
    service.cancel(first, grace_s=None)
    second = submit(service, "vision", "ada")
    with pytest.raises(QueueFull, match="1 run of project vision waits, and 1 may"):
        service.resume(first)
    assert service.view(first).state == "cancelled"
    service.cancel(second, grace_s=None)
    assert service.resume(first).state == "queued"
