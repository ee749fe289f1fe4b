"""What is kept of a spec, and how a copy of it is changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from windlass.core.errors import CannotFit, InvalidSpec
from windlass.core.resources import Node
from windlass.runs.submission import (
    _FROM_THE_BEGINNING,
    changed_spec,
    check_secrets,
    fill_checkpoint,
    new_run,
    stored_spec,
)
from windlass.scheduling.core.types import Policy, Project
from windlass.scheduling.rules import Rules
from windlass.scheduling.types import NodeKind
from windlass.wire.checkpoints import CheckpointSpec
from windlass.wire.spec import RunSpec, parse_spec


def test_keys_that_were_not_given_are_not_kept_unless_every_version_knows_them() -> None:
    stored = stored_spec(RunSpec(script="train.py", params={"bias": None}))
    assert {"plan", "recipe", "roles", "framework", "checkpoint", "hang", "preemptible", "deadline"}.isdisjoint(stored)
    assert set(stored["resources"]) == {"nodes", "cpus", "memory", "gpus", "gpu_type"}
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
        RunSpec(script="train.py", preemptible=False, deadline="2036-11-20", resources={"gpus": 0.5, "spot": False}),
        RunSpec(script="x", resources={"tpus": 4, "tpu_type": ["v5e", "v4"]}),
        RunSpec(script="x", resources={"gpus": "4..8", "gpu_type": ["h100", "a100"], "labels": {"zone": "a"}}),
    ):
        assert RunSpec.model_validate(stored_spec(spec)) == spec


def test_a_plain_spec_is_stored_without_keys_that_are_younger() -> None:
    """A server of the version before reads it while it is being replaced, and when somebody goes back to it."""
    always = {"grace", "priority", "project", "resources", "warm"}
    assert set(stored_spec(RunSpec(script="train.py"))) == _FROM_THE_BEGINNING | always


def test_a_key_that_was_not_given_can_be_set_in_a_copy() -> None:
    stored = stored_spec(RunSpec(script="train.py"))
    assert changed_spec(stored, {"checkpoint.every": "5m"}, None)["checkpoint"] == {"every": "5m"}
    assert changed_spec(stored, {"plan": "data=2"}, "b")["plan"] == "data=2"
    automatic = stored_spec(RunSpec(script="train.py", plan="auto"))
    assert changed_spec(automatic, {"plan.clip": 2}, None)["plan"] == {"auto": True, "clip": 2}


def test_a_copy_can_be_put_into_another_group() -> None:
    stored = stored_spec(RunSpec.model_validate({"script": "train.py", "group": "a", "tags": {"team": "x"}}))
    moved = parse_spec(changed_spec(stored, {"group": "b"}, None))
    assert moved.tags == {"team": "x", "group": "b"}
    assert parse_spec(changed_spec(stored, {"group": None}, None)).tags == {"team": "x"}
    assert parse_spec(changed_spec(stored, {"tags": ["quick"], "group": "b"}, None)).tags == {"quick": "", "group": "b"}
    assert "group" in RunSpec.model_json_schema()["properties"]


@pytest.mark.parametrize("group", ["", " ", 'it\'s "it"'])
def test_groups_that_no_search_could_find(group: str) -> None:
    with pytest.raises(InvalidSpec, match="not empty, and has quotes of one kind only"):
        parse_spec({"script": "x", "group": group})


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


def test_what_a_project_says_of_its_store_goes_with_that_store() -> None:
    usual = {"vision": CheckpointSpec.model_validate({"store": "s3://b", "store_keep": 9})}

    def filled(**own: Any) -> dict[str, Any]:
        spec = fill_checkpoint(parse_spec({"command": "x", "project": "vision", "checkpoint": own}), usual)
        assert spec.checkpoint is not None
        return spec.checkpoint.model_dump(mode="json", exclude_none=True, exclude={"best_is"})

    assert filled(keep=2) == {"store": "s3://b", "store_keep": 9, "keep": 2}
    assert filled(store="s3://own") == {"store": "s3://own", "store_keep": 9}
    assert filled(store=None) == {}
    assert filled(stores=[{"at": "s3://own", "keep": 1}]) == {"stores": [{"at": "s3://own", "keep": 1}]}
    with pytest.raises(InvalidSpec, match="goes with `store`"):
        filled(store=None, store_keep=2)
    usual["vision"] = CheckpointSpec.model_validate({"store_keep": 9})
    assert filled(keep=2) == {"keep": 2}


@pytest.mark.parametrize(("key", "problem"), [("abc", "is not 32 bytes in base64"), ("", "is not set")])
def test_a_key_that_cannot_encrypt_is_refused_when_it_is_given(key: str, problem: str) -> None:
    spec = parse_spec({"command": "x", "secrets": ["WINDLASS_CHECKPOINT_KEY"], "checkpoint": {"encrypt": True}})
    with pytest.raises(InvalidSpec, match=problem):
        check_secrets(spec, {"WINDLASS_CHECKPOINT_KEY": key})
    check_secrets(spec, {"WINDLASS_CHECKPOINT_KEY": "ab" * 32})


def test_stores_are_kept_as_they_were_given() -> None:
    wanted = {"keep_for": "1d", "stores": [{"at": "s3://b", "keep_every": 100}, {"at": "file:///shared"}]}
    stored = stored_spec(parse_spec({"command": "x", "checkpoint": wanted}))
    assert stored["checkpoint"] == {"best_is": "lowest", **wanted}


NOW = 1_795_000_000.0
HOST = Node(engine="hpc", name="a", cpus=64, memory_bytes=10**12, gpus=8, gpu_type="a100", labels=frozenset({"zone=a"}))
KINDS = (NodeKind(node=HOST, count=2),)


def row_of(resources: dict[str, Any], rules: Rules | None = None, **keys: Any) -> dict[str, Any]:
    spec = parse_spec({"command": "x", "resources": resources, **keys})
    return new_run(spec, KINDS, code_digest=None, origin={}, user="ada", now=NOW, rules=rules)


def test_the_columns_of_a_run_are_what_older_servers_understand() -> None:
    row = row_of({"gpus": 0.5})
    assert (row["gpus"], row["gpu_type"], row["spec"]["resources"]["gpus"]) == (1, None, 0.5)
    row = row_of({"gpus": "2..4", "gpu_type": ["h100", "a100"]})
    assert (row["gpus"], row["gpu_type"]) == (4, "h100")


@pytest.mark.parametrize(("written", "at"), [("12h", NOW + 43_200), (NOW + 5, NOW + 5), ("2027-01-01", 1_798_761_600)])
def test_a_deadline_is_kept_as_a_moment(written: Any, at: float) -> None:
    row = row_of({}, deadline=written)
    assert row["spec"]["deadline"] == at


def test_a_deadline_that_has_passed_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="`deadline`: 2026-01-02 00:00 UTC has passed"):
        row_of({}, deadline="2026-01-02")


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        ({"gpus": 9}, "asks for 9 CPU + 9 GPU on a node, and the largest node (a) has 64 CPU, 1000.0 GB memory, 8 GPU"),
        ({"gpus": "9..12"}, "asks for 12 CPU + 9 to 12 GPU on a node"),
        ({"gpus": 1, "gpu_type": ["h100", "h200"]}, "asks for 1 CPU + 1 h100 or h200 on a node"),
        ({"gpus": 1, "nodes": 3, "gpu_type": ["h100", "a100"]}, "and only 2 can offer that"),
        ({"tpus": 4}, "asks for TPUs, and no node that it may go to has any"),
        ({"labels": {"zone": "b"}}, "asks for nodes with the label zone=b, and none has it"),
    ],
)
def test_what_no_node_could_hold_is_refused(resources: dict[str, Any], reason: str) -> None:
    with pytest.raises(CannotFit) as refused:
        row_of(resources)
    assert refused.value.message.startswith("this run can never start here: it asks for")
    assert reason in refused.value.message


def test_one_alternative_that_could_be_had_is_enough() -> None:
    row_of({"gpus": "4..16", "gpu_type": ["h100", "a100"], "nodes": 2, "labels": {"zone": "a"}, "cpus": 1})


def test_nodes_that_can_be_taken_away_are_not_for_those_who_will_not_have_them() -> None:
    spec = parse_spec({"command": "x", "resources": {"spot": False}})
    kinds = (NodeKind(node=replace(HOST, spot=True), count=2),)
    with pytest.raises(CannotFit, match="cannot be taken away"):
        new_run(spec, kinds, code_digest=None, origin={}, user=None, now=NOW)


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"gpu": 8}, "asks for gpu: 16, and project vision may have gpu: 8 at once"),
        ({"gpu:a100": 8}, "asks for gpu:a100: 16, and project vision may have gpu:a100: 8 at once"),
        ({"memory": 10**9}, "asks for memory: 20.0 GB, and project vision may have memory: 1.0 GB at once"),
        ({"runs": 0}, "is one run, and project vision may have runs: 0 at once"),
    ],
)
def test_what_a_limit_forbids_for_ever_is_refused(limit: dict[str, float], reason: str) -> None:
    asked = {"gpus": 8, "nodes": 2, "gpu_type": "a100", "memory": "10GB"}
    rules = Rules(projects={"vision": Project(name="vision", limit=limit)})
    with pytest.raises(CannotFit) as refused:
        row_of(asked, rules, project="vision")
    assert refused.value.message == f"this run can never start here: it {reason}"
    row_of(asked, rules, project="speech")


def test_limits_of_the_projects_above_and_of_users_count_too() -> None:
    above = Rules(
        projects={"lab": Project(name="lab", limit={"gpu": 4}), "vision": Project(name="vision", parent="lab")}
    )
    with pytest.raises(CannotFit, match="and project lab, which vision is a part of, may have gpu: 4 at once"):
        row_of({"gpus": 8}, above, project="vision")
    with pytest.raises(CannotFit, match="and a user may have gpu: 4 at once"):
        row_of({"gpus": 8}, Rules(policy=Policy(user_limit={"gpu": 4})))


def test_alternatives_that_limits_leave_must_be_there() -> None:
    rules = Rules(projects={"vision": Project(name="vision", limit={"gpu:a100": 0})})
    with pytest.raises(CannotFit, match=r"asks for 1 CPU \+ 1 h100 on a node"):
        row_of({"gpus": 1, "gpu_type": ["h100", "a100"]}, rules, project="vision")
    row_of({"gpus": "1..8"}, Rules(policy=Policy(user_limit={"gpu": 4})))
