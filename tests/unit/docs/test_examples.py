"""What the texts show is what the code takes: every YAML example is loaded, every command is looked up."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from windlass.cli.commands import build_app
from windlass.cli.shortcut import misplaced
from windlass.core.errors import InvalidConfig, InvalidSpec
from windlass.server.config import load_config
from windlass.simulation.cluster import read_cluster
from windlass.wire.config import ServerConfig
from windlass.wire.document import Kind, parse_document
from windlass.wire.spec import RunSpec, parse_spec

ROOT = Path(__file__).parents[3]
PAGES = sorted(page for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")] if page.name != "benchmarks.md")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_COMMAND = re.compile(r"^(?:[A-Z_]+=\S+ )*windlass (?=[a-z-])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(language: str) -> list[Example]:
    return [
        Example(page=str(page.relative_to(ROOT)), line=text.count("\n", 0, found.start()) + 1, text=found[2])
        for page in PAGES
        for text in [page.read_text()]
        for found in _BLOCK.finditer(text)
        if found[1] == language
    ]


def commands() -> list[Example]:
    """Lines of plain blocks and words in backquotes that begin with `windlass`, up to a comment or a pipe."""
    found = []
    for page in PAGES:
        inside = False
        for number, line in enumerate(page.read_text().splitlines(), start=1):
            if line.startswith("```"):
                inside = not inside
                continue
            for text in [line] if inside else _SPAN.findall(line):
                if _COMMAND.match(text):
                    command = _COMMAND.sub("", re.split(r" #| \| ", text)[0])
                    found.append(Example(page=str(page.relative_to(ROOT)), line=number, text=command))
    return found


def load(example: Example, folder: Path) -> str:
    """Which kind of file the example is. Raises what its own loader raises."""
    kind = Kind(noun="example", error=InvalidSpec)
    data: dict[str, Any] = parse_document(example.text, kind, name=str(example)).data
    if "services" in data:
        load_compose(example.text, folder)
        return "compose"
    if isinstance(data.get("nodes"), list):
        path = folder / "cluster.yaml"
        path.write_text(example.text)
        read_cluster(path)
        return "cluster"
    if not data.keys() & RunSpec.model_fields.keys():
        path = folder / "config.yaml"
        path.write_text(example.text)
        load_config({}, home=folder, file=path)
        return "config"
    # What shows a section alone leaves out what every spec must have.
    parse_spec(data if data.keys() & {"command", "script"} else {**data, "command": "true"})
    return "spec"


def load_compose(text: str, folder: Path) -> None:
    for service in yaml.safe_load(text)["services"].values():
        environ = {name: re.sub(r"\$\{\w+\}", "x", value) for name, value in service["environment"].items()}
        load_config(environ, home=folder)


YAML = blocks("yaml")


@pytest.mark.parametrize("example", YAML, ids=str)
def test_every_example_is_taken(example: Example, tmp_path: Path) -> None:
    load(example, tmp_path)


def test_every_variable_with_engines_is_taken(tmp_path: Path) -> None:
    found = [text for page in PAGES for text in re.findall(r"`WINDLASS_ENGINES='([^']+)'`", page.read_text())]
    assert found
    for text in found:
        load_config({"WINDLASS_ENGINES": text}, home=tmp_path)


def test_there_are_examples_of_every_kind(tmp_path: Path) -> None:
    """Or the pattern that finds them has gone blind."""
    kinds = [load(example, tmp_path) for example in YAML]
    assert kinds.count("config") >= 6
    assert kinds.count("spec") >= 6
    assert kinds.count("compose") == 1
    assert kinds.count("cluster") == 1


def test_no_key_is_in_both_specs_and_configs() -> None:
    """Examples are told apart by their keys."""
    assert not RunSpec.model_fields.keys() & ServerConfig.model_fields.keys()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("engines: {hpc: {type: slurm}}\n", InvalidConfig),
        ("slurm: {partitoin: long}\n", InvalidSpec),
        ("services: {api: {environment: {WINDLASS_SERVER_PROT: '1'}}}\n", InvalidConfig),
    ],
)
def test_a_wrong_example_is_refused(text: str, error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error):
        load(Example(page="made-up.md", line=1, text=text), tmp_path)


# ---- commands --------------------------------------------------------------------------------------------------------


@cache
def top_command() -> Any:
    """Whose classes depend on Typer's version."""
    return typer.main.get_command(build_app())


def unknown_in(command: str) -> str | None:
    """The first word of `windlass COMMAND` that there is not; None if there are all."""
    here = top_command()
    own = True  # after the program that `run` starts, options are that program's
    for word in shlex.split(command):
        if word.startswith("-") and word != "-" and own:
            known = {option for parameter in here.params for option in parameter.opts} | {"-h", "--help", "--"}
            if word.split("=")[0] not in known:
                return word
            own = word != "--"
        elif hasattr(here, "commands"):
            if word not in here.commands:
                return word
            here = here.commands[word]
        elif here.name == "run" and (word.endswith(".py") or word == "python"):
            own = False
    return None


@pytest.mark.parametrize("example", commands(), ids=str)
def test_every_command_is_there(example: Example) -> None:
    assert unknown_in(example.text) is None


@pytest.mark.parametrize("example", [one for one in commands() if one.text.startswith("run ")], ids=str)
def test_options_stand_before_the_script(example: Example) -> None:
    assert misplaced(shlex.split(example.text)) == []


def test_a_wrong_command_is_found() -> None:
    assert unknown_in("server inti x.yaml") == "inti"
    assert unknown_in("backup FILE --with-secret") == "--with-secret"
    assert unknown_in("run --nproc 2 train.py --lr 3e-4") is None
    assert len(commands()) > 20


# ---- links -----------------------------------------------------------------------------------------------------------


def test_every_link_between_pages_leads_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
        if not target.startswith("http") and not (page.parent / target).exists()
    ]
    assert broken == []
