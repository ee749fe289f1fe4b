"""`windlass plan`: its answer as text (UPDATE_GOLDEN=1 writes it anew) and as JSON, terminals, and refusals."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from windlass.cli.commands import build_app
from windlass.cli.terminal import cells
from windlass.core.errors import InvalidInput
from windlass.core.plan import parse_plan
from windlass.core.wanted import parse_wanted

GOLDEN = Path(__file__).with_name("golden")
SEVEN_B = ["--params", "7B", "--gpus", "64", "--gpu-type", "a100-80g", "--tokens", "1T"]


def answer(*words: str) -> str:
    result = CliRunner().invoke(build_app(), ["plan", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def test_the_answer() -> None:
    golden("seven_b.txt", answer(*SEVEN_B, "--top", "5"))


def test_json_has_what_the_table_has_and_more() -> None:
    found = json.loads(answer(*SEVEN_B, "--top", "3", "--json"))
    assert len(found["plans"]) == 3
    best = found["plans"][0]
    plan = parse_plan(best["plan"])
    assert plan.sized(64) == plan
    assert plan.check_batch(found["batch"]) == best["microbatch"]
    assert best["usd"] == pytest.approx(best["days"] * 24 * 64 * found["usd_per_gpu_hour"])
    assert best["memory_bytes"]["total"] < found["cluster"]["memory_bytes"]
    assert sum(share for name, share in best["step_s"].items() if name != "total") == pytest.approx(
        best["step_s"]["total"]
    )
    assert found["assumed"][0].endswith("(as in Llama 2 7B)")


def test_nothing_is_assumed_that_was_said() -> None:
    words = "--layers 32 --width 4096 --heads 32 --vocabulary 32000 --sequence 2048 --batch 512 --gpus-per-node 8"
    found = json.loads(answer(*SEVEN_B, *words.split(), "--interconnect", "800Gb/s", "--price", "1.5", "--json"))
    assert found["assumed"] == []
    assert found["cluster"]["node_gbps"] == 800
    assert found["usd_per_gpu_hour"] == 1.5


def test_plans_can_be_asked_to_have_something() -> None:
    found = json.loads(answer(*SEVEN_B, "--plan", "tensor=4,pipeline=2", "--precision", "fp16", "--json"))
    for row in found["plans"]:
        assert (row["plan"]["tensor"], row["plan"]["pipeline"], row["plan"]["precision"]) == (4, 2, "fp16")


@pytest.mark.parametrize(
    "named", ["zero=3", "shard=1", "accumulate=1", "compile=false", "precision=fp32", "auto,zero=1"]
)
def test_what_is_named_is_kept_though_it_is_the_default(named: str) -> None:
    found = json.loads(answer(*SEVEN_B, "--plan", named, "--json"))
    kept = parse_wanted("auto," + named.removeprefix("auto,")).named
    assert all(
        getattr(parse_plan(row["plan"]), name) == value for row in found["plans"] for name, value in kept.items()
    )


def test_the_plan_to_copy_is_in_one_line() -> None:
    words = ["--plan", "tensor=2,pipeline=2,clip=1,on_nan=skip,activation_checkpoint=full,schedule=interleaved"]
    (line,) = (line for line in answer(*SEVEN_B, *words).splitlines() if line.startswith("first:"))
    assert len(line) > 150
    plan = parse_plan(line.split()[-1])
    assert plan.sized(64) == plan


def test_a_pipeline_has_no_tied_head() -> None:
    small = ["--params", "124M", "--gpus", "2", "--gpu-type", "h100", "--json"]
    assert json.loads(answer(*small))["model"]["tied"] is True
    assert json.loads(answer(*small, "--untied"))["model"]["tied"] is False
    assert json.loads(answer(*small, "--plan", "pipeline=2"))["model"]["tied"] is False


def test_without_tokens_there_are_no_days() -> None:
    text = answer("--params", "124M", "--gpus", "1", "--gpu-type", "l4")
    assert "DAYS" not in text
    assert "TOKENS/S" in text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [50, 80, 120, 200])
def test_the_table_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout", terminal)
    build_app()(["plan", *SEVEN_B], standalone_mode=False)
    lines = terminal.getvalue().splitlines()
    # A plan to copy is never broken.
    assert [line for line in lines if cells(line) > columns and "precision=" not in line] == []
    header = next(line for line in lines if line.startswith("PLAN"))
    assert header.split()[:5] == ["PLAN", "GB/GPU", "MFU", "DAYS", "COST"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--params 7x --gpus 8 --gpu-type h100", "--params '7x' is not a number from 1"),
        ("--params 7B --gpus 8", "--gpu-type is missing; known: a100-40g, a100-80g"),
        ("--params 7B --gpus 8 --gpu-type h101", "unknown GPU type 'h101'; did you mean 'h100'"),
        ("--params 7B --gpus 8 --gpu-type cpu", "only GPUs are reckoned; known: a100-40g"),
        ("--params 7B --gpus 8 --gpu-type h100 --precision bf15", "'bf15'; options: fp32, bf16, fp16, fp8"),
        ("--params 7B --gpus 8 --gpu-type h100 --interconnect fast", "--interconnect 'fast' is not a speed"),
        ("--params 7B --gpus 8 --gpu-type h100 --plan tensr=2", "did you mean 'tensor'?"),
        ("--params 1 --gpus 8 --gpu-type h100", "a model of 1 parameters is too small"),
        ("--params 7B --gpus 12 --gpu-type h100", "--gpus 12 are no whole number of nodes with 8 GPUs; 8 or 16"),
        ("--params 7B --gpus 8 --gpu-type h100 --plan precision=bf16 --precision fp16", "give one of them"),
        ("--params 7B --gpus 8 --gpu-type h100 --plan tensor=2 --precision fp8", "tensor=2 divides them"),
        ("--params 70B --gpus 8 --gpu-type a100", "no plan fits 70B parameters on 8 × a100-80g"),
        ("--params 7B --gpus 8 --gpu-type v100-32g --precision bf16", "v100-32g has no bf16; options: fp32, fp16"),
    ],
)
def test_refusals(words: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        CliRunner().invoke(build_app(), ["plan", *words.split()], catch_exceptions=False)
    assert message in caught.value.message
