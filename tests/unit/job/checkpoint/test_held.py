"""What a checkpoint holds of models, optimizers and what else there is, and what it refuses."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.unit.job.checkpoint.meeting import Meeting, ThreadPeers  # noqa: E402
from windlass.core.errors import InvalidInput  # noqa: E402
from windlass.job.checkpoint.checkpoints import checkpoints  # noqa: E402
from windlass.job.checkpoint.layout import build_layout, differing  # noqa: E402
from windlass.job.checkpoint.state import TrainingState  # noqa: E402

pytestmark = pytest.mark.torch


class Turned(nn.Module):
    """Keeps its weight the other way round than it tells of it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 3))
        self._register_state_dict_hook(self._tell)
        self._register_load_state_dict_pre_hook(self._take)

    @staticmethod
    def _tell(_: Any, state: dict[str, Any], prefix: str, *__: Any) -> None:
        state[f"{prefix}weight"] = state[f"{prefix}weight"].T.contiguous()

    @staticmethod
    def _take(state: dict[str, Any], prefix: str, *_: Any) -> None:
        state[f"{prefix}weight"] = state[f"{prefix}weight"].T


class Counting(nn.Module):
    """Has what is no tensor besides, and a tensor that is none of its own."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.scale = count, torch.tensor(float(count))
        self.linear = nn.Linear(2, 2)

    def get_extra_state(self) -> Any:
        return {"count": self.count}

    def set_extra_state(self, state: Any) -> None:
        self.count = state["count"]


class Scaled(Counting):
    def get_extra_state(self) -> Any:
        return self.scale.clone()

    def set_extra_state(self, state: Any) -> None:
        self.scale = state.clone()


class Value:
    def __init__(self, value: int) -> None:
        self.value = value

    def state_dict(self) -> int:
        return self.value

    def load_state_dict(self, state: int) -> None:
        self.value = state


def saved_and_loaded(folder: Path, model: nn.Module, other: nn.Module, **options: Any) -> nn.Module:
    with checkpoints(model=model, folder=folder, memory="off") as ckpt:
        ckpt.step(1)
    with checkpoints(model=other, folder=folder, memory="off", **options) as ckpt:
        assert ckpt.first_step == 1
    return other


def test_a_module_that_tells_other_tensors_than_it_has(tmp_path: Path) -> None:
    model = nn.Sequential(Turned(), nn.Linear(3, 3))
    other = saved_and_loaded(tmp_path, model, nn.Sequential(Turned(), nn.Linear(3, 3)))
    assert torch.equal(other[0].weight, model[0].weight)  # type: ignore[index,arg-type]
    assert torch.equal(other[1].weight, model[1].weight)  # type: ignore[index,arg-type]


@pytest.mark.parametrize("kind", [Counting, Scaled])
def test_extra_state_of_modules(kind: type[Counting], tmp_path: Path) -> None:
    model = nn.Sequential(kind(3))
    other = saved_and_loaded(tmp_path, model, nn.Sequential(kind(0)))
    (given,) = other
    assert isinstance(given, Counting)
    assert (given.count, float(given.scale)) == ((3, 0.0) if kind is Counting else (0, 3.0))
    assert torch.equal(given.linear.weight, model[0].linear.weight)  # type: ignore[union-attr,arg-type]


def test_a_model_that_lacks_what_was_saved_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"has a tensor 'model\.1\.bias' and 1 more that the model has not"):
        saved_and_loaded(tmp_path, nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2)))


def test_names_that_one_side_alone_has_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with checkpoints(model=nn.Linear(2, 2), folder=tmp_path, others={"ema": Value(3)}) as ckpt:
        ckpt.step(1)
    ema2 = Value(0)
    with checkpoints(model=nn.Linear(2, 2), folder=tmp_path, others={"ema2": ema2}):
        assert ema2.value == 0
    said = capsys.readouterr().err
    assert "ema2 was not saved, and begins anew; ema was saved, and nobody takes it" in said


def of_rank(rank: int, world_size: int, others: dict[str, Any]) -> TrainingState:
    state = TrainingState(nn.Linear(2, 2), None, others, None)
    state._rank, state._world_size = rank, world_size
    return state


def test_each_rank_has_its_own_again_and_after_another_division_that_of_the_first() -> None:
    blobs = [pickle.loads(of_rank(rank, 2, {"gen": Value(10 + rank)}).take()[1]) for rank in range(2)]
    for world_size, expected in ((2, [10, 11]), (3, [10, 10, 10])):
        found = [Value(0) for _ in range(world_size)]
        for rank, value in enumerate(found):
            of_rank(rank, world_size, {"gen": value}).give_back(blobs.__getitem__, 2)
        assert [value.value for value in found] == expected


def test_an_optimizer_whose_state_cannot_be_seen_is_refused(tmp_path: Path) -> None:
    class ZeroRedundancyOptimizer(torch.optim.SGD): ...

    model = nn.Linear(2, 2)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), lr=0.1)
    with pytest.raises(InvalidInput, match="shard=N,zero=1"):
        checkpoints(model=model, optimizer=optimizer, folder=tmp_path)


def places(models: list[nn.Module]) -> list[set[str]]:
    """The names of what each rank writes."""

    def alone(peers: ThreadPeers) -> set[str]:
        state = {f"model.{name}": value for name, value in models[peers.rank].state_dict(keep_vars=True).items()}
        return {place.index.fqn for place in build_layout(state, peers).places}

    return Meeting(len(models)).run(alone)


def alike(count: int) -> list[nn.Module]:
    made: list[nn.Module] = []
    for _ in range(count):
        torch.manual_seed(0)
        made.append(nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(4))))
    return made


def test_statistics_are_those_of_the_first_rank_and_the_rest_is_divided(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = places(alike(2))
    names = {f"model.{name}" for name, _ in alike(1)[0].named_buffers()}
    assert names <= first
    assert first.isdisjoint(second)
    assert second
    assert "checkpoint-apart" not in capsys.readouterr().err


def test_of_ranks_that_train_apart_it_is_the_first_as_a_whole(capsys: pytest.CaptureFixture[str]) -> None:
    models = alike(2)
    with torch.no_grad():
        for parameter in models[1].parameters():
            parameter.mul_(1.5).add_(0.1)
    first, second = places(models)
    assert first == {f"model.{name}" for name in models[0].state_dict()}
    assert second == set()
    assert "they train apart" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mine", "theirs", "found"),
    [
        ({"model.a": 1.0}, {"model.a": 1.0 + 1e-5}, None),  # by the order of sums
        ({"model.a": 1.0}, {"model.a": 1.1}, "a"),
        ({"model.a": 1e-9}, {"model.a": -1e-9}, None),
        ({"model.a": float("nan")}, {"model.a": float("nan")}, None),
        ({"model.a": 1.0}, {"model.b": 2.0}, None),  # stages of a pipeline
        ({}, {}, None),
    ],
)
def test_what_counts_as_different(mine: dict[str, float], theirs: dict[str, float], found: str | None) -> None:
    assert differing([mine, theirs]) == found
