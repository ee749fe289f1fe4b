from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
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


@pytest.mark.parametrize(
    "value", [{"a": {"b": 1}}, {"a": [1]}, [[1]], [{"a": 1}], math.inf, [math.nan], {"a": -math.inf}, "\0", object()]
)
def test_a_param_that_is_none_breaks_one_rule(value: Any) -> None:
    [problem] = problems_of({"command": "x", "params": {"p": value, "q": 1}})
    assert problem.startswith("`params.p`: a param is a finite number, text without NUL")
    assert "or a list or mapping of these and no deeper; this is " in problem


def test_an_unknown_key_far_from_all_lists_the_known_ones() -> None:
    [problem] = problems_of({"command": "x", "zzzzzz": 1})
    assert problem.startswith("unknown key `zzzzzz`; known: args, checkpoint, code, command,")


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
        ({"command": "x", "resources": {"nodes": 0}}, "`resources.nodes`: is 0, and must be at least 1"),
        ({"command": "x", "resources": {"memory": "many"}}, "`resources.memory`: 'many' is not a size"),
        ({"command": "x", "timeout": "soon"}, "`timeout`: 'soon' is not a duration"),
        ({"command": "x", "timeout": 0}, "`timeout`: is 0, and must be more than 0"),
        ({"command": "x", "priority": "urgent"}, "`priority`: input should be 'low', 'normal' or 'high'"),
        ({"command": "x", "name": "a b"}, "`name`: write letters, digits and . _ - only"),
        ({"command": "x", "name": "-a"}, "starting with a letter or digit (got '-a')"),
        ({"command": "x", "nproc": "two"}, "`nproc`: input should be a valid integer"),
        ({"command": "x", "seed": -1}, "`seed`: is -1, and must be at least 0"),
        ({"command": "x", "checkpoint": {"evry": 1}}, "unknown key `checkpoint.evry`; did you mean `every`?"),
        ({"command": "x", "checkpoint": {"every": "often"}}, "`checkpoint.every`: 'often' is not a duration"),
        ({"command": "x", "checkpoint": {"every": "0s"}}, "`checkpoint.every`: '0s' is too short"),
        ({"command": "x", "checkpoint": {"memory": "often"}}, "`checkpoint.memory`: 'often' is not a duration"),
        ({"command": "x", "checkpoint": {"every": True}}, "`checkpoint.every`: true is no interval"),
        ({"command": "x", "checkpoint": {"memory": "sometimes"}}, "or 2d; `auto` and `off` do as well"),
        ({"command": "x", "elastic": {"max_nodes": 0}}, "`elastic.max_nodes`: is 0, and must be at least 1"),
        ({"command": "x", "checkpoint": {"keep_for": "long"}}, "`checkpoint.keep_for`: 'long' is not a duration"),
        ({"command": "x", "checkpoint": {"keep_for": 0}}, "`checkpoint.keep_for`: 0 is too short"),
        (
            {"command": "x", "checkpoint": {"store_every": "1h"}},
            "`checkpoint.store_every`: goes with `store`, which is not given",
        ),
        (
            {"command": "x", "checkpoint": {"store_keep": 1, "stores": [{"at": "s3://b"}]}},
            "`checkpoint.store_keep`: is said in `stores`, for each of them",
        ),
        (
            {"command": "x", "checkpoint": {"store": "s3://a", "stores": [{"at": "s3://b"}]}},
            "`checkpoint.store`: is short for one of `stores`: give one of the two",
        ),
        (
            {"command": "x", "checkpoint": {"stores": [{"at": "s3://b"}, {"at": "s3://b/"}]}},
            "`checkpoint.stores.1.at`: is s3://b a second time",
        ),
        ({"command": "x", "checkpoint": {"stores": [{"at": "/tmp"}]}}, "`checkpoint.stores.0.at`: write s3://BUCKET"),
        ({"command": "x", "checkpoint": {"keep": 0}}, "`checkpoint.keep`: is 0, and must be at least 1"),
        ({"command": "x", "checkpoint": {"folder": "out"}}, "`checkpoint.folder`: write a whole path"),
        ({"command": "x", "checkpoint": {"folder": "s3://b"}}, "an object store is a `store`"),
        ({"command": "x", "checkpoint": {"store": "/tmp"}}, "`checkpoint.store`: write s3://BUCKET/PREFIX"),
        ({"command": "x", "checkpoint": {"store_endpoint": "minio"}}, "`checkpoint.store_endpoint`: write an address"),
        ({"command": "x", "checkpoint": {"store_rate": "1KB"}}, "`checkpoint.store_rate`: '1KB' is too slow"),
        ({"command": "x", "checkpoint": {"encrypt": True}}, "`checkpoint.encrypt`: needs the key"),
        (
            {"command": "x", "checkpoint": {"compress": "rar"}},
            "`checkpoint.compress`: input should be 'none'",
        ),
        ({"command": "x", "checkpoint": {"watch": ""}}, "`checkpoint.watch"),
        (
            {"command": "x", "checkpoint": {"watch": "*.pt", "encrypt": True}, "secrets": ["WINDLASS_CHECKPOINT_KEY"]},
            "`checkpoint.watch`: takes files as they are, and `encrypt` is wanted",
        ),
        ({"command": "x", "checkpoint": {"watch": "*.pt", "compress": "zlib"}}, "or say `compress: none`"),
        ({"command": "x", "checkpoint": {"store_every": "0s"}}, "`checkpoint.store_every`: '0s' is too short"),
        (
            {"command": "x", "checkpoint": {"best_is": "x"}},
            "`checkpoint.best_is`: input should be 'lowest' or 'highest'",
        ),
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
        ({}, "give one of `command`, `script` and `recipe`, and only one of them"),
        ({"command": "x", "script": "y"}, "give one of `command`, `script` and `recipe`, and only one of them"),
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


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(sorted(RunSpec.model_fields)) | st.text(max_size=8), _junk, max_size=6))
def test_whatever_is_given_is_a_spec_or_an_invalid_spec(data: dict[str, Any]) -> None:
    try:
        spec = parse_spec(data)
    except InvalidSpec as refused:
        assert all(refused.problems)  # noqa: PT017  # either outcome is right
    else:
        ways = (spec.command, spec.script, spec.recipe)
        assert sum(way is not None for way in ways) == 1 or (spec.roles and not any(ways))


@pytest.mark.parametrize(
    ("plan", "kept"),
    [
        ("data=2,tensor=2", {"data": 2, "tensor": 2}),
        ({"data": 2, "tensor": "2", "precision": "BF16"}, {"data": 2, "tensor": 2, "precision": "bf16"}),
        ({"shard": 1}, {}),
        ("auto", "auto"),
        ("Auto,clip=1,compile=no", {"auto": True, "clip": 1.0, "compile": False}),
        ({"auto": True, "clip": 1}, {"auto": True, "clip": 1.0}),
        # Refused where it is used: records of runs may have it.
        ({"zero": 1}, {"zero": 1}),
    ],
)
def test_a_plan_is_kept_as_what_differs_from_the_defaults(plan: Any, kept: Any) -> None:
    assert parse_spec({"command": "x", "plan": plan}).plan == kept


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        ({"tenosr": 2}, "`plan.tenosr`: unknown plan key 'tenosr'; did you mean 'tensor'?"),
        ({"data": 2, "tensor": 0}, "`plan.tensor`: plan key 'tensor' is 0, but must be a whole number from 1"),
        ("data=two", "`plan`: plan key 'data' is 'two', but must be a whole number from 1"),
        ([1], "`plan`: a plan is a mapping of plan keys, text like `data=2,tensor=2`, or `auto`"),
        ({1: 2}, "`plan`: a plan is a mapping of plan keys, text like `data=2,tensor=2`, or `auto`"),
        ({"clip": 10**400}, "`plan`: a number of the plan is out of range: int too large to convert to float"),
    ],
)
def test_a_wrong_plan_is_told_at_its_key(plan: Any, problem: str) -> None:
    assert problems_of({"command": "x", "plan": plan}) == [problem]


def test_a_number_is_short_for_a_role_with_the_specs_command() -> None:
    roles = parse_spec({"command": "x", "roles": {"worker": 2, "ps": {"count": 1, "command": "y"}}}).roles
    assert [(name, role.count, role.command) for name, role in roles.items()] == [("worker", 2, None), ("ps", 1, "y")]
    assert parse_spec({"roles": {"a": {"count": 1, "command": "y"}}}).command is None


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"roles": {"a": 1}}, "`roles.a`: has no `command`, and the spec has none either"),
        ({"roles": {"a": {"count": 1, "command": " "}}}, "`roles.a.command`: is empty"),
        ({"command": "x", "roles": {"ps": 1}}, "`roles`: no role is essential, so the run would be over before it"),
        ({"command": "x", "nproc": 2, "roles": {"a": 3}}, "`roles`: are 3 processes, and the run has 2 (1 nodes × "),
        ({"command": "x", "resources": {"nodes": 2}, "roles": {"a": 3}}, "`roles`: are 3 processes, which 2 nodes do "),
        ({"command": "x", "roles": {"a": 2}, "plan": "data=2"}, "`plan`: spreads one model over all processes"),
        ({"command": "x", "roles": {"A B": 2}}, "`roles.A B`: string should match pattern"),
        ({"command": "x", "roles": {"a": {"count": 2, "comand": "y"}}}, "unknown key `roles.a.comand`; did you mean"),
    ],
)
def test_roles_that_do_not_fit(data: dict[str, Any], problem: str) -> None:
    (found,) = problems_of(data)
    assert found.startswith(problem)


def test_a_recipe_brings_its_code_and_is_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidSpec, match="`recipe`: unknown recipe 'no-such'"):
        parse_spec({"recipe": "no-such"})
    monkeypatch.setattr("windlass.wire.spec.check_recipe", lambda name: name)
    assert parse_spec({"recipe": "gpt"}).code is None
    assert parse_spec({"recipe": "gpt", "code": "."}).code == "."


def test_an_elastic_run_begins_with_its_fewest_nodes_unless_it_says_otherwise() -> None:
    spec = parse_spec({"command": "x", "elastic": {"min_nodes": 2, "max_nodes": 4, "grow_every": "2m"}})
    assert (spec.resources.nodes, spec.elastic.grow_every if spec.elastic else None) == (2, 120)
    assert RunSpec.model_validate(spec.model_dump(mode="json")) == spec
    spec = parse_spec({"command": "x", "elastic": {"max_nodes": 4}, "resources": {"nodes": 3, "cpus": 2}})
    assert (spec.resources.nodes, spec.resources.cpus) == (3, 2)


def test_an_elastic_run_takes_no_more_nodes_than_it_begins_with_unless_it_says_otherwise() -> None:
    spec = parse_spec({"command": "x", "elastic": {"min_nodes": 1}, "resources": {"nodes": 2}})
    assert spec.elastic is not None
    assert (spec.elastic.min_nodes, spec.resources.nodes, spec.elastic.max_nodes) == (1, 2, 2)
    assert RunSpec.model_validate(spec.model_dump(mode="json")) == spec


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"elastic": {"min_nodes": 5, "max_nodes": 4}}, "`elastic`: has min_nodes 5, more than max_nodes 4"),
        ({"elastic": {"min_nodes": 1}}, "`elastic.max_nodes`: field required"),
        (
            {"elastic": {"min_nodes": 2, "max_nodes": 4}, "resources": {"nodes": 1}},
            "`resources.nodes`: is 1, the fewest that an elastic run begins with: a number from min_nodes 2 to "
            "max_nodes 4",
        ),
        (
            {"elastic": {"max_nodes": 2}, "roles": {"worker": 1, "ps": 1}},
            "`elastic`: changes the number of processes, and `roles` fixes it",
        ),
    ],
)
def test_what_is_no_range_of_nodes_is_refused(data: dict[str, Any], problem: str) -> None:
    assert problems_of({"command": "x", **data}) == [problem]


@pytest.mark.parametrize(
    ("given", "hang"), [("auto", "auto"), ("off", "off"), (False, "off"), (None, "auto"), ("10m", 600.0), (90, 90.0)]
)
def test_what_counts_as_a_hang(given: Any, hang: str | float) -> None:
    parsed = parse_spec({"command": "x", "hang": given})
    assert parsed.hang == hang
    assert parse_spec(parsed.model_dump(mode="json")).hang == hang


@pytest.mark.parametrize("given", ["soon", 0.5, [1]])
def test_what_is_no_time_for_a_hang_is_refused(given: Any) -> None:
    with pytest.raises(InvalidSpec, match="auto"):
        parse_spec({"command": "x", "hang": given})


@pytest.mark.parametrize(("written", "meant"), [(False, "off"), ("off", "off"), ("auto", "auto"), (5, 5), ("1m", "1m")])
def test_how_often_copies_are_left_in_memory(written: object, meant: object) -> None:
    spec = parse_spec({"command": "x", "checkpoint": {"memory": written}})
    assert spec.checkpoint is not None
    assert spec.checkpoint.memory == meant


def test_a_wrong_interval_is_told_once() -> None:
    (problem,) = problems_of({"command": "x", "checkpoint": {"every": 0}})
    assert problem == (
        "`checkpoint.every`: 0 is out of range; write a number of steps from 1 on, or a duration such as 10m"
    )


def test_each_store_has_an_address_of_its_own() -> None:
    stores = [{"at": "s3://a/b", "endpoint": "http://one:9000"}, {"at": "file:///shared", "keep_for": "30d"}]
    wanted = parse_spec({"command": "x", "checkpoint": {"stores": stores}}).checkpoint
    assert wanted is not None
    places = ("s3://a/b/r-1/step-1", "file:///shared/r-1/step-1", "/home/r-1/step-1")
    assert [wanted.endpoint_of(place) for place in places] == ["http://one:9000", None, None]
    one = parse_spec({"command": "x", "checkpoint": {"store": "s3://a", "store_endpoint": "http://x"}}).checkpoint
    assert one is not None
    assert [one.endpoint_of(place) for place in ("s3://a/r-1/step-1", "/home/step-1")] == ["http://x", None]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"metric": "x", "above": 3, "min_delta": 1}, "`rules.0.min_delta` goes with `patience`; this rule has none"),
        ({"nan": True, "goal": "max"}, "`rules.0.goal` goes with `patience`; this rule has none"),
        ({"metric": "x", "abov": 3}, "unknown key `rules.0.abov`; did you mean `above`?"),
    ],
)
def test_a_rule_that_says_what_it_does_not_heed_is_refused(rule: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse_spec({"command": "true", "rules": [rule]})
    assert said in str(refused.value)
    assert refused.value.hint == "docs/rules.md lists the keys of rules"


def test_a_rule_may_say_what_is_so_anyway() -> None:
    rule = {"metric": "x", "above": 3, "min_delta": 0.0, "goal": "min"}  # as specs of runs are kept
    assert parse_spec({"command": "true", "rules": [rule]}).rules[0].above == 3
