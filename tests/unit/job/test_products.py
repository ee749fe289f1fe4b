"""Linear layers with the fastest products: the same values and gradients as the usual ones, however matrices lie."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from windlass.job import cublaslt, products  # noqa: E402
from windlass.job.layers import plain_linears  # noqa: E402

pytestmark = pytest.mark.torch

nn = torch.nn
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0), reason="needs a GPU (Hopper or later)"
)


def _outcome(layer: nn.Linear, x: torch.Tensor) -> list[torch.Tensor]:
    inputs = x.clone().requires_grad_()
    out = layer(inputs)
    weights = 1 + torch.rand(out.shape, generator=torch.Generator().manual_seed(1)).bfloat16()  # sums far from zero
    return [out.detach(), *torch.autograd.grad(out, (inputs, *layer.parameters()), weights.to(out))]


def _twins(*, bias: bool, device: str, dtype: torch.dtype) -> tuple[nn.Linear, nn.Linear]:
    torch.manual_seed(0)
    usual = nn.Linear(64, 48, bias=bias, device=device, dtype=dtype)
    fast = products.FastLinear(64, 48, bias=bias, device=device, dtype=dtype)
    fast.load_state_dict(usual.state_dict())
    return usual, fast


def test_layers_in_blocks_change_and_their_parameters_stay() -> None:
    class Own(nn.Linear):
        pass

    block = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Sequential(Own(16, 8), nn.Linear(8, 8, bias=False)))
    before = dict(block.named_parameters())
    products.apply_fastest([block])
    assert [type(layer) for layer in (block[0], block[2][0], block[2][1])] == [
        products.FastLinear,
        Own,
        products.FastLinear,
    ]
    assert all(parameter is before[name] for name, parameter in block.named_parameters())
    assert not list(plain_linears([block], lambda _: True))


def test_hooks_stay_where_they_are() -> None:
    seen: list[type[nn.Module]] = []
    block = nn.Sequential(nn.Linear(8, 8))
    block[0].register_forward_hook(lambda layer, *_: seen.append(type(layer)))
    products.apply_fastest([block])
    block(torch.zeros(2, 8))
    assert seen == [products.FastLinear]


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_on_a_cpu_it_is_the_usual_layer(bias: bool) -> None:
    usual, fast = _twins(bias=bias, device="cpu", dtype=torch.float32)
    x = torch.randn(3, 8, 64)
    torch.testing.assert_close(_outcome(fast, x), _outcome(usual, x), rtol=0, atol=0)


@pytest.mark.parametrize("turned", [False, True], ids=["as it lies", "turned"])
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's compiler does it
def test_the_function_and_its_gradients(turned: bool) -> None:
    x = torch.randn(8, 16, dtype=torch.float64)
    x = (x.t().contiguous().t() if turned else x).requires_grad_()
    weight = torch.randn(24, 16, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(products._Linear.apply, (x, weight))
    compiled = torch.compile(products._Linear.apply, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, weight), x @ weight.t())


def test_a_weight_that_is_not_trained_gets_no_gradient() -> None:
    x, weight = torch.randn(8, 16, requires_grad=True), torch.randn(24, 16)
    products._Linear.apply(x, weight).sum().backward()
    assert x.grad is not None
    assert weight.grad is None


def test_layers_that_take_the_same_make_what_they_make_alone() -> None:
    layers = [nn.Linear(16, width, bias=False) for width in (24, 8, 8)]
    x = torch.randn(2, 4, 16, requires_grad=True)
    for ours, alone in zip(products.joint_linear(x, *layers), (layer(x) for layer in layers), strict=True):
        torch.testing.assert_close(ours, alone)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's compiler does it
def test_their_joint_function_and_its_gradients() -> None:
    x = torch.randn(8, 16, dtype=torch.float64, requires_grad=True)
    weights = [torch.randn(width, 16, dtype=torch.float64, requires_grad=True) for width in (24, 8)]
    assert torch.autograd.gradcheck(products._JointLinear.apply, (x, *weights))
    compiled = torch.compile(products._JointLinear.apply, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, *weights), tuple(x @ weight.t() for weight in weights))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's compiler does it
def test_a_product_is_added_to_states() -> None:
    shapes = ((8, 16), (24, 16), (8, 24))
    x, weight, states = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    assert torch.autograd.gradcheck(products._AddedLinear.apply, (x, weight, states))
    compiled = torch.compile(products._AddedLinear.apply, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, weight, states), states + x @ weight.t())


def test_states_that_are_more_exact_than_the_product_stay_so() -> None:
    x, states = torch.randn(2, 4, 16).bfloat16(), torch.randn(2, 4, 24)
    layer = nn.Linear(16, 24, bias=False, dtype=torch.bfloat16)
    found = products.added_linear(x, layer, states)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, states + layer(x))


def test_a_layer_with_a_hook_or_a_bias_is_called_itself() -> None:
    hooked, biased, plain = nn.Linear(8, 8, bias=False), nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
    hooked.register_forward_hook(lambda *_: None)
    assert [products.is_plain(layer) for layer in (hooked, biased, plain)] == [False, False, True]


@needs_gpu
@pytest.mark.parametrize("a_turned", [False, True])
@pytest.mark.parametrize("b_turned", [False, True])
def test_cublaslt_multiplies_matrices_however_they_lie(a_turned: bool, b_turned: bool) -> None:
    torch.manual_seed(0)
    shapes = [(64, 128) if a_turned else (128, 64), (256, 64) if b_turned else (64, 256)]
    a, b = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes)
    a, b = a.t() if a_turned else a, b.t() if b_turned else b
    assert cublaslt.usable(a, b)
    out = torch.full((128, 256), torch.nan, device="cuda", dtype=torch.bfloat16)
    exact = a.double() @ b.double()
    for found in (cublaslt.multiply(a, b), cublaslt.multiply(a, b, out=out), out):
        assert (found.double() - exact).norm() <= 0.01 * exact.norm()


@needs_gpu
@pytest.mark.filterwarnings("ignore")  # of torch's own, when it meets a GPU and in its compiler
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
def test_on_a_gpu_values_are_as_close_as_bf16_is(bias: bool, compiled: bool) -> None:
    usual, fast = _twins(bias=bias, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(4, 16, 64, device="cuda", dtype=torch.bfloat16)
    exact = _outcome(usual.double(), x.double())
    if compiled:
        fast.forward = torch.compile(fast.forward, fullgraph=True)
    for ours, exactly in zip(_outcome(fast, x), exact, strict=True):
        assert (ours.double() - exactly).norm() <= 0.01 * exactly.norm()


@needs_gpu
def test_cublaslt_adds_to_what_is_there() -> None:
    """Also while it looks for the fastest way, which takes several tries at first and then some calls."""
    a, b = (torch.randn(128, 128, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(40):
        out = torch.ones(128, 128, device="cuda", dtype=torch.bfloat16)
        cublaslt.multiply(a, b, added=out, out=out)
        exact = a.double() @ b.double() + 1
        assert (out.double() - exact).norm() <= 0.01 * exact.norm()


@needs_gpu
@pytest.mark.filterwarnings("ignore")  # of torch's own, when it meets a GPU and in its compiler
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_on_a_gpu_sums_are_as_close_as_bf16_is(compiled: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(64, 48, bias=False, device="cuda", dtype=torch.bfloat16)
    x, states = (torch.randn(4, 16, width, device="cuda", dtype=torch.bfloat16) for width in (64, 48))
    kept = states.clone()
    add = torch.compile(products.added_linear, fullgraph=True) if compiled else products.added_linear

    def outcome(function: object, *tensors: torch.Tensor) -> list[torch.Tensor]:
        x, states = (tensor.clone().requires_grad_() for tensor in tensors)
        out = function(x, layer, states)
        return [out.detach(), *torch.autograd.grad((out * out).sum(), (x, layer.weight, states))]

    ours = outcome(add, x, states)
    torch.testing.assert_close(states, kept, rtol=0, atol=0)
    layer.double()
    usual = outcome(lambda x, layer, states: states + layer(x), x.double(), states.double())
    for found, exact in zip(ours, usual, strict=True):
        assert (found.double() - exact).norm() <= 0.01 * exact.norm()


@needs_gpu
@pytest.mark.filterwarnings("ignore")  # of torch's own, when it meets a GPU and in its compiler
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_on_a_gpu_joint_layers_are_as_close_as_bf16_is(compiled: bool) -> None:
    torch.manual_seed(0)
    usual = [nn.Linear(64, width, bias=False, device="cuda", dtype=torch.bfloat16) for width in (64, 32, 32)]
    x = torch.randn(4, 16, 64, device="cuda", dtype=torch.bfloat16)

    def outcome(function: object, x: torch.Tensor) -> list[torch.Tensor]:
        inputs = x.clone().requires_grad_()
        outs = function(inputs, *usual)
        total = sum((out * (1 + number)).sum() for number, out in enumerate(outs))
        weights = [layer.weight for layer in usual]
        return [*(out.detach() for out in outs), *torch.autograd.grad(total, (inputs, *weights))]

    ours = outcome(torch.compile(products.joint_linear) if compiled else products.joint_linear, x)
    for layer in usual:
        layer.double()
    for found, exact in zip(ours, outcome(lambda x, *all: [layer(x) for layer in all], x.double()), strict=True):
        assert (found.double() - exact).norm() <= 0.01 * exact.norm()


@needs_gpu
def test_both_ways_to_joint_gradients_come_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weights, gradients = (
        torch.randn(128, 64, device="cuda", dtype=torch.bfloat16),
        [torch.randn(width, 64, device="cuda", dtype=torch.bfloat16) for width in (64, 32)],
        [torch.randn(128, width, device="cuda", dtype=torch.bfloat16) for width in (64, 32)],
    )
    exact = [
        sum(g.double() @ w.double() for g, w in zip(gradients, weights, strict=True)),
        torch.cat([g.double().t() @ x.double() for g in gradients]),
    ]
    for number in range(2):
        monkeypatch.setattr(cublaslt, "_by", lambda _shapes, _device, *ways, number=number: ways[number]())
        for found, exactly in zip(cublaslt.joint_gradients(x, weights, gradients), exact, strict=True):
            assert (found.double() - exactly).norm() <= 0.01 * exactly.norm()
