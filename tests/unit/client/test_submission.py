"""Putting a submission together: files, arguments, folders and secrets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from windlass.client.submission import Submission, assemble
from windlass.core.errors import InvalidInput, InvalidSpec
from windlass.wire.spec import RunSpec, parse_spec


def spec_of(made: Submission) -> RunSpec:
    """As the server reads it."""
    return parse_spec(made.spec)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    (folder / "train.py").write_text("")
    (folder / "sub" / "other.py").write_text("")
    (folder / "spec.yaml").write_text(
        "name: a\nscript: train.py\nargs: [x]\nparams: {lr: 1, layers: 2}\nresources: {cpus: 1, memory: 1GB}\n"
    )
    monkeypatch.chdir(tmp_path)
    return folder


def test_code_and_script_are_relative_to_the_spec_file(project: Path) -> None:
    made = assemble(project / "spec.yaml", {})
    assert made.code == project
    assert spec_of(made).script == "train.py"


def test_a_spec_from_a_pipe_or_stdin_is_of_the_current_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    read, write = os.pipe()
    os.write(write, b"{name: a, code: ., script: train.py}")
    os.close(write)
    with (project / "spec.yaml").open() as file:
        for number in (read, file.fileno()):
            made = assemble(f"/dev/fd/{number}", {})
            assert (made.code, spec_of(made).script) == (project, "train.py")
    os.close(read)


def test_arguments_win_and_mappings_are_merged(project: Path) -> None:
    made = assemble(project / "spec.yaml", {"name": "b", "params": {"lr": 3}, "resources": {"cpus": 2}, "seed": None})
    assert spec_of(made).name == "b"
    assert spec_of(made).params == {"lr": 3, "layers": 2}
    assert (spec_of(made).resources.cpus, spec_of(made).resources.memory) == (2, 10**9)


def test_a_command_replaces_the_files_script_and_its_args(project: Path) -> None:
    made = assemble(project / "spec.yaml", {"command": ["true"]})
    assert (spec_of(made).command, spec_of(made).script, spec_of(made).args) == (["true"], None, [])


def test_a_problem_of_an_argument_is_on_no_line_of_the_file(project: Path) -> None:
    with pytest.raises(InvalidSpec) as caught:
        assemble(project / "spec.yaml", {"nproc": 0})
    assert caught.value.problems[0].startswith("`nproc`")


def test_without_a_file_the_current_folder_is_the_code(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    assert assemble(None, {"script": "sub/other.py"}).code == project
    assert assemble({"script": "train.py"}, {}).code == project
    assert assemble(RunSpec(command="true"), {"code": "sub"}).code == project / "sub"


def test_an_absolute_script_inside_the_folder_becomes_relative(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    assert spec_of(assemble(None, {"script": str(project / "sub" / "other.py")})).script == "sub/other.py"
    assert spec_of(assemble(None, {"script": "./train.py"})).script == "train.py"


def test_scripts_that_cannot_be_there(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    with pytest.raises(InvalidInput, match="does not exist") as caught:
        assemble(None, {"script": "trian.py"})
    assert caught.value.hint == "did you mean train.py?"
    with pytest.raises(InvalidInput, match="outside the code folder"):
        assemble(None, {"script": "../train.py"})
    with pytest.raises(InvalidInput, match="does not exist"):
        assemble(None, {"command": "true", "code": "nowhere"})


def test_in_place(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    made = assemble(None, {"script": "train.py", "workdir": "."})
    assert (made.code, spec_of(made).code, spec_of(made).workdir) == (None, None, str(project))
    with pytest.raises(InvalidInput, match=r"working folder .* does not exist"):
        assemble(None, {"command": "true", "workdir": "nowhere"})


def test_secrets_come_from_the_argument_or_the_environment(project: Path) -> None:
    environ = {"HF_TOKEN": "from-env", "OTHER": "x"}
    made = assemble(None, {"command": "true", "code": str(project)}, {"KEY": "given"}, environ)
    assert (spec_of(made).secrets, made.secrets) == (["KEY"], {"KEY": "given"})
    made = assemble({"command": "true", "secrets": ["HF_TOKEN"]}, {"code": str(project)}, ["HF_TOKEN"], environ)
    assert (spec_of(made).secrets, made.secrets) == (["HF_TOKEN"], {"HF_TOKEN": "from-env"})
    assert "from-env" not in repr(made)


def test_a_missing_secret_is_named(project: Path) -> None:
    with pytest.raises(InvalidInput, match="no value for the secret HF_TOKEN") as caught:
        assemble({"command": "true", "secrets": ["HF_TOKEN"]}, {"code": str(project)}, None, {})
    assert "--secret HF_TOKEN=VALUE" in (caught.value.hint or "")
    with pytest.raises(InvalidInput, match="must be a mapping"):
        assemble({"command": "true"}, {}, "HF_TOKEN", {})


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"command": ["python", "train.py"], "params": {"lr": 3}},
        {"workdir": ".", "script": "train.py", "timeout": "90s", "tags": {"a": ""}},
    ],
)
def test_what_the_server_is_left_to_check_says_the_same(
    project: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, object]
) -> None:
    monkeypatch.chdir(project)
    unchecked = assemble(project / "spec.yaml", keys, {"KEY": "x"}, check=False)
    checked = assemble(project / "spec.yaml", keys, {"KEY": "x"})
    assert spec_of(unchecked) == spec_of(checked)
    assert (unchecked.code, unchecked.files, unchecked.secrets) == (checked.code, checked.files, checked.secrets)


def test_what_is_not_the_same_as_json_is_checked_here(project: Path) -> None:
    for data in ({"params": {1: 2}}, {"params": {"lr": float("nan")}}, {"code": 5}, {"secrets": {"A": 1}}):
        with pytest.raises(InvalidSpec):
            assemble({"command": "true", **data}, {}, check=False)
    wrong = assemble({"command": "true", "naem": "x", "code": str(project)}, {}, check=False)
    assert wrong.spec["naem"] == "x"


def test_the_framework_is_found_in_the_script_unless_it_is_given(project: Path) -> None:
    (project / "train.py").write_text("import torch\n")
    assert spec_of(assemble(project / "spec.yaml", {})).framework == "pytorch"
    assert spec_of(assemble(project / "spec.yaml", {"framework": "none"})).framework == "none"
    assert spec_of(assemble(None, {"command": "torchrun train.py", "code": str(project)})).framework == "pytorch"
    assert spec_of(assemble(None, {"command": "echo hi", "code": str(project)})).framework is None


def test_the_experiment_is_found_in_the_script_unless_somebody_has_chosen(project: Path) -> None:
    (project / "train.py").write_text("import mlflow\nmlflow.set_experiment('vision')\n")
    assert spec_of(assemble(project / "spec.yaml", {})).experiment == "vision"
    assert spec_of(assemble(project / "spec.yaml", {"experiment": "mine"})).experiment == "mine"
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME"):
        assert spec_of(assemble(project / "spec.yaml", {"env": {name: "x"}})).experiment is None


def test_a_recipe_brings_the_parts_of_windlass_that_jobs_need(project: Path) -> None:
    made = assemble(project / "spec.yaml", {"recipe": "classifier"})
    assert made.files is not None
    assert "windlass/job/recipes/classifier.py" in made.files
    assert {name.split("/")[1] for name in made.files} == {"__init__.py", "agent", "blobs", "core", "job", "planning"}
    assert made.code is not None
    assert all((made.code / name).is_file() for name in made.files)
    spec = spec_of(made)
    assert (spec.recipe, spec.script, spec.args, spec.framework) == ("classifier", None, [], "pytorch")


def test_a_recipe_can_run_in_a_folder_or_with_one(project: Path) -> None:
    placed = assemble(None, {"recipe": "classifier", "workdir": str(project)})
    assert (placed.code, placed.files) == (None, None)
    sent = assemble(None, {"recipe": "classifier", "code": str(project)})
    assert (sent.code, sent.files) == (project, None)
