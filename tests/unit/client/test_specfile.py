"""Spec files: values as people expect them, and problems with the line they are on."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.client.specfile import parse_spec_text, parse_value, read_spec_file
from windlass.core.errors import InvalidInput, InvalidSpec


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(InvalidSpec) as caught:
        parse_spec_text(text, name="train.yaml").validate()
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("1E5", 1e5),
        ("-2.5e+3", -2500.0),
        (".5", 0.5),
        ("1_000", 1000),
        ("7", 7),
        ("true", True),
        ("null", None),
        ("", None),
        ("[1, 2e-1]", [1, 0.2]),
        ("{a: 1}", {"a": 1}),
        ("2026-11-15", "2026-11-15"),
        ("text", "text"),
        ("a: b: c", "a: b: c"),
        ("e4", "e4"),
        ("'3e-4'", "3e-4"),
    ],
)
def test_values_are_typed_as_people_expect(text: str, value: object) -> None:
    found = parse_value(text)
    assert found == value
    assert type(found) is type(value)


def test_a_good_file(tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text("name: gpt\ncommand: python train.py --lr ${lr}\nparams: {lr: 3e-4}\nresources: {cpus: 2}\n")
    spec = read_spec_file(file).validate()
    assert spec.params["lr"] == 3e-4
    assert spec.resources.cpus == 2


def test_an_unknown_key_has_its_line_and_the_nearest() -> None:
    assert problems("name: a\ncommand: x\n\nresorces:\n  cpus: 1\n") == (
        "train.yaml:4: unknown key `resorces`; did you mean `resources`?",
    )


def test_every_problem_is_told_with_its_own_line() -> None:
    found = problems("command: x\nresources:\n  cpus: 1\n  gpu: 1\ntimeout: soon\nnproc: 0\n")
    assert [problem.split(" ")[0] for problem in found] == ["train.yaml:6:", "train.yaml:4:", "train.yaml:5:"]
    assert "did you mean `gpus`?" in found[1]


def test_a_rule_about_the_whole_spec_points_at_the_first_line() -> None:
    (problem,) = problems("# nothing to run\nname: a\n")
    assert problem.startswith("train.yaml:1: give one of `command`, `script` and `recipe`")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("command: [a\nname: b\n", "train.yaml:2: not YAML"),
        ("command: a\n---\ncommand: b\n", "train.yaml:2: a spec file holds one document, but here begins another"),
        ("command: a\nname: b\ncommand: c\n", "train.yaml:3: key `command` is given twice; first on line 1"),
        ("", "train.yaml:1: the file is empty"),
        ("# only a remark\n", "train.yaml:1: the file is empty"),
        ("- a\n- b\n", "train.yaml:1: a spec is a mapping of keys, not list"),
        ("command: !!python/object:os.system x\n", "train.yaml:1: not YAML: could not determine a constructor"),
        ("params: &a {b: *a}\ncommand: x\n", "train.yaml:1: nested more than"),
        ("? [a]\n: b\n", "train.yaml:1: not YAML: found unhashable key"),
        ("name: a\ncommand: \x00\n", "train.yaml:2: not YAML: character"),
    ],
)
def test_what_is_no_spec_file(text: str, problem: str) -> None:
    assert problems(text)[0].startswith(problem)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="No such file"):
        read_spec_file(tmp_path / "no.yaml")
    with pytest.raises(InvalidInput, match="Is a directory"):
        read_spec_file(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(InvalidInput, match="not UTF-8"):
        read_spec_file(tmp_path / "latin.yaml")
