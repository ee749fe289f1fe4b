"""The loss that never holds all logits: the same loss and gradients as the usual one, part by part."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from windlass.job.losses import IGNORED, linear_cross_entropy  # noqa: E402

pytestmark = pytest.mark.torch

F = torch.nn.functional


def _case(device: str, dtype: torch.dtype, words: int = 101) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    states = torch.randn(3, 37, 16, dtype=dtype, device=device, requires_grad=True)
    weight = torch.randn(words, 16, device=device, requires_grad=True)
    targets = torch.randint(words, (3, 37), device=device)
    targets[0, :5] = IGNORED
    return states, weight, targets


def _usual(states: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, ...]:
    loss = F.cross_entropy((states.double() @ weight.double().T).flatten(0, 1), targets.flatten())
    return loss.detach(), *torch.autograd.grad(3 * loss, (states, weight))


@pytest.mark.parametrize("rows", [1000, 111, 20, 1], ids=lambda rows: f"{rows} rows at a time")
def test_loss_and_gradients_are_the_usual_ones(rows: int) -> None:
    case = _case("cpu", torch.float32)
    loss = linear_cross_entropy(*case, rows=rows)
    gradients = torch.autograd.grad(3 * loss, case[:2])
    for ours, usual in zip((loss.detach(), *gradients), _usual(*case), strict=True):
        torch.testing.assert_close(ours, usual.to(ours.dtype), rtol=1e-5, atol=1e-6)


def test_half_precision_is_as_close_as_half_precision_is() -> None:
    case = _case("cpu", torch.bfloat16)
    loss = linear_cross_entropy(*case, rows=50)
    gradients = torch.autograd.grad(3 * loss, case[:2])
    for ours, usual in zip((loss.detach(), *gradients), _usual(*case), strict=True):
        assert (ours.double() - usual.double()).norm() <= 0.01 * usual.double().norm()


def test_targets_that_are_all_ignored_cost_nothing() -> None:
    states, weight, targets = _case("cpu", torch.float32)
    loss = linear_cross_entropy(states, weight, torch.full_like(targets, IGNORED))
    assert loss.item() == 0.0
    assert not any(gradient.any() for gradient in torch.autograd.grad(loss, (states, weight)))


def test_without_gradients() -> None:
    case = _case("cpu", torch.float32)
    with torch.no_grad():
        loss = linear_cross_entropy(*case)
    assert not loss.requires_grad
    assert loss.item() == pytest.approx(_usual(*case)[0].item(), rel=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the Triton kernel needs a GPU")
def test_the_kernel_does_the_same() -> None:
    case = _case("cuda", torch.bfloat16, words=50_304)
    loss = linear_cross_entropy(*case, rows=64)
    gradients = torch.autograd.grad(3 * loss, case[:2])
    for ours, usual in zip((loss.detach(), *gradients), _usual(*case), strict=True):
        assert (ours.double() - usual.double()).norm() <= 0.01 * usual.double().norm()
