"""The recipe `gpt`: its model, and that one and two processes learn the same and leave the same weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.unit.job.processes import run_processes  # noqa: E402
from windlass.core.errors import InvalidInput  # noqa: E402
from windlass.core.plan import Plan  # noqa: E402
from windlass.job.recipes.gpt import (  # noqa: E402
    GPT,
    GPTConfig,
    Settings,
    config_of,
    loss_of,
    parallel_of,
    schedule_of,
)

pytestmark = pytest.mark.torch

STYLES = {
    "gpt2": GPTConfig(style="gpt2", vocabulary=96, context=32, layers=2, heads=4, width=32),
    "gpt2 with biases": GPTConfig(style="gpt2", vocabulary=96, context=32, layers=2, heads=4, width=32, bias=True),
    "llama": GPTConfig(style="llama", vocabulary=96, context=32, layers=2, heads=4, kv_heads=2, width=32),
}
SCRIPT = """
import sys, torch
torch.set_num_threads(1)
from windlass.job.recipes import gpt
sys.stdout.write(f"unseen {gpt.main()}\\n")
"""


@pytest.fixture(params=STYLES)
def model(request: pytest.FixtureRequest) -> GPT:
    torch.manual_seed(0)
    return GPT(STYLES[request.param])


def test_a_token_changes_nothing_before_it(model: GPT) -> None:
    tokens = torch.randint(96, (2, 20))
    other = tokens.clone()
    other[:, 12] = (other[:, 12] + 1) % 96
    before, after = model(tokens), model(other)
    torch.testing.assert_close(before[:, :12], after[:, :12])
    assert (before[:, 12:] - after[:, 12:]).abs().amax(-1).min() > 0, "and all after it"


def test_positions_matter(model: GPT) -> None:
    repeated = torch.full((1, 8), 5)
    repeated[0, 0] = 9
    logits = model(repeated)[0]
    assert not torch.allclose(logits[3], logits[4], atol=1e-6)


def test_the_head_in_the_loss_learns_the_same(model: GPT) -> None:
    tokens, targets = torch.randint(96, (2, 2, 20)).unbind()
    losses, gradients = [], []
    for inside in (False, True):
        model.head_in_loss = inside
        model.zero_grad()
        loss = loss_of(model(tokens), targets)
        loss.backward()
        losses.append(loss.item())
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


def test_a_stage_of_it_works_alone(model: GPT) -> None:
    tokens = torch.randint(96, (2, 20))
    whole = model(tokens)
    last = GPT(model.config)
    last.load_state_dict(model.state_dict())
    model.norm = model.head = None
    del model.blocks["1"]
    last.tokens = last.positions = None
    del last.blocks["0"]
    torch.testing.assert_close(last(model(tokens)), whole)


def test_half_of_the_heads_work_alone(model: GPT) -> None:
    """What tensor parallelism does: rows of the first product, columns of the second, results added."""
    attention, x = model.blocks["0"].attention, torch.randn(2, 10, 32)
    layers = {name: getattr(attention, name) for name in "qkv"}
    for layer in layers.values():
        if layer.bias is not None:
            torch.nn.init.normal_(layer.bias)
    nothing = torch.zeros(2, 10, 32)
    whole, total = attention(x, nothing), nothing
    state = {name: value.clone() for name, value in attention.state_dict().items()}
    for half in range(2):
        for name, layer in layers.items():
            for kind, parameter in layer.named_parameters():
                parameter.data = state[f"{name}.{kind}"].chunk(2, dim=0)[half]
        attention.out.weight.data = state["out.weight"].chunk(2, dim=1)[half]
        total = attention(x, total)
    torch.testing.assert_close(total, whole, rtol=1e-4, atol=1e-5)


def test_memory_can_come_later(model: GPT) -> None:
    with torch.device("meta"):
        later = GPT(model.config)
    later.to_empty(device="cpu")
    later.tie()
    later.reset_parameters()
    tokens = torch.randint(96, (2, 20))
    assert later(tokens).std().item() == pytest.approx(model(tokens).std().item(), rel=0.3)
    assert (later.head.weight is later.tokens.weight) == model.config.is_tied


def test_the_table_names_what_is_there(model: GPT) -> None:
    names = {name for name, _ in model.named_modules()}
    split = model.split()
    for pattern in split.tensor:
        assert pattern.replace("*", "0") in names
    assert {split.blocks, *split.first, *split.last} <= names


def test_what_is_refused() -> None:
    with pytest.raises(InvalidInput, match="350m"):
        config_of(Settings(size="355m"))
    with pytest.raises(InvalidInput, match="gpt2"):
        GPTConfig(style="gtp2")
    with pytest.raises(InvalidInput, match="width=100"):
        GPTConfig(width=100)


def test_the_schedule() -> None:
    lr = schedule_of(Settings(steps=110, warmup=10, lr=1.0, last_lr=0.1))
    rates = [lr(step) for step in range(111)]
    assert rates[:2] == pytest.approx([0.1, 0.2])
    assert max(rates) == pytest.approx(1.0)
    assert rates[60] == pytest.approx(0.55)
    assert rates[110] == pytest.approx(0.1)


@pytest.mark.parametrize("plan", ["auto", "data=1"])
def test_gradients_are_clipped_whoever_chose_the_plan(plan: str) -> None:
    assert parallel_of(Settings(layers=1), plan).plan.clip == 1.0
    assert parallel_of(Settings(layers=1, clip=0.5), plan).plan.clip == 0.5
    assert parallel_of(Settings(layers=1), Plan(clip=2.0)).plan.clip == 2.0


def test_a_plan_is_chosen_that_divides_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = {"steps": 2, "layers": 1, "batch": 15, "evaluate_batches": 1}
    monkeypatch.setenv("WINDLASS_PARAMS", json.dumps(params))
    monkeypatch.setenv("WINDLASS_PLAN", "auto")
    outputs = run_processes(SCRIPT, tmp_path, count=2)
    assert "tensor=2" in outputs[0]
    assert "clip=1" in outputs[0]


@pytest.mark.timeout(900)
def test_plans_learn_the_same_and_save_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = {"steps": 12, "warmup": 3, "layers": 1, "evaluate_every": 6, "evaluate_batches": 2}
    monkeypatch.setenv("WINDLASS_PARAMS", json.dumps(params))
    unseen, weights = [], []
    for number, (plan, count) in enumerate([("", 1), ("data=2", 2), ("shard=2,zero=3", 2)]):
        monkeypatch.setenv("WINDLASS_PLAN", plan)
        folder = tmp_path / str(number)
        folder.mkdir()
        outputs = run_processes(SCRIPT, folder, count=count, timeout_s=280)
        unseen.append(next(float(line.split()[1]) for line in outputs[0].splitlines() if line.startswith("unseen")))
        points = [json.loads(line)["m"] for line in (folder / "metrics-0.jsonl").read_text().splitlines()]
        assert sum("held_out_loss" in point for point in points) == 2
        assert any("loss" in point and "lr" in point for point in points)
        saved = torch.load(folder / "output" / "model.pt")
        GPT(GPTConfig(**saved["config"])).load_state_dict(saved["weights"])
        weights.append(saved["weights"])
    assert unseen[0] < 6.1  # a guess among 512 words costs 6.24
    assert unseen[1:] == pytest.approx([unseen[0]] * 2, rel=1e-4)
    for other in weights[1:]:
        torch.testing.assert_close(other, weights[0], rtol=1e-2, atol=1e-3)
