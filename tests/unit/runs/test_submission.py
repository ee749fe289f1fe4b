"""What is kept of a spec, and how a copy of it is changed."""

from __future__ import annotations

import pytest

from windlass.core.errors import InvalidSpec
from windlass.runs.submission import changed_spec, fill_checkpoint, stored_spec
from windlass.wire.checkpoints import CheckpointSpec
from windlass.wire.spec import RunSpec, parse_spec


def test_keys_that_were_not_given_are_not_kept_unless_every_version_knows_them() -> None:
    stored = stored_spec(RunSpec(script="train.py", params={"bias": None}))
    assert {"plan", "recipe", "roles", "framework", "checkpoint", "hang"}.isdisjoint(stored)
    assert stored["params"] == {"bias": None}
    assert stored["seed"] is None
    assert stored_spec(RunSpec(script="x", checkpoint={"keep": 2}))["checkpoint"] == {"keep": 2, "best_is": "lowest"}


def test_what_is_kept_is_read_as_what_was_given() -> None:
    for spec in (
        RunSpec(command="true", code=None),
        RunSpec(recipe="gpt", plan="data=2"),
        RunSpec(script="train.py", hang="off"),
        RunSpec(script="train.py", hang="15m"),
        RunSpec(script="train.py", checkpoint={"every": "10m"}, roles={}, retry=None),
    ):
        assert RunSpec.model_validate(stored_spec(spec)) == spec


def test_a_key_that_was_not_given_can_be_set_in_a_copy() -> None:
    stored = stored_spec(RunSpec(script="train.py"))
    assert changed_spec(stored, {"checkpoint.every": "5m"}, None)["checkpoint"] == {"every": "5m"}
    assert changed_spec(stored, {"plan": "data=2"}, "b")["plan"] == "data=2"


def test_a_project_says_what_its_runs_do_about_checkpoints() -> None:
    wanted = {"compress": "zstd", "keep": 5, "best": "acc", "best_is": "highest"}
    usual = {"vision": CheckpointSpec.model_validate(wanted)}
    plain = parse_spec({"command": "x"})
    assert fill_checkpoint(plain, usual) is plain
    filled = fill_checkpoint(parse_spec({"command": "x", "project": "vision", "checkpoint": {"keep": 2}}), usual)
    assert filled.checkpoint is not None
    assert filled.checkpoint.model_dump(mode="json", exclude_none=True) == {**wanted, "keep": 2}
    assert filled.model_dump(exclude={"checkpoint"}) == parse_spec({"command": "x", "project": "vision"}).model_dump(
        exclude={"checkpoint"}
    )
    secret = {"vision": CheckpointSpec(encrypt=True)}
    with pytest.raises(InvalidSpec, match="needs the key"):
        fill_checkpoint(parse_spec({"command": "x", "project": "vision"}), secret)
    watching = {"command": "x", "project": "vision", "secrets": ["WINDLASS_CHECKPOINT_KEY"]}
    with pytest.raises(InvalidSpec, match="`encrypt` is wanted"):
        fill_checkpoint(parse_spec({**watching, "checkpoint": {"watch": "*.pt"}}), secret)
    assert fill_checkpoint(parse_spec({**watching, "checkpoint": {"watch": "*.pt", "encrypt": False}}), secret)
