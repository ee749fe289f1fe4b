"""What can be divided over processes, and what is refused with its name; and which lists of layers are units."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.unit.job.parallel.models import Plain, small_gpt  # noqa: E402
from windlass.core.plan import InvalidPlan, parse_plan  # noqa: E402
from windlass.job.parallel.parallelize import check  # noqa: E402
from windlass.job.parallel.split import Split  # noqa: E402
from windlass.job.parallel.units import blocks_of, split_of  # noqa: E402

pytestmark = pytest.mark.torch
HOST = torch.device("cpu")


def scalar() -> nn.Module:
    model = Plain()
    model.last.scale = nn.Parameter(torch.tensor(1.0))
    return model


def mixed(inside: bool) -> nn.Module:
    model = Plain()
    (model.layers[1][0] if inside else model.last).register_parameter("extra", nn.Parameter(torch.ones(2).double()))
    return model


def shared(with_last: bool) -> nn.Module:
    model = Plain()
    if with_last:
        model.last.other = model.layers[1][0]
    else:
        model.layers[2][0].weight = model.layers[0][0].weight
    return model


def sparse() -> nn.Module:
    return nn.Sequential(nn.Embedding(4, 4, sparse=True), nn.Linear(4, 3))


REFUSED = [
    (scalar, "the parameter last.scale has no dimension along which {} could divide it; options: one of shape (1,)"),
    (lambda: mixed(True), "the parameter layers.1.0.extra is of torch.float64 and layers.1.0.weight of torch.float32,"),
    (lambda: mixed(False), "the parameter last.extra is of torch.float64 and last.weight of torch.float32, and {} "),
    (lambda: shared(False), "the parameter layers.0.0.weight is layers.2.0.weight too, in another of the model's"),
    (lambda: shared(True), "the parameter layers.1.0.weight is last.other.weight too, in another of the model's"),
    (sparse, "0 has sparse gradients, which {} cannot divide; options: sparse=False, or a plan of copies only"),
]


@pytest.mark.parametrize(("make", "says"), REFUSED)
def test_what_cannot_be_divided_is_named(make: Callable[[], nn.Module], says: str) -> None:
    divided = parse_plan("shard=2").sized(2)
    with pytest.raises(InvalidPlan) as refused:
        check(divided, make(), Split(), HOST)
    assert says.format(divided) in str(refused.value)
    assert "or a plan of copies only, such as data" in str(refused.value)
    for plan, processes in (("data=2", 2), ("shard=1", 1)):
        check(parse_plan(plan).sized(processes), make(), Split(), HOST)


def test_one_layer_many_times_is_no_list_of_layers() -> None:
    layer = nn.Linear(4, 4)
    check(parse_plan("shard=2").sized(2), nn.Sequential(*[nn.Sequential(layer) for _ in range(1)] * 3), Split(), HOST)


def test_what_can_be_divided_is_not_refused() -> None:
    frozen = mixed(True)
    frozen.layers[1][0].extra.requires_grad_(False)
    apart = Plain()
    apart.last.double()  # another unit than the layers
    for model in (Plain(), frozen, apart, small_gpt(tied=True)):
        check(parse_plan("shard=2").sized(2), model, split_of(model), HOST)


def test_lists_that_are_read_and_not_called_are_no_units() -> None:
    model = nn.Module()
    model.tables = nn.ModuleList(nn.Embedding(4, 2) for _ in range(3))
    model.vectors = nn.ModuleList(nn.ParameterList([torch.ones(2)]) for _ in range(3))
    model.branches = nn.ModuleList(nn.ModuleList(nn.Linear(2, 2) for _ in range(2)) for _ in range(2))
    assert blocks_of(model, Split()) == [layer for branch in model.branches for layer in branch]
