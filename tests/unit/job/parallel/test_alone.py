"""`parallelize` and `optimizer` in one process: the same loop as with many, and the same numbers as without either."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from tests.unit.job.parallel.models import Plain, batch, small_gpt  # noqa: E402
from windlass import job  # noqa: E402
from windlass.core.plan import InvalidPlan, Precision  # noqa: E402
from windlass.job.accounting.anomaly import LEAST_STEPS, SickStep  # noqa: E402
from windlass.job.parallel.choice import choose  # noqa: E402
from windlass.job.parallel.optimizer import optimizer  # noqa: E402
from windlass.job.parallel.parallelize import parallelize  # noqa: E402
from windlass.job.parallel.precision import LossScale  # noqa: E402
from windlass.job.process import Process, init  # noqa: E402
from windlass.job.session import Session  # noqa: E402
from windlass.tracking.points import parse_spool  # noqa: E402

pytestmark = pytest.mark.torch


def plain_losses(steps: int = 4, clip: float | None = None) -> list[float]:
    model = small_gpt()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for number in range(steps):
        inputs, targets = batch(seed=number)
        loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        inner.step()
        inner.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def planned_losses(plan: str, steps: int = 4) -> list[float]:
    parallel = parallelize(small_gpt(), plan)
    inner = optimizer(parallel, torch.optim.SGD, lr=0.1, momentum=0.9)
    losses = []
    for number in range(steps):
        losses.append(float(parallel.step(*batch(seed=number))))
        inner.step()
        inner.zero_grad()
    return losses


@pytest.mark.parametrize(
    "plan", ["data", "accumulate=4", "activation_checkpoint=full", "activation_checkpoint=selective"]
)
def test_one_process_trains_as_the_plain_loop(plan: str) -> None:
    assert planned_losses(plan) == pytest.approx(plain_losses(), rel=1e-6)


def test_clipping_is_that_of_torch() -> None:
    assert planned_losses("clip=0.1") == pytest.approx(plain_losses(clip=0.1), rel=1e-5)
    assert planned_losses("clip=0.1") != pytest.approx(plain_losses(), rel=1e-5)


@pytest.mark.parametrize(("plan", "bound"), [("precision=bf16", 1e-2), ("precision=fp16", 1e-3)])
def test_half_precision_is_near(plan: str, bound: float) -> None:
    losses = planned_losses(plan)
    assert losses == pytest.approx(plain_losses(), rel=bound)
    assert losses != pytest.approx(plain_losses(), rel=1e-7)


def by_hand(parallel: Any, number: int) -> None:
    inputs, targets = batch(seed=number)
    functional.cross_entropy(parallel(inputs).float().flatten(0, 1), targets.flatten()).backward()


def test_a_loop_of_ones_own_trains_in_fp16_as_with_step() -> None:
    ways = {"own": (by_hand,) * 4, "ours": (None,) * 4, "mixed": (None, by_hand, by_hand, None)}
    found = {}
    for name, steps in ways.items():
        parallel = parallelize(small_gpt(), "precision=fp16")
        inner = optimizer(parallel, torch.optim.SGD, lr=0.1, momentum=0.9)
        for number, way in enumerate(steps):
            if way is None:
                parallel.step(*batch(seed=number))
            else:
                way(parallel, number)
            report = inner.step()
            inner.zero_grad()
            assert (report.loss_scale is None) == (way is not None)
            assert not report.skipped
        found[name] = float(parallel.evaluate(*batch(seed=9)))
    assert [found["own"], found["mixed"]] == pytest.approx([found["ours"]] * 2, rel=1e-4)


def test_each_of_two_optimizers_undoes_the_loss_scale_once() -> None:
    parallel = parallelize(small_gpt(), "precision=fp16")
    first, *rest = parallel.parameters()
    inner = [optimizer(parallel, torch.optim.SGD, params=some, lr=0.0) for some in ([first], rest)]
    parallel.step(*batch())
    first.grad[0, 0] = math.inf
    assert [one.step().skipped for one in inner] == [True, False]
    norm = torch.stack([p.grad.norm() for p in rest]).norm()
    inner[0].zero_grad()
    inner[1].zero_grad()
    by_hand(parallel, 1)
    assert float(torch.stack([p.grad.norm() for p in rest]).norm()) == pytest.approx(float(norm), rel=1e-2)
    assert [one.step().skipped for one in inner] == [False, False]


def test_the_norm_is_that_of_the_whole_gradient() -> None:
    parallel = parallelize(small_gpt(), "accumulate=2")
    parallel.step(*batch())
    squares = sum(float(p.grad.square().sum()) for p in parallel.parameters() if p.grad is not None)
    report = optimizer(parallel, torch.optim.SGD, lr=0.1).step()
    assert float(report.grad_norm) == pytest.approx(math.sqrt(squares), rel=1e-5)
    assert (report.skipped, report.loss_scale) == (False, None)


def test_evaluation_leaves_no_gradient_and_the_mode_as_it_was() -> None:
    parallel = parallelize(small_gpt(), "data")
    inputs, targets = batch()
    assert float(parallel.evaluate(inputs, targets)) == pytest.approx(float(parallel.step(inputs, targets)), rel=1e-6)
    assert parallel.parts[0].training
    parallel = parallelize(small_gpt(), "data")
    parallel.evaluate(inputs, targets)
    assert all(p.grad is None for p in parallel.parameters())


def test_evaluation_leaves_each_module_in_its_own_mode() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Dropout()), torch.nn.Linear(4, 3)
    )
    model[1].eval()
    model[1][1].train()
    parallel = parallelize(model, "data", loss=functional.cross_entropy)
    before = {name: module.training for name, module in model.named_modules()}
    parallel.evaluate(torch.randn(6, 4), torch.zeros(6, dtype=torch.int64))
    assert {name: module.training for name, module in model.named_modules()} == before
    assert list(before.values()) == [True, True, False, False, True, True]


def test_any_model_and_loss_will_do() -> None:
    parallel = parallelize(Plain(), "accumulate=2", loss=functional.cross_entropy)
    inner = optimizer(parallel, lr=0.05)
    x, y = torch.randn(12, 4), torch.randint(3, (12,))
    first = float(parallel.step(x, y))
    for _ in range(30):
        inner.step()
        inner.zero_grad()
        last = float(parallel.step(x, y))
    assert last < first
    assert parallel(x).shape == (12, 3)


def test_groups_keep_their_options() -> None:
    parallel = parallelize(small_gpt(), "data")
    named = dict(parallel.named_parameters())
    flat = [p for p in named.values() if p.dim() < 2]
    deep = [p for p in named.values() if p.dim() >= 2]
    inner = optimizer(
        parallel, params=[{"params": deep, "weight_decay": 0.1}, {"params": flat, "weight_decay": 0.0}], lr=0.01
    )
    assert [group["weight_decay"] for group in inner.param_groups] == [0.1, 0.0]
    assert isinstance(inner.inner, torch.optim.AdamW)
    assert all(group["fused"] for group in inner.param_groups)
    torch.optim.lr_scheduler.LambdaLR(inner.inner, lambda _step: 0.5)
    assert inner.param_groups[0]["lr"] == 0.005


def test_sparse_gradients_are_clipped_and_applied() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(9, 4, sparse=True), torch.nn.Linear(4, 3))
    before = model[0].weight.detach().clone()
    parallel = parallelize(model, "clip=0.1", loss=lambda output, target: 100 * output.sum() + 0 * target.sum())
    inner = optimizer(parallel, torch.optim.SGD, lr=1.0)
    parallel.step(torch.tensor([[2], [5], [2], [5]]), torch.zeros(4))
    weight = model[1].weight.detach().sum(0) * 200
    expected = math.sqrt(2 * float(weight.square().sum()) + float(model[1].weight.grad.square().sum()) + 3 * 400**2)
    assert float(inner.step().grad_norm) == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(before[2] - model[0].weight[2], weight * 0.1 / expected)
    assert torch.equal(before[0], model[0].weight[0])


def test_parameters_may_come_with_their_names() -> None:
    parallel = parallelize(small_gpt(), "data")
    named = list(parallel.named_parameters())
    for params in (parallel.named_parameters(), [{"params": named[:3], "lr": 0.2}, {"params": iter(named[3:])}]):
        inner = optimizer(parallel, torch.optim.SGD, params=params, lr=0.1)
        assert [p for group in inner.param_groups for p in group["params"]] == [p for _, p in named]
        parallel.step(*batch())
        inner.step()
        inner.zero_grad(set_to_none=False)
        assert all(not p.grad.any() for p in parallel.parameters())
        inner.zero_grad()
        assert all(p.grad is None for p in parallel.parameters())


def test_an_optimizer_comes_back_with_its_loss_scale() -> None:
    first = parallelize(small_gpt(), "precision=fp16")
    before = optimizer(first, lr=0.01)
    first.step(*batch())
    before.step()
    assert first.loss_scale is not None
    first.loss_scale.update(overflow=True)
    second = parallelize(small_gpt(), "precision=fp16")
    after = optimizer(second, lr=0.01)
    after.load_state_dict(before.state_dict())
    assert second.loss_scale == first.loss_scale
    assert str(after.state_dict()) == str(before.state_dict())


def poisoned(plan: str) -> tuple[Any, Any, list[Any]]:
    """A model whose last step left a gradient that is no number."""
    parallel = parallelize(small_gpt(), plan)
    inner = optimizer(parallel, torch.optim.SGD, lr=0.1)
    parallel.step(*batch())
    next(iter(parallel.parameters())).grad.fill_(math.nan)  # type: ignore[union-attr]
    return parallel, inner, [p.detach().clone() for p in parallel.parameters()]


def test_a_gradient_that_is_no_number_is_skipped_if_asked() -> None:
    parallel, inner, before = poisoned("on_nan=skip")
    assert inner.step().skipped
    assert all(torch.equal(old, new) for old, new in zip(before, parallel.parameters(), strict=True))


def test_a_gradient_that_explodes_is_skipped_if_asked() -> None:
    parallel = parallelize(small_gpt(), "on_nan=skip")
    inner = optimizer(parallel, torch.optim.SGD, lr=0.0)
    alerts: list[int] = []
    parallel.health._alert = lambda _kind, _message, *, step, **_once: alerts.append(step)
    with job.steps(parallel, total=LEAST_STEPS + 1) as steps:
        for number in range(LEAST_STEPS + 1):
            loss = parallel.step(*batch())
            if number == LEAST_STEPS:
                for parameter in parallel.parameters():
                    parameter.grad.mul_(100)  # type: ignore[union-attr]
            report = inner.step()
            inner.zero_grad()
            assert report.skipped is (number == LEAST_STEPS)
            steps.done(loss, report)
    assert alerts == [LEAST_STEPS + 1]


def test_an_optimizer_is_for_a_parallel_model() -> None:
    with pytest.raises(TypeError, match=r"takes what job\.parallelize returned, not Linear"):
        optimizer(torch.nn.Linear(2, 2))  # type: ignore[arg-type]


def test_a_gradient_that_is_no_number_stops_if_asked() -> None:
    _, inner, _ = poisoned("on_nan=stop")
    with pytest.raises(SickStep, match="step 1: the gradient's norm is nan"):
        inner.step()


def test_a_gradient_that_is_no_number_is_applied_otherwise() -> None:
    parallel, inner, _ = poisoned("on_nan=go_on")
    report = inner.step()
    assert not report.skipped
    assert math.isnan(float(report.grad_norm))
    assert any(torch.isnan(p).any() for p in parallel.parameters())


def test_an_overflow_halves_the_scale_and_skips_the_step() -> None:
    parallel, inner, before = poisoned("precision=fp16")
    scale = parallel.loss_scale.value
    report = inner.step()
    assert (report.skipped, report.loss_scale) == (True, scale)
    assert parallel.loss_scale.value == scale / 2
    assert all(torch.equal(old, new) for old, new in zip(before, parallel.parameters(), strict=True))


def test_the_scale_grows_after_many_good_steps_and_never_falls_below_one() -> None:
    scale = LossScale(value=4.0)
    for _ in range(2000):
        scale.update(overflow=False)
    assert scale.value == 8.0
    for _ in range(9):
        scale.update(overflow=True)
    assert scale.value == 1.0


def test_a_plan_for_more_processes_is_refused() -> None:
    with pytest.raises(InvalidPlan, match="needs a multiple of 2 processes"):
        parallelize(small_gpt(), "tensor=2")
    with pytest.raises(InvalidPlan, match="have 6 samples, which accumulate=4 does not divide"):
        parallelize(small_gpt(), "accumulate=4").step(*batch(6))
    with pytest.raises(InvalidPlan, match="a batch of 6 is not divided by 4"):
        parallelize(small_gpt(), "accumulate=4", batch=6)


def test_auto_lets_the_planner_choose() -> None:
    parallel = parallelize(small_gpt(), "auto", batch=8)
    assert parallel.plan.world_size == 1
    assert parallel.plan.precision is Precision.FP32
    assert math.isfinite(float(parallel.step(*batch())))


def test_the_planner_leaves_what_is_named() -> None:
    plan = parallelize(small_gpt(), "auto,clip=0.5,accumulate=4", batch=8).plan
    assert (plan.clip, plan.accumulate, plan.data) == (0.5, 4, 1)
    with pytest.raises(InvalidPlan, match=r"plan auto,tensor=2 needs a multiple of 2 processes .* 2 processes fit"):
        parallelize(small_gpt(), {"auto": True, "tensor": 2}, batch=8)


@pytest.mark.parametrize(
    ("run", "code", "told"),
    [
        ("auto", None, "data=1"),
        ('{"auto": true, "clip": 2}', None, "data=1,clip=2"),
        ("", "clip=2", "data=1,clip=2"),
        ('{"clip": 2}', "clip=2", None),  # as the spec says it already
        ('{"clip": 2}', None, None),
    ],
)
def test_a_plan_that_the_spec_does_not_say_is_told(
    run: str, code: str | None, told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Session({"WINDLASS_NODE_DIR": str(tmp_path), "WINDLASS_PLAN": run})
    monkeypatch.setattr("windlass.job.parallel.choice.session", lambda: here)
    choose(code or here.plan, small_gpt(), small_gpt().split(), init(), 8)
    here.flush()
    spool = tmp_path / "metrics-0.jsonl"
    plan = parse_spool(spool.read_bytes(), 0).plan if spool.exists() else None
    assert plan == told


def test_a_pipeline_without_microbatches_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    split = small_gpt().split()
    two = Process(rank=0, world_size=2, local_rank=0, device=torch.device("cpu"))
    choose("pipeline=2,accumulate=2", small_gpt(), split, two, None)
    choose("pipeline=2", small_gpt(), split, replace(two, rank=1), None)
    assert capsys.readouterr().err == ""
    choose("pipeline=2", small_gpt(), split, two, None)
    assert "only one of 2 processes works at a time; try accumulate=8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("plan", "processes", "words"),
    [
        ("pipeline=2,shard=2", 4, "a batch of 3 is not divided by 2"),
        ("pipeline=2,tensor=3", 6, "tensor=3 does not divide the model's 4 heads"),
        ("pipeline=5", 5, "the model has 4 layers"),
    ],
)
def test_nothing_is_told_of_a_plan_that_is_refused(
    plan: str, processes: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    process = Process(rank=0, world_size=processes, local_rank=0, device=torch.device("cpu"))
    with pytest.raises(InvalidPlan, match=words):
        choose(plan, small_gpt(), small_gpt().split(), process, 3)
    assert capsys.readouterr().err == ""


def test_what_a_script_uses_is_in_the_job() -> None:
    process = job.init()
    assert (process.rank, process.world_size, process.is_main) == (0, 1, True)
    assert job.init() is process
    assert job.parallelize is parallelize
    assert job.optimizer is optimizer
    assert job.Split is type(small_gpt().split())
