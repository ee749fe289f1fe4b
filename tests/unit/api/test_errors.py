from __future__ import annotations

import pytest

import windlass.controller.lease
import windlass.runs.store
from windlass.api.errors import STATUS, status_of
from windlass.core import errors


def tree(root: type[errors.WindlassError]) -> list[type[errors.WindlassError]]:
    return [root, *(found for child in root.__subclasses__() for found in tree(child))]


# An engine's own errors never reach a user: it says what they mean in ours. MLflow's API has answers of its own.
ELSEWHERE = ("windlass.engines.", "windlass.api.mlflow.")
ALL = [cls for cls in tree(errors.WindlassError) if not cls.__module__.startswith(ELSEWHERE)]


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_error_has_a_status(cls: type[errors.WindlassError]) -> None:
    error = cls(["a problem"]) if issubclass(cls, errors.InvalidSpec) else cls("a problem")
    assert 400 <= status_of(error) < 600


def test_what_a_user_did_wrong_is_never_a_server_error() -> None:
    for cls in [*tree(errors.InvalidInput), *tree(errors.NotFound), *tree(errors.Ambiguous), *tree(errors.Conflict)]:
        error = cls(["a problem"]) if issubclass(cls, errors.InvalidSpec) else cls("a problem")
        assert status_of(error) < 500


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidSpec(["x"]), 422),
        (errors.CannotFit("x"), 422),
        (errors.TooLarge("x"), 413),
        (errors.NotFound("x"), 404),
        (errors.Ambiguous("x"), 409),
        (errors.IdempotencyMismatch("x"), 409),
        (windlass.runs.store.ChangedMeanwhile("x"), 409),
        (windlass.controller.lease.LeaseLost("x"), 409),
        (errors.Unauthorized("x"), 401),
        (errors.Unavailable("x"), 503),
        (errors.StorageFull("x"), 507),
        (errors.WindlassError("x"), 500),
    ],
)
def test_the_nearest_ancestor_decides(error: errors.WindlassError, status: int) -> None:
    assert status_of(error) == status


def test_every_status_in_use_is_documented() -> None:
    from windlass.api.app import _ERRORS

    assert {status for status in STATUS.values() if status != 500} <= set(_ERRORS)
