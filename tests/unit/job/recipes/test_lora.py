"""The recipe `lora`, on a tiny Llama with random weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.unit.job.processes import run_processes  # noqa: E402
from tests.unit.job.recipes.models import save_llama  # noqa: E402
from windlass.core.errors import InvalidInput  # noqa: E402
from windlass.job.recipes.lora import (  # noqa: E402
    NOT_LEARNED,
    Logits,
    Settings,
    apply_adapters,
    load_model,
    read_samples,
)

pytestmark = pytest.mark.torch

SCRIPT = """
import torch
torch.set_num_threads(1)
from windlass.job.recipes import lora
lora.main()
"""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("models") / "llama")


def bytes_of(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.slow
def test_adapters_begin_as_nothing_and_are_all_that_is_learned(llama: Path) -> None:
    model, tokens_of = load_model(str(llama))
    inputs = torch.tensor([tokens_of("a line")])
    before = Logits(model)(inputs)
    names = apply_adapters(model, Settings(model="", data="", rank=4))
    assert len(names) == 8  # four in each of two layers
    torch.testing.assert_close(Logits(model)(inputs), before)
    learned = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert len(learned) == 16
    assert all(".lora_" in name for name in learned)


@pytest.mark.slow
def test_layers_that_are_not_there_are_named(llama: Path) -> None:
    model, _ = load_model(str(llama))
    with pytest.raises(InvalidInput, match=r"no linear layer is called query; there are: .*q_proj"):
        apply_adapters(model, Settings(model="", data="", targets=("query",)))


def test_only_completions_are_learned(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "ab", "completion": "cd"}\n\n{"text": "xyz"}\n{"completion": "pq" }\n')
    samples = read_samples(path, bytes_of, 5)
    no = NOT_LEARNED
    assert [(bytes(inputs.tolist()), targets.tolist()) for inputs, targets in samples] == [
        (b"abc\0\0", [no, ord("c"), ord("d"), no, no]),
        (b"xy\0\0\0", [ord("y"), ord("z"), no, no, no]),
        (b"p\0\0\0\0", [ord("q"), no, no, no, no]),
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"text": "ab"}\n{"question": "ab"}', "data.jsonl:2 has neither `text` nor `completion`; it has: question"),
        ("", r"data.jsonl has no samples; each line is a JSON object"),
        ("[1,2]", r"data.jsonl:1 is no JSON object, but \[1,2\]"),
        ('\n{"text"', "data.jsonl:2 is no JSON: "),
        ('{"text": 7}', "data.jsonl:1: `text` is 7, but must be a text"),
        ('{"prompt": "ab", "completion": ""}', "from .*data.jsonl:1: its `completion` has too few tokens"),
        ('{"completion": "a"}', "from .*data.jsonl:1: its `completion` has too few tokens"),
        ('{"prompt": "abcdef", "completion": "g"}', "data.jsonl:1: the prompt alone has 6 tokens, of the 5"),
    ],
)
def test_samples_that_teach_nothing_are_refused_with_their_line(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=words):
        read_samples(path, bytes_of, 5)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"data.txt', which cannot be read"):
        read_samples(tmp_path / "data.txt", bytes_of, 5)


UNEVEN = """
import sys, torch
from torch import nn
from windlass import job
from windlass.job.recipes import lora
torch.manual_seed(1)
samples = lora.read_samples(lora.Path(sys.argv[1]), lambda text: list(text.encode()), 24)
config = lora.Settings(model="", data="", batch=8)
model = nn.Sequential(nn.Embedding(256, 8), nn.Linear(8, 256))
parallel = job.parallelize(model, loss=lora.loss_for(config.batch), batch=config.batch)
optimizer = job.optimizer(parallel, torch.optim.SGD, lr=1.0)
feed = lora.batches(samples, config, parallel)
losses = []
for _ in range(3):
    losses.append(float(parallel.step(*next(feed))))
    optimizer.step()
    optimizer.zero_grad()
sys.stdout.write(f"losses {losses}\\n")
"""


def test_completions_of_any_length_count_the_same_under_every_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.jsonl"
    rows = [{"prompt": "ab", "completion": "cd" * length} for length in (1, 1, 2, 9)]
    path.write_text("\n".join(map(json.dumps, rows)))
    told = []
    plans = {"": 1, "accumulate=2": 1, "accumulate=8": 1, "data=2": 2, "shard=2,accumulate=2": 2}
    for plan, count in plans.items():
        monkeypatch.setenv("WINDLASS_PLAN", plan)
        script = UNEVEN.replace("sys.argv[1]", repr(str(path)))
        lines = run_processes(script, tmp_path, count=count)[0].splitlines()
        told.append(json.loads(next(line for line in lines if line.startswith("losses")).removeprefix("losses ")))
    for losses in told[1:]:
        assert losses == pytest.approx(told[0], rel=1e-5)


def test_a_text_is_cut_into_pieces(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("abcdefgh")
    samples = read_samples(path, bytes_of, 3)
    assert [(bytes(x.tolist()), bytes(y.tolist())) for x, y in samples] == [(b"abc", b"bcd"), (b"def", b"efg")]


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["data=2", "shard=2"])
def test_two_processes_learn_and_leave_an_adapter(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: str
) -> None:
    (tmp_path / "data.txt").write_text("the anchor is up and the sails are set\n" * 20)
    params = {"model": str(llama), "data": str(tmp_path / "data.txt"), "steps": 30, "lr": 0.02, "sequence": 32}
    params["targets"] = "q_proj,v_proj,down_proj,lm_head"
    monkeypatch.setenv("WINDLASS_PARAMS", json.dumps(params))
    monkeypatch.setenv("WINDLASS_PLAN", plan)
    outputs = run_processes(SCRIPT, tmp_path)
    assert "5,632 of 40,608 parameters are learned, in 7 layers" in outputs[0]
    losses = [
        point["m"]["loss"]
        for point in map(json.loads, (tmp_path / "metrics-0.jsonl").read_text().splitlines())
        if "loss" in point.get("m", {})
    ]
    assert losses[0] > 4.5
    assert losses[-1] < 2.5
    folder = tmp_path / "output" / "adapter"
    about = json.loads((folder / "adapter_config.json").read_text())
    assert (about["peft_type"], about["r"]) == ("LORA", 8)
    from safetensors.torch import load_file

    saved = load_file(folder / "adapter_model.safetensors")
    assert len(saved) == 14
    shape = saved["base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"].shape
    assert tuple(shape) == (8, 32)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"must be a folder with a config\.json"):
        load_model(str(tmp_path))
