"""Lines read without the parser mean what they mean to the parser, and the others are left to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from windlass.cli import sending, shortcut
from windlass.cli.commands import build_app
from windlass.cli.connection import Connection

PLAIN = [
    "run train.py --lr 3 -d",
    "run -d -- python -c pass",
    "run --detach --no-snapshot --no-warm --nproc=2 --nodes 3 --cpus 0.5 --gpus 0 --memory 16GB true",
    "run -n a --project b -p lr=3e-4 --param x=1 -e A=1 --env=B=2=3 --secret T=x --tag k --tag=v=w true",
    "run --timeout 90s --retries 2 --priority high --seed 7 train.py a --seed 8",
    "run -f spec.yaml",
    "run --file=spec.yaml train.py",
    "run --recipe gpt --plan data=2,tensor=4",
    "run --recipe=gpt -- --steps 3",
    "run - x",
    "submit spec.yaml",
    "submit -f --json --name a -p x=1 -e A=1 --priority low --tag t --secret S=1 spec.yaml",
]
LEFT = [
    "run",
    "run --help",
    "run -h train.py",
    "run --nporc 2 train.py",
    "run --nproc 0 train.py",
    "run --nproc two train.py",
    "run --cpus nan train.py",
    "run --detach=yes train.py",
    "run --name",
    "run --name --detach train.py",
    "run -dn a train.py",
    "submit",
    "submit a.yaml b.yaml",
    "submit a.yaml --json",
]


def command_of(name: str) -> Any:  # whose classes depend on Typer's version
    group: Any = typer.main.get_command(build_app())
    return group.commands[name]


def as_parsed(words: list[str]) -> dict[str, Any]:
    parsed = command_of(words[0]).make_context(words[0], words[1:]).params
    return {name: value for name, value in parsed.items() if value not in (None, [], ()) and value is not False}


@pytest.mark.parametrize("line", PLAIN)
def test_a_plain_line_means_the_same(line: str) -> None:
    given = shortcut.parse_line(line.split())
    assert given is not None
    assert {name: value for name, value in given.items() if value != []} == as_parsed(line.split())


@pytest.mark.parametrize("line", LEFT)
def test_other_lines_are_left_to_the_parser(line: str) -> None:
    assert shortcut.parse_line(line.split()) is None


@pytest.mark.parametrize("name", ["run", "submit"])
def test_every_option_is_known(name: str) -> None:
    options = [param for param in command_of(name).params if param.param_type_name == "option"]
    found = {word: param for param in options for word in param.opts if param.name != "help"}
    values = {word: param.name for word, param in found.items() if not param.is_flag}
    assert values == shortcut.VALUES[name]
    assert {word: param.name for word, param in found.items() if param.is_flag} == shortcut.FLAGS[name]
    assert {param.name for param in found.values() if param.multiple} == shortcut.REPEATED


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("train.py --nproc 8 --plan=shard=8 --lr 3", ["--nproc", "--plan"]),
        ("python train.py --gpus 2 --detach", ["--gpus", "--detach"]),
        ("train.py --seed 3 --name a -p 1 --layers 2 nproc", []),
        ("torchrun --nodes 2 train.py", []),
        ("nproc --all", []),
    ],
)
def test_options_after_the_script_are_found(line: str, found: list[str]) -> None:
    """But for those that scripts often have themselves."""
    assert shortcut.misplaced(line.split()) == found


def test_options_after_the_script_are_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are sent on all the same: the script may have options of these names."""
    sent: list[Any] = []

    def send(where: Connection, file: Path | None, wanted: Any, secrets: Any) -> tuple[None, dict[str, str]]:
        sent.append(wanted)
        return None, {"id": "r-1"}

    monkeypatch.setattr(sending, "_send", send)
    sending.run(Connection(None, Path("/nowhere")), {"command": ["train.py", "--nproc", "8"], "detach": True})
    assert sent[0]["args"] == ["--nproc", "8"]
    told = "--nproc goes to the script, as all words after it do; options of `windlass run` stand before it"
    assert capsys.readouterr().err == f"warning: {told}\n"


def test_the_short_way_loads_neither_parser_nor_models() -> None:
    script = (
        "import sys, windlass.cli.main, windlass.cli.shortcut, windlass.cli.sending, windlass.client.client\n"
        "import windlass.client.submission, windlass.client.embedded, windlass.client.provenance\n"
        "print(*({'typer', 'click', 'httpx', 'pydantic', 'yaml', 'rich', 'pathspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_a_reader_that_has_enough_is_no_error() -> None:
    """As with the parser: `windlass run train.py | head -1`."""
    script = "from windlass.cli import main; main._act = lambda words: print('line\\n' * 100_000); main.main()"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"line\n"
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(150) == 1
