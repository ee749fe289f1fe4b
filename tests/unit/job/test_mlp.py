"""Two linear layers with a GELU between them, in one function: the same as three, with and without a compiler."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from windlass.job import mlp  # noqa: E402

pytestmark = pytest.mark.torch

F = torch.nn.functional
Case = tuple["torch.Tensor", ...]


def _case(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Case:
    torch.manual_seed(0)
    shapes = ((3, 8, 16), (64, 16), (16, 64), (3, 8, 16))
    return tuple(torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for shape in shapes)


def _usual(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, states: torch.Tensor | float = 0.0) -> torch.Tensor:
    return F.linear(F.gelu(F.linear(x, up), approximate="tanh"), down) + states


def _with_gradients(out: torch.Tensor, case: Case) -> list[torch.Tensor]:
    weights = torch.linspace(-1, 1, out.numel(), device=out.device, dtype=out.dtype).view(out.shape)
    return [out.detach(), *torch.autograd.grad(out, case, weights)]


@pytest.mark.parametrize("tensors", [3, 4], ids=["alone", "added to states"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_same_values_and_gradients(tensors: int, dtype: torch.dtype) -> None:
    case = _case(dtype=dtype)[:tensors]
    ours, usual = _with_gradients(mlp.gelu_mlp(*case), case), _with_gradients(_usual(*case), case)
    for one, other in zip(ours, usual, strict=True):
        assert (one.float() - other.float()).norm() <= (1e-6 if dtype is torch.float32 else 0.02) * other.float().norm()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's compiler does it
def test_a_compiler_sees_it_whole() -> None:
    case = _case()
    compiled = torch.compile(mlp.gelu_mlp, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(_with_gradients(compiled(*case), case), _with_gradients(_usual(*case), case))


def test_a_cpu_has_nothing_to_gain() -> None:
    x, *_ = _case()
    up, down = torch.nn.Linear(16, 64, bias=False), torch.nn.Linear(64, 16, bias=False)
    with torch.autocast("cpu", torch.bfloat16):
        assert not mlp.fuses(x, up, down)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="cuBLASLt needs a GPU")
def test_cublaslt_does_the_same() -> None:
    case = _case("cuda", torch.bfloat16)
    ours, usual = _with_gradients(mlp.gelu_mlp(*case), case), _with_gradients(_usual(*case), case)
    for one, other in zip(ours, usual, strict=True):
        assert (one.float() - other.float()).norm() <= 0.02 * other.float().norm()
