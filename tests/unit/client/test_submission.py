"""Putting a submission together: files, arguments, folders and secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.client.submission import assemble
from windlass.core.errors import InvalidInput, InvalidSpec
from windlass.wire.spec import RunSpec


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
    assert made.spec.script == "train.py"


def test_arguments_win_and_mappings_are_merged(project: Path) -> None:
    made = assemble(project / "spec.yaml", {"name": "b", "params": {"lr": 3}, "resources": {"cpus": 2}, "seed": None})
    assert made.spec.name == "b"
    assert made.spec.params == {"lr": 3, "layers": 2}
    assert (made.spec.resources.cpus, made.spec.resources.memory) == (2, 10**9)


def test_a_command_replaces_the_files_script_and_its_args(project: Path) -> None:
    made = assemble(project / "spec.yaml", {"command": ["true"]})
    assert (made.spec.command, made.spec.script, made.spec.args) == (["true"], None, [])


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
    assert assemble(None, {"script": str(project / "sub" / "other.py")}).spec.script == "sub/other.py"
    assert assemble(None, {"script": "./train.py"}).spec.script == "train.py"


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
    assert (made.code, made.spec.code, made.spec.workdir) == (None, None, str(project))
    with pytest.raises(InvalidInput, match=r"working folder .* does not exist"):
        assemble(None, {"command": "true", "workdir": "nowhere"})


def test_secrets_come_from_the_argument_or_the_environment(project: Path) -> None:
    environ = {"HF_TOKEN": "from-env", "OTHER": "x"}
    made = assemble(None, {"command": "true", "code": str(project)}, {"KEY": "given"}, environ)
    assert (made.spec.secrets, made.secrets) == (["KEY"], {"KEY": "given"})
    made = assemble({"command": "true", "secrets": ["HF_TOKEN"]}, {"code": str(project)}, ["HF_TOKEN"], environ)
    assert (made.spec.secrets, made.secrets) == (["HF_TOKEN"], {"HF_TOKEN": "from-env"})
    assert "from-env" not in repr(made)


def test_a_missing_secret_is_named(project: Path) -> None:
    with pytest.raises(InvalidInput, match="no value for the secret HF_TOKEN") as caught:
        assemble({"command": "true", "secrets": ["HF_TOKEN"]}, {"code": str(project)}, None, {})
    assert "--secret HF_TOKEN=VALUE" in (caught.value.hint or "")
    with pytest.raises(InvalidInput, match="must be a mapping"):
        assemble({"command": "true"}, {}, "HF_TOKEN", {})
