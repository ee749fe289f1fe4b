"""Weights in two precisions: the optimizer's are exact, the model's follow them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from windlass.job.adamw import NarrowAdamW, exact_weights, narrow_weights  # noqa: E402

pytestmark = pytest.mark.torch

nn = torch.nn
OPTIONS = {"lr": 1e-2, "weight_decay": 0.1, "betas": (0.9, 0.95)}


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4))


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, *, narrow: bool) -> None:
    inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            loss = model(inputs).float().square().mean()
        loss.backward()
        optimizer.step()


def test_plain_parameters_are_trained_as_by_torch() -> None:
    ours, torchs = _model(), _model()
    _train(ours, NarrowAdamW(ours.parameters(), **OPTIONS), 10, narrow=False)
    _train(torchs, torch.optim.AdamW(torchs.parameters(), **OPTIONS), 10, narrow=False)
    for one, other in zip(ours.parameters(), torchs.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_narrow_weights_move_by_less_than_they_can_show() -> None:
    model = _model()
    first = {name: value.clone() for name, value in model.state_dict().items()}
    narrow_weights([model])
    assert model[0].weight.dtype == torch.bfloat16
    assert model[1].weight.dtype == torch.float32
    tiny = {**OPTIONS, "lr": 1e-6, "weight_decay": 0.0}
    optimizer = NarrowAdamW(model.parameters(), **tiny)
    torch.testing.assert_close(exact_weights(model, optimizer), first)  # before the first step
    _train(model, optimizer, 20, narrow=True)
    moved = exact_weights(model, optimizer)["0.weight"] - first["0.weight"]
    assert moved.abs().max() > 1e-5, "twenty steps of a millionth add up, as they would not in bf16"
    torch.testing.assert_close(model[0].weight.float(), exact_weights(model, optimizer)["0.weight"].bfloat16().float())


def test_a_factor_is_for_one_step() -> None:
    model = _model()
    optimizer = NarrowAdamW(model.parameters(), **{**OPTIONS, "weight_decay": 0.0})
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.factor = torch.tensor(0.0)
    _train(model, optimizer, 1, narrow=False)
    torch.testing.assert_close(list(model.parameters()), before)
    assert optimizer.factor is None
    _train(model, optimizer, 1, narrow=False)
    assert not torch.equal(model[0].weight, before[0])


def test_what_is_saved_is_exact_and_goes_on_as_if_nothing_had_been() -> None:
    going_on, saved = _model(), _model()
    narrow_weights([going_on])
    narrow_weights([saved])
    optimizer = NarrowAdamW(going_on.parameters(), **OPTIONS)
    _train(going_on, optimizer, 5, narrow=True)
    restored = NarrowAdamW(saved.parameters(), **OPTIONS)
    saved.load_state_dict(going_on.state_dict())
    restored.load_state_dict(optimizer.state_dict())
    _train(going_on, optimizer, 5, narrow=True)
    _train(saved, restored, 5, narrow=True)
    torch.testing.assert_close(exact_weights(saved, restored), exact_weights(going_on, optimizer), rtol=0, atol=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the Triton kernel needs a GPU")
@pytest.mark.parametrize("narrow", [False, True], ids=["fp32", "bf16"])
def test_the_kernel_does_the_same(narrow: bool) -> None:
    """Steps with a clipping factor, on a GPU and on a CPU, from the same gradients."""
    trained = []
    for device in ("cpu", "cuda"):
        model = _model().to(device)
        if narrow:
            narrow_weights([model])
        optimizer = NarrowAdamW(model.parameters(), **OPTIONS)
        draw = torch.Generator().manual_seed(2)
        for _ in range(3):
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=draw).to(device, parameter.dtype)
            optimizer.factor = torch.tensor(0.5, device=device)
            optimizer.step()
        exact = exact_weights(model, optimizer)
        trained.append({name: value.cpu() for name, value in {**exact, "narrow": model[0].weight.detach()}.items()})
    torch.testing.assert_close(trained[1], trained[0])
