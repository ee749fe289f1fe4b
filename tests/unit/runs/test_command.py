from __future__ import annotations

import shlex
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.errors import InvalidSpec
from windlass.core.resources import Node, Resources
from windlass.runs.command import (
    check_plan,
    check_recipe,
    fill_command,
    fill_roles,
    is_self_launching,
    params_json,
    resolve_resources,
    whole_request,
    workers_per_node,
)
from windlass.runs.submission import stored_spec
from windlass.wire.spec import parse_spec

NODE = Node(engine="local", name="a", cpus=4, memory_bytes=10**10)


def argv_of(**spec: Any) -> tuple[str, ...]:
    return fill_command(parse_spec(spec))


def test_a_plain_command_is_started_without_a_shell() -> None:
    assert argv_of(command="python train.py --name 'two words' --x \"y z\"") == (
        "python", "train.py", "--name", "two words", "--x", "y z",
    )  # fmt: skip


def test_a_script_is_started_by_python() -> None:
    assert argv_of(script="train.py", args=["--lr", "${lr}"], params={"lr": 0.1}) == (
        "python",
        "train.py",
        "--lr",
        "0.1",
    )


def test_a_list_is_started_as_it_is() -> None:
    assert argv_of(command=["echo", "a | b", "${x}"], params={"x": "$HOME"}) == ("echo", "a | b", "$HOME")


@pytest.mark.parametrize(
    "command",
    [
        "a | b", "a && b", "a; b", "a > f", "a < f", "(a)", "`a`", "a\nb", "ls *.py", "ls a?", "ls [ab]", "echo $HOME",
        "ls ~", "FOO=1 python x.py", "cd sub && x", "cd sub", "export A=b", "ulimit -n 5", 'echo "$HOME"',
        'echo "`id`"',
        "echo {a,b}", "! true", "for i in 1 2; do echo; done",
    ],
)  # fmt: skip
def test_what_only_a_shell_understands_goes_to_one(command: str) -> None:
    assert argv_of(command=command) == ("/bin/sh", "-c", command)


@pytest.mark.parametrize(
    "command", ["echo 'a | b'", 'echo "a | b"', "echo '$HOME'", 'echo "a; b" c', "python setup.py"]
)
def test_shell_characters_inside_quotes_are_only_characters(command: str) -> None:
    assert argv_of(command=command) == tuple(shlex.split(command))


@pytest.mark.parametrize("value", ["two words", "it's", 'say "hi"', "$HOME", "`id`", "; rm -rf /", "", "*", "a\\b"])
@pytest.mark.parametrize("shell", [False, True])
def test_a_param_is_one_argument_whatever_it_holds(value: str, shell: bool) -> None:
    command = "printf '%s|' a ${x} b" + (" && true" if shell else "")
    argv = argv_of(command=command, params={"x": value})
    assert (argv[0] == "/bin/sh") == shell
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert printed == f"a|{value}|b|"


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30))
def test_filling_never_changes_a_value(value: str) -> None:
    assert argv_of(command="echo ${x}", params={"x": value})[-1] == value or argv_of(
        command="echo ${x}", params={"x": value}
    ) == ("/bin/sh", "-c", f"echo {shlex.quote(value)}")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (3e-4, "0.0003"),
        (1e-9, "1e-09"),
        (True, "true"),
        (None, ""),
        (5, "5"),
        ([1, 2], "[1, 2]"),
        ({"a": 1}, '{"a": 1}'),
    ],
)
def test_values_are_written_as_programs_read_them(value: Any, shown: str) -> None:
    assert argv_of(command=["x", "${v}"], params={"v": value}) == ("x", shown)


def test_a_doubled_dollar_is_the_shells_own_variable() -> None:
    argv = argv_of(command="echo $${HOME} ${x}", params={"x": 1})
    assert argv == ("/bin/sh", "-c", "echo ${HOME} 1")


def test_env_of_the_spec_can_be_used_too() -> None:
    assert argv_of(command="echo ${A}", env={"A": "b c"}) == ("echo", "b c")


def test_an_unknown_param_is_named_with_the_nearest() -> None:
    with pytest.raises(
        InvalidSpec, match=r"`\$\{lrr\}` in the command is not a param of this run; did you mean \$\{lr\}"
    ):
        argv_of(command="x ${lrr}", params={"lr": 1})
    with pytest.raises(InvalidSpec, match=r"params: none; write \$\$\{HOME\} for a shell variable"):
        argv_of(command="x ${HOME}")


def test_an_open_quote_is_a_problem_of_the_spec() -> None:
    with pytest.raises(InvalidSpec, match="`command`: No closing quotation"):
        argv_of(command="echo 'oops")


@pytest.mark.parametrize(
    ("argv", "launches"),
    [
        (("torchrun", "x.py"), True),
        (("/opt/bin/torchrun", "x.py"), True),
        (("accelerate", "launch", "x.py"), True),
        (("python", "-m", "torch.distributed.run", "x.py"), True),
        (("python3.11", "-u", "-m", "torch.distributed.launch", "x.py"), True),
        (("/bin/sh", "-c", "cd sub && torchrun x.py"), True),
        (("python", "torchrun.py"), False),
        (("python", "-m", "pytest"), False),
        (("python", "-m"), False),
        (("/bin/sh", "-c", "echo hi"), False),
    ],
)
def test_launchers_are_recognised(argv: tuple[str, ...], launches: bool) -> None:
    assert is_self_launching(argv) is launches


@pytest.mark.parametrize(
    ("spec", "workers"),
    [
        ({"command": "python x.py"}, 1),
        ({"command": "python x.py", "resources": {"gpus": 4}}, 4),
        ({"command": "python x.py", "resources": {"gpus": 4}, "nproc": 2}, 2),
        ({"command": "echo a | cat", "resources": {"gpus": 4}}, 1),
        ({"command": "echo a | cat", "nproc": 3}, 3),
        ({"command": "python x.py", "resources": {"tpus": 4}}, 1),
        ({"command": "python x.py", "resources": {"tpus": 4}, "nproc": 4}, 4),
        ({"command": "cd x && torchrun t.py", "resources": {"gpus": 8}}, 8),
    ],
)
def test_processes_per_node(spec: dict[str, Any], workers: int) -> None:
    parsed = parse_spec(spec)
    assert workers_per_node(parsed, fill_command(parsed)) == workers


def test_a_cpu_for_each_process_unless_asked_otherwise() -> None:
    assert resolve_resources(parse_spec({"command": "x"}), 3, [NODE]).cpus == 3
    assert resolve_resources(parse_spec({"command": "x"}), 64, [NODE]).cpus == 4
    assert resolve_resources(parse_spec({"command": "x"}), 64, []).cpus == 64
    assert resolve_resources(parse_spec({"command": "x", "resources": {"cpus": 0.5}}), 64, [NODE]).cpus == 0.5


def test_params_are_handed_over_as_json() -> None:
    assert params_json({"b": 1, "a": [True, None]}) == '{"a": [true, null], "b": 1}'


def test_a_recipe_is_a_module_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.wire.spec.check_recipe", lambda name: name)
    assert argv_of(recipe="gpt", args=["${x}"], params={"x": 1}) == ("python", "-m", "windlass.job.recipes.gpt", "1")


def test_roles_have_commands_of_their_own_or_the_specs() -> None:
    spec = parse_spec(
        {
            "script": "train.py",
            "params": {"port": 7},
            "roles": {"chief": 1, "worker": 2, "ps": {"count": 1, "command": "python ps.py ${port}"}},
        }
    )
    roles = fill_roles(spec)
    assert [(role.name, role.count, role.argv, role.essential) for role in roles] == [
        ("chief", 1, ("python", "train.py"), True),
        ("worker", 2, ("python", "train.py"), True),
        ("ps", 1, ("python", "ps.py", "7"), False),
    ]
    assert workers_per_node(spec, fill_command(spec)) == 4
    alone = parse_spec({"roles": {"a": {"count": 2, "command": ["x", "y"], "essential": True}}})
    assert fill_command(alone) == ("x", "y")


@pytest.mark.parametrize(
    ("plan", "nproc", "message", "hint"),
    [
        ("data=2,tensor=2", 2, r"`plan`: plan data=2,tensor=2 needs 4 processes", "with 2 processes, data=1 fits"),
        ("tensor=3", 4, "needs a multiple of 3 processes", "3 or 6 processes fit"),
        ("data=2,tensor=3", 2, "needs 6 processes", "6 processes fit"),
        ("auto,tensor=3,clip=1", 4, "plan auto,tensor=3,clip=1 needs a multiple of 3", "3 or 6 processes fit"),
        ("zero=1", 2, r"`plan`: zero=1 says .* try shard=2", "processes are nodes × nproc"),
        ("tensor=2,precision=fp8", 2, "tensor=2 divides them", "processes are nodes × nproc"),
    ],
)
def test_a_plan_that_the_processes_cannot_form_is_refused(plan: str, nproc: int, message: str, hint: str) -> None:
    with pytest.raises(InvalidSpec, match=message) as refused:
        check_plan(parse_spec({"command": "x", "plan": plan, "nproc": nproc}), ("x",))
    assert refused.value.hint is not None
    assert refused.value.hint.startswith(hint)
    assert f"here 1 × {nproc}" in refused.value.hint


def test_a_run_has_a_process_for_each_gpu_that_it_was_given_of_a_range() -> None:
    asked = parse_spec({"command": "x", "resources": {"gpus": "4..8"}})
    assert [workers_per_node(asked, ("x",), gpus=gpus) for gpus in (None, 5)] == [8, 5]
    fixed = parse_spec({"command": "x", "resources": {"gpus": 8}})
    assert workers_per_node(fixed, ("x",), gpus=5) == 8
    part = parse_spec({"command": "x", "resources": {"gpus": 0.5}})
    assert workers_per_node(part, ("x",), gpus=1) == 1


def test_what_a_run_asks_for_is_the_same_from_its_spec_and_from_its_record() -> None:
    asked = {"gpus": "4..8", "gpu_type": ["h100", "a100"], "labels": {"zone": "a"}, "spot": False, "memory": "1GB"}
    spec = parse_spec({"command": "x", "resources": asked})
    whole = resolve_resources(spec, 8, [])
    assert whole == Resources(
        cpus=8,
        memory_bytes=10**9,
        gpus=8,
        gpu_type="h100",
        gpu_types=("h100", "a100"),
        least_gpus=4,
        labels=frozenset({"zone=a"}),
        spot_ok=False,
    )
    kept = Resources(cpus=8, memory_bytes=10**9, gpus=8, gpu_type="h100")
    assert whole_request(kept, stored_spec(spec)) == whole
    assert whole_request(kept, {"resources": {"gpus": 8, "gpu_type": "h100"}}) == kept


@pytest.mark.parametrize(
    ("written", "types"),
    [(None, ("tpu:",)), ("tpu-v5-lite-podslice", ("tpu:v5e",)), (["v5p", "v5e"], ("tpu:v5p", "tpu:v5e"))],
)
def test_tpus_are_in_the_place_of_gpus(written: Any, types: tuple[str, ...]) -> None:
    spec = parse_spec({"command": "x", "resources": {"tpus": 4, "tpu_type": written}})
    whole = resolve_resources(spec, 1, [])
    assert (whole.gpus, whole.gpu_type, whole.types) == (4, types[0], types)
    kept = Resources(gpus=4, gpu_type=types[0])
    assert whole_request(kept, stored_spec(spec)) == whole


def test_a_plan_that_fits_or_is_chosen_later_is_let_through() -> None:
    check_plan(parse_spec({"command": "x", "plan": "tensor=2", "resources": {"nodes": 2}, "nproc": 3}), ("x",))
    check_plan(parse_spec({"command": "x", "plan": "auto", "nproc": 7}), ("x",))
    check_plan(parse_spec({"command": "x", "nproc": 7}), ("x",))


def test_a_run_with_a_range_of_gpus_needs_a_plan_that_fits_any_number_of_them() -> None:
    def ranged(plan: str, gpus: str) -> None:
        check_plan(parse_spec({"command": "x", "plan": plan, "resources": {"gpus": gpus}}), ("x",))

    ranged("precision=bf16", "4..8")
    with pytest.raises(InvalidSpec, match="needs a multiple of 2 processes") as refused:
        ranged("tensor=2", "4..6")
    assert "a run with a range of GPUs may have 4 to 6 on a node" in str(refused.value.hint)


def test_an_elastic_run_needs_a_plan_that_fits_any_number_of_its_nodes() -> None:
    def elastic(plan: str, nproc: int) -> None:
        check_plan(parse_spec({"command": "x", "plan": plan, "nproc": nproc, "elastic": {"max_nodes": 3}}), ("x",))

    elastic("precision=bf16", 1)
    elastic("tensor=2,shard=2", 4)
    with pytest.raises(InvalidSpec, match="needs 3 processes") as refused:
        elastic("data=3", 1)
    assert "an elastic run may be on 1 to 3 nodes: leave out `data`" in str(refused.value.hint)
    with pytest.raises(InvalidSpec, match="needs a multiple of 4 processes"):
        elastic("tensor=4", 2)


def test_params_of_a_recipe_are_checked_and_those_of_a_script_are_not() -> None:
    check_recipe(parse_spec({"script": "train.py", "params": {"stepz": 6}}))
    check_recipe(parse_spec({"recipe": "gpt", "params": {"steps": 6}}))
    with pytest.raises(InvalidSpec, match="`params`: unknown param 'stepz'; did you mean 'steps'"):
        check_recipe(parse_spec({"recipe": "gpt", "params": {"stepz": 6}}))


@pytest.mark.parametrize(
    ("spec", "problem", "hint"),
    [
        ({"plan": "tensor=3", "nproc": 3}, "`plan`: tensor=3 does not divide the model's 4 heads", "processes are"),
        ({"nproc": 3}, "`params`: a batch of 16 is not divided by 3", "processes are nodes × nproc, here 1 × 3"),
        ({"nproc": 2, "plan": "data,accumulate=3"}, "a batch of 16 is not divided by 6", "accumulate for this batch: "),
        ({"params": {"heads": 3}}, "`params`: width=64 is not divided by heads=3", "`windlass recipes gpt` lists"),
        ({"elastic": {"max_nodes": 4}}, "a batch of 16 is not divided by 3", "an elastic run may be on 1 to 4 nodes"),
        ({"resources": {"gpus": "2..4"}}, "a batch of 16 is not divided by 3", "may have 2 to 4 on a node"),
        ({"nproc": 2, "plan": "data=3"}, "`plan`: plan data=3 needs 3 processes", "data=2 fits"),
    ],
)
def test_what_a_recipe_would_refuse_is_refused_at_once(spec: dict[str, Any], problem: str, hint: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        check_recipe(parse_spec({"recipe": "gpt", **spec}))
    assert problem in str(refused.value)
    assert hint in str(refused.value.hint)


def test_scripts_and_roles_know_their_models_themselves() -> None:
    check_recipe(parse_spec({"script": "train.py", "plan": "tensor=3", "nproc": 3}))
    check_recipe(parse_spec({"recipe": "gpt", "roles": {"a": {"count": 3, "command": ["x"]}, "b": {"count": 1}}}))
