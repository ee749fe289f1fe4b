"""What is kept of a spec, and how a copy of it is changed."""

from __future__ import annotations

from windlass.runs.submission import changed_spec, stored_spec
from windlass.wire.spec import RunSpec


def test_keys_that_were_not_given_are_not_kept_unless_every_version_knows_them() -> None:
    stored = stored_spec(RunSpec(script="train.py", params={"bias": None}))
    assert {"plan", "recipe", "roles", "framework", "checkpoint"}.isdisjoint(stored)
    assert stored["params"] == {"bias": None}
    assert stored["seed"] is None


def test_what_is_kept_is_read_as_what_was_given() -> None:
    for spec in (
        RunSpec(command="true", code=None),
        RunSpec(recipe="gpt", plan="data=2"),
        RunSpec(script="train.py", checkpoint={"every": "10m"}, roles={}, retry=None),
    ):
        assert RunSpec.model_validate(stored_spec(spec)) == spec


def test_a_key_that_was_not_given_can_be_set_in_a_copy() -> None:
    stored = stored_spec(RunSpec(script="train.py"))
    assert changed_spec(stored, {"checkpoint.every": "5m"}, None)["checkpoint"] == {"every": "5m"}
    assert changed_spec(stored, {"plan": "data=2"}, "b")["plan"] == "data=2"
