"""Products in 8 bits: as close to exact ones as 8 bits are, forward and backward, and close enough to learn with.

Torch multiplies 8-bit matrices on CPUs too, slowly, so that all but the GPU's own arithmetic is tested everywhere.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.unit.job.parallel.models import batch, small_gpt  # noqa: E402
from windlass.job.fp8 import LOW, Fp8Linear, _Product, apply_fp8, has_layers, scaled  # noqa: E402

pytestmark = pytest.mark.torch

nn = torch.nn
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(
            not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9),
            reason="needs a GPU with 8-bit products",
        ),
    ),
]


def _layers(device: str = "cpu", *, bias: bool = True) -> tuple[nn.Linear, nn.Linear]:
    """The same layer twice, with and without 8 bits."""
    torch.manual_seed(0)
    exact = nn.Linear(64, 48, bias=bias, device=device)
    low = nn.Sequential(nn.Linear(64, 48, bias=bias, device=device))
    low[0].load_state_dict(exact.state_dict())
    apply_fp8([low])
    assert isinstance(low[0], Fp8Linear)
    return exact, low[0]


def _off(ours: torch.Tensor, exact: torch.Tensor) -> float:
    return float((ours.double() - exact.double()).norm() / exact.double().norm())


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e20])
def test_a_scale_makes_the_most_of_the_type_in_every_row(size: float) -> None:
    x = size * torch.randn(3, 100, generator=torch.Generator().manual_seed(0))
    x[1] *= 1e6
    low, scale = scaled(x)
    assert low.dtype is LOW
    assert low.float().abs().amax(dim=1).eq(torch.finfo(LOW).max).all()
    for row in range(3):
        assert _off((low.float() * scale)[row], x[row]) < 0.05


def test_zeros_and_what_is_no_number() -> None:
    low, scale = scaled(torch.zeros(2, 4))
    assert (low.float() * scale).eq(0).all()
    low, scale = scaled(torch.tensor([[1.0, float("nan")], [1.0, 2.0]]))
    assert (low.float() * scale).isnan().any(dim=1).tolist() == [True, False]
    low, scale = scaled(torch.tensor([[1.0, float("inf")]]))
    assert (low.float() * scale).isnan().any(), "an overflow must be seen by whoever looks at the gradient's norm"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, in its compiler
def test_values_and_gradients_are_as_close_as_8_bits_are(device: str, compiled: bool) -> None:
    exact, low = _layers(device)
    x, weights = torch.randn(4, 16, 64, device=device), torch.randn(4, 16, 48, device=device)
    found = []
    backend = "inductor" if device == "cuda" else "aot_eager"
    for layer in (exact, low):
        of = torch.compile(layer, backend=backend, fullgraph=True) if compiled and layer is low else layer
        inputs = x.clone().requires_grad_()
        out = of(inputs)
        found.append([out.detach(), *torch.autograd.grad((out.float() * weights).sum(), (inputs, *layer.parameters()))])
    for ours, exactly in zip(found[1], found[0], strict=True):
        assert ours.shape == exactly.shape
        assert 0 < _off(ours, exactly) < 0.08
    assert [gradient.dtype for gradient in found[1][1:]] == [torch.float32] * 3


def test_matrices_lie_as_a_gpu_wants_them() -> None:
    """Torch checks that without a GPU on tensors that have no memory; CPUs take any order."""
    x = torch.randn(64, 32, device="meta", requires_grad=True)
    weight = torch.randn(48, 64, device="meta", requires_grad=True)
    gradient = torch.empty(48, 32, device="meta", dtype=torch.bfloat16).t()
    _Product.apply(x.t(), weight).backward(gradient)
    assert x.grad is not None
    assert weight.grad is not None
    eights, one = torch.empty(32, 32, device="meta", dtype=LOW), torch.ones((), device="meta")
    with pytest.raises(RuntimeError, match=r"column|col_major"):
        torch._scaled_mm(eights, eights, one, one, out_dtype=torch.bfloat16)


def test_what_is_not_trained_gets_no_gradient() -> None:
    _, low = _layers(bias=False)
    low.weight.requires_grad_(False)
    x = torch.randn(16, 64, requires_grad=True)
    low(x).sum().backward()
    assert x.grad is not None
    assert low.weight.grad is None


def test_rows_that_do_not_fit_are_multiplied_as_usual() -> None:
    exact, low = _layers()
    x = torch.randn(3, 64)
    torch.testing.assert_close(low(x), exact(x))


def test_only_layers_that_fit_and_only_in_blocks() -> None:
    model = small_gpt()
    names = [name for name, _ in model.named_parameters()]
    weights = dict(model.named_parameters())
    apply_fp8(model.blocks.values())
    low = [name for name, module in model.named_modules() if isinstance(module, Fp8Linear)]
    assert len(low) == 5 * len(model.blocks), "attention has two of them, SwiGLU three"
    assert [name for name, _ in model.named_parameters()] == names
    assert all(parameter is weights[name] for name, parameter in model.named_parameters())
    assert not has_layers(model.blocks.values()), "nothing is left to change"
    assert not has_layers([nn.Sequential(nn.Linear(16, 24))])


def test_a_small_model_learns_about_the_same() -> None:
    losses = []
    for low in (False, True):
        model = small_gpt()
        if low:
            apply_fp8(model.blocks.values())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(20):
            inputs, targets = batch()
            with torch.autocast("cpu", torch.bfloat16):
                logits = model(inputs)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] < 2.0, "a guess among 32 costs 3.47"
    assert losses[1] == pytest.approx(losses[0], rel=0.1)
