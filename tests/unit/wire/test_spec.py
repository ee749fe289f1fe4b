from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.errors import InvalidSpec
from windlass.wire.spec import NOT_YET, Priority, RunSpec, parse_spec


def problems_of(data: Any) -> list[str]:
    with pytest.raises(InvalidSpec) as refused:
        parse_spec(data)
    return list(refused.value.problems)


def test_the_spec_of_the_documentation() -> None:
    spec = parse_spec(
        {
            "name": "gpt-small",
            "command": "python train.py --lr ${lr}",
            "code": ".",
            "resources": {"nodes": 2, "gpus": 8, "gpu_type": "h100", "cpus": 16, "memory": "64GB"},
            "params": {"lr": 3e-4},
            "retry": {"max": 3},
            "priority": "high",
            "timeout": "12h",
            "tags": ["nightly"],
            "env": {"EPOCHS": 3},
        }
    )
    assert spec.resources.memory == 64 * 10**9
    assert spec.timeout == 12 * 3600
    assert spec.priority is Priority.HIGH
    assert spec.tags == {"nightly": ""}
    assert spec.env == {"EPOCHS": "3"}
    assert spec.retry is not None
    assert spec.retry.backoff == 2.0


def test_a_spec_goes_through_json_and_back() -> None:
    spec = parse_spec({"script": "train.py", "args": ["--x"], "timeout": "1h30m", "resources": {"memory": "1GiB"}})
    assert RunSpec.model_validate(spec.model_dump(mode="json")) == spec


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"comand": "x"}, "unknown key `comand`; did you mean `command`?"),
        ({"command": "x", "resources": {"gpu": 1}}, "unknown key `resources.gpu`; did you mean `gpus`?"),
        ({"command": "x", "retry": {"times": 1}}, "unknown key `retry.times`; known: backoff, max"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(data: dict[str, Any], problem: str) -> None:
    assert problem in problems_of(data)


def test_an_unknown_key_far_from_all_lists_the_known_ones() -> None:
    [problem] = problems_of({"command": "x", "zzzzzz": 1})
    assert problem.startswith("unknown key `zzzzzz`; known: args, code, command,")


@pytest.mark.parametrize(
    "path", [f"{parent}.{key}".strip(".") for parent in NOT_YET for key in sorted(NOT_YET[parent])]
)
def test_keys_of_later_versions_are_refused_by_name(path: str) -> None:
    parent, _, key = path.rpartition(".")
    data: dict[str, Any] = {"command": "x", parent: {key: 1}} if parent else {"command": "x", key: 1}
    assert problems_of(data) == [f"`{path}` is not supported by this version of Windlass"]


@pytest.mark.parametrize(
    ("data", "part"),
    [
        ({"command": "x", "resources": {"nodes": 0}}, "`resources.nodes`: input should be greater than or equal to 1"),
        ({"command": "x", "resources": {"memory": "many"}}, "`resources.memory`: 'many' is not a size"),
        ({"command": "x", "timeout": "soon"}, "`timeout`: 'soon' is not a duration"),
        ({"command": "x", "timeout": 0}, "`timeout`: input should be greater than 0"),
        ({"command": "x", "priority": "urgent"}, "`priority`: input should be 'low', 'normal' or 'high'"),
        ({"command": "x", "name": "a b"}, "`name`: write letters, digits and . _ - only"),
        ({"command": "x", "name": "-a"}, "starting with a letter or digit (got '-a')"),
        ({"command": "x", "nproc": "two"}, "`nproc`: input should be a valid integer"),
        ({"command": "x", "seed": -1}, "`seed`: input should be greater than or equal to 0"),
        ({"command": "x\x00y"}, "`command`"),
        ({"command": "x", "env": {"A-B": "1"}}, "`env.A-B"),
        ({"command": "x", "env": {"A": None}}, "`env.A`: input should be a valid string"),
        ({"command": "x", "timeout": []}, "`timeout`: [] is not a duration"),
        ({"command": "x", "timeout": True}, "`timeout`: true is not a duration"),
        ({"command": "x", "timeout": 10**400}, "is out of range: durations go from 0 to 10 years"),
        ({"command": "x", "resources": {"memory": {}}}, "`resources.memory`: {} is not a size"),
        ({"command": "x", "tags": [["nested"]]}, "`tags`: input should be a valid dictionary"),
        ({"command": 5}, "`command`: input should be a valid string"),
    ],
)
def test_a_wrong_value_is_named_with_its_key_and_rule(data: dict[str, Any], part: str) -> None:
    assert any(part in problem for problem in problems_of(data)), problems_of(data)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({}, "give either `command` or `script`, and only one of them"),
        ({"command": "x", "script": "y"}, "give either `command` or `script`, and only one of them"),
        ({"command": "  "}, "`command` is empty"),
        ({"command": []}, "`command` is empty"),
        ({"command": ["", ""]}, "`command` is empty"),
        ({"script": " "}, "`script` is empty"),
        (
            {"command": "x", "args": ["y"]},
            "`args` goes with `script`; with `command`, write the arguments into the command",
        ),
        (
            {"command": "x", "workdir": "/tmp"},
            "`workdir` goes with `code: null`: a run has a snapshot or a folder, not both",
        ),
        ({"command": "x", "env": {"K": "1"}, "secrets": ["K"]}, "K is in both `env` and `secrets`"),
    ],
)
def test_keys_that_do_not_go_together(data: dict[str, Any], problem: str) -> None:
    assert problems_of(data) == [problem]


@pytest.mark.parametrize(("data", "kind"), [(None, "NoneType"), ([], "list"), ("x", "str"), (3, "int")])
def test_a_spec_is_a_mapping(data: Any, kind: str) -> None:
    assert problems_of(data) == [f"a spec is a mapping of keys, not {kind}"]


def test_every_problem_is_told_at_once_and_once() -> None:
    problems = problems_of({"comand": "x", "nproc": 0, "resources": {"gpu": 1}})
    assert len(problems) == 3
    assert len(set(problems)) == 3


def test_problems_carry_the_line_they_are_on() -> None:
    lines = {("resources", "gpu"): 7, ("comand",): 2}

    def line_of(loc: Sequence[str | int]) -> str:
        return f"spec.yaml:{lines[tuple(str(part) for part in loc)]}: "

    with pytest.raises(InvalidSpec) as refused:
        parse_spec({"comand": "x", "resources": {"gpu": 1}}, line_of=line_of)
    assert {problem.split(" unknown")[0] for problem in refused.value.problems} == {"spec.yaml:2:", "spec.yaml:7:"}


_junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(RunSpec.model_fields)) | st.text(max_size=8), _junk, max_size=6))
def test_whatever_is_given_is_a_spec_or_an_invalid_spec(data: dict[str, Any]) -> None:
    try:
        spec = parse_spec(data)
    except InvalidSpec as refused:
        assert all(refused.problems)  # noqa: PT017  # either outcome is right
    else:
        assert (spec.command is None) != (spec.script is None)
