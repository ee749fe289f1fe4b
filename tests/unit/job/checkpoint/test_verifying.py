"""Who reads which file, and that nothing of a damaged checkpoint stays in live tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from windlass.core.manifest import PartFile  # noqa: E402
from windlass.job.checkpoint.checkpoints import checkpoints  # noqa: E402
from windlass.job.checkpoint.folder import list_saved  # noqa: E402
from windlass.job.checkpoint.placing import Lanes, Stretch  # noqa: E402
from windlass.job.checkpoint.restoring import NoWayBack  # noqa: E402
from windlass.job.checkpoint.verifying import decide_shares  # noqa: E402

pytestmark = pytest.mark.torch


def shares(needs: list[set[str]], groups: list[int], names: str = "abcd") -> list[list[tuple[str, bool, bool]]]:
    files = [PartFile(name=name, size_bytes=10, sha256="") for name in names]
    return [
        [(share.file.name, share.is_needed, share.is_shared) for share in rank]
        for rank in decide_shares(files, needs, groups)
    ]


def test_each_reads_what_it_alone_needs() -> None:
    assert shares([{"a", "b"}, {"c", "d"}], [0, 0]) == [
        [("a", True, False), ("b", True, False)],
        [("c", True, False), ("d", True, False)],
    ]


def test_what_all_need_is_divided() -> None:
    assert shares([set("abcd")] * 2, [0, 0]) == [
        [("a", True, True), ("c", True, True)],
        [("b", True, True), ("d", True, True)],
    ]


def test_nodes_without_a_common_folder_verify_what_they_need_each() -> None:
    assert shares([set("ab")] * 2, [0, 1], "abc") == [
        [("a", True, False), ("b", True, False), ("c", False, False)],
        [("a", True, False), ("b", True, False)],
    ]


def test_what_nobody_needs_is_verified_once() -> None:
    assert shares([set(), set()], [0, 0], "abc") == [[("a", False, False), ("c", False, False)], [("b", False, False)]]


def test_lanes_bring_bytes_to_their_places() -> None:
    target = torch.zeros(10, dtype=torch.uint8)
    version = target._version
    lanes = Lanes({"f": [Stretch(start=3, target=target[:4]), Stretch(start=7, target=target[4:])]}, 1)
    (lane,) = lanes.all
    for at in (0, 5, 10):
        lane.buffer()[:5] = bytes(range(at, at + 5))
        lane.place("f", at, 5)
        lane.place("other", at, 5)
    lanes.close()
    assert target.tolist() == list(range(3, 13))
    assert target._version > version


def trained(folder: Path, *steps: int) -> None:
    model, optimizer = new()
    with checkpoints(model=model, optimizer=optimizer, folder=folder, every=1000, memory="off", keep=10) as ckpt:
        for step in steps:
            model(torch.ones(1, 8)).sum().backward()
            optimizer.step()
            ckpt.step(step)
            ckpt.save()


def new(seed: int = 0) -> tuple[nn.Module, Any]:
    torch.manual_seed(seed)
    model = nn.Linear(8, 8)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def damage(folder: Path, step: int) -> None:
    """The last byte of the first file with tensors, which is found when all of it has been read."""
    (saved,) = [one for one in list_saved(folder) if one.manifest.step == step]
    path = saved.path / next(file.name for file in saved.manifest.files if file.name.endswith(".distcp"))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def state_of(model: nn.Module, optimizer: Any) -> list[Any]:
    inner = [value for state in optimizer.state.values() for value in state.values()]
    return [value.clone() for value in [*model.state_dict().values(), *inner]]


def same(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(torch.equal(*pair) for pair in zip(left, right, strict=True))


def restored(folder: Path, seed: int) -> tuple[int, list[Any]]:
    model, optimizer = new(seed)
    with checkpoints(model=model, optimizer=optimizer, folder=folder, every=1000, memory="off") as ckpt:
        return ckpt.first_step, state_of(model, optimizer)


def test_the_state_is_that_of_the_one_before(tmp_path: Path) -> None:
    trained(tmp_path / "one", 1)
    trained(tmp_path / "two", 1, 2)
    damage(tmp_path / "two", 2)
    step, state = restored(tmp_path / "two", seed=1)
    assert step == 1
    assert same(state, restored(tmp_path / "one", seed=2)[1])


def test_with_nothing_before_it_nothing_is_changed(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    damage(tmp_path, 1)
    step, state = restored(tmp_path, seed=1)
    assert step == 0
    assert same(state, state_of(*new(1)))  # and the optimizer is as new


def test_if_all_are_damaged_the_model_is_not_used(tmp_path: Path) -> None:
    trained(tmp_path, 1, 2)
    damage(tmp_path, 1)
    damage(tmp_path, 2)
    with pytest.raises(NoWayBack, match=r"no checkpoint in .* is good"):
        restored(tmp_path, seed=1)
    step, state = restored(tmp_path, seed=1)  # started again
    assert (step, same(state, state_of(*new(1)))) == (0, True)
