"""Who reads which file, and that nothing of a damaged checkpoint stays in live tensors."""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.unit.job.checkpoint.meeting import Meeting, ThreadPeers  # noqa: E402
from windlass.core.errors import InvalidInput  # noqa: E402
from windlass.core.manifest import MANIFEST, PartFile  # noqa: E402
from windlass.job.checkpoint import placing, reading  # noqa: E402
from windlass.job.checkpoint.checkpoints import checkpoints  # noqa: E402
from windlass.job.checkpoint.folder import list_saved  # noqa: E402
from windlass.job.checkpoint.loading import Contents, Part  # noqa: E402
from windlass.job.checkpoint.placing import Lanes, Stretch  # noqa: E402
from windlass.job.checkpoint.reading import PIECE  # noqa: E402
from windlass.job.checkpoint.restoring import LiveState, NoWayBack, find_good  # noqa: E402
from windlass.job.checkpoint.state import TrainingState  # noqa: E402
from windlass.job.checkpoint.verifying import Needed, decide_shares, verify  # noqa: E402

pytestmark = pytest.mark.torch


def shares(
    needs: list[set[str]], groups: list[int], names: str = "abcd", blobs: list[set[str]] | None = None
) -> list[list[tuple[str, bool, bool]]]:
    files = [PartFile(name=name, size_bytes=10, sha256="") for name in names]
    return [
        [(share.file.name, share.is_needed, share.is_shared) for share in rank]
        for rank in decide_shares(files, needs, blobs or [set() for _ in needs], groups)
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


def test_what_a_node_unpickles_is_verified_there() -> None:
    assert shares([{"a"}, {"b"}], [0, 1], "ab", blobs=[{"a"}, {"a"}]) == [
        [("a", True, False)],
        [("a", False, False), ("b", True, False)],
    ]


def test_what_is_unpickled_is_read_by_who_needs_its_tensors() -> None:
    assert shares([{"a"}, {"b"}], [0, 0], "ba", blobs=[set("ab")] * 2) == [[("a", True, False)], [("b", True, False)]]


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
    assert lanes.has_changed


def test_lanes_know_room_from_what_held_something() -> None:
    target = torch.zeros(10, dtype=torch.uint8)
    held, room = Stretch(start=5, target=target[5:]), Stretch(start=0, target=target[:5], is_held=False)
    lanes = Lanes({"f": [room, held]}, 1)
    (lane,) = lanes.all
    lane.buffer()
    lane.place("f", 0, 5)
    lanes.close()
    assert not lanes.has_changed


def test_large_tensors_are_read_into_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "_WORTH_A_READ", 4)
    memory = torch.zeros(40, dtype=torch.uint8)
    alone, twice, small = (Stretch(start=s, target=memory[s:e]) for s, e in ((3, 13), (20, 30), (30, 33)))
    shared = Stretch(start=28, target=memory[33:38])
    lanes = Lanes({"f": [alone, twice, small, shared]}, 1)
    (lane,) = lanes.all

    def ends(at: int, name: str = "f") -> int | None:
        view = lane.target(name, at)
        return None if view is None else at + view.nbytes

    asked = [0, 2, 3, 9, 10, 13, 20, 27, 28, 30]
    assert [ends(at) for at in asked] == [None, None, 13, 13, None, None, None, None, None, None]
    assert ends(3, "other") is None
    assert lane.has_changed
    view = lane.target("f", 4)
    assert view is not None
    view[:] = bytes(range(4, 13))
    lanes.close()
    assert memory.tolist() == [0] * 4 + list(range(4, 13)) + [0] * 27


def test_pieces_of_a_tensor_are_no_larger_than_of_a_file() -> None:
    target = torch.zeros(PIECE + PIECE // 2, dtype=torch.uint8)
    lanes = Lanes({"f": [Stretch(start=0, target=target, is_held=False)]}, 1)
    (lane,) = lanes.all
    views = [lane.target("f", at) for at in (0, PIECE, PIECE + PIECE // 4)]
    assert [view.nbytes for view in views if view is not None] == [PIECE, PIECE // 2, PIECE // 4]
    assert not lane.has_changed
    lanes.close()


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


def test_the_room_for_a_damaged_one_is_gone_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path, 1, 2)
    damage(tmp_path, 2)
    needs, counts = LiveState.needs, list[int]()
    gc.collect()  # what tests before have left

    def counted(self: LiveState, contents: Contents, **options: Any) -> Needed:
        counts.append(sum(type(one) is Part for one in gc.get_objects()))
        return needs(self, contents, **options)

    monkeypatch.setattr(LiveState, "needs", counted)
    assert restored(tmp_path, seed=1)[0] == 1
    first, second = counts
    assert second == first


class Failing(reading._Source):
    """The disk, or its file system, under some checkpoints."""

    number = errno.EIO
    where = ""

    def read(self, buffer: memoryview, at: int) -> int:
        if self.where in str(self._path):
            raise OSError(self.number, os.strerror(self.number))
        return super().read(buffer, at)


def test_if_the_disk_cannot_read_it_the_one_before_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path, 1, 2)
    monkeypatch.setattr(Failing, "where", list_saved(tmp_path)[0].path.name)
    monkeypatch.setattr(reading, "_Source", Failing)
    assert restored(tmp_path, seed=1)[0] == 1
    assert [saved.manifest.step for saved in list_saved(tmp_path)] == [1]


def test_if_nothing_could_be_read_the_model_is_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path, 1, 2)
    monkeypatch.setattr(reading, "_Source", Failing)
    step, state = restored(tmp_path, seed=1)
    assert (step, same(state, state_of(*new(1)))) == (0, True)


def test_if_one_rank_may_not_read_it_all_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path / "a", 1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    monkeypatch.setattr(Failing, "number", errno.EACCES)
    monkeypatch.setattr(Failing, "where", str(tmp_path / "b"))
    monkeypatch.setattr(reading, "_Source", Failing)

    def look(peers: ThreadPeers) -> str:
        apart: Any = SimpleNamespace(neighbours=SimpleNamespace(ranks=(peers.rank,)), bring_newer=lambda **_: None)
        with pytest.raises(OSError) as failed:
            find_good(tmp_path / "ab"[peers.rank], peers, apart)
        return str(failed.value)

    first, second = Meeting(2).run(look)
    assert "Permission denied" in second
    assert first == f"rank 1 cannot read {list_saved(tmp_path / 'b')[0].path.name}: {second}"  # it is not set aside


def test_one_that_other_means_saved_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    (saved,) = list_saved(tmp_path)
    (saved.path / ".metadata").unlink()
    manifest = json.loads((saved.path / MANIFEST).read_text())
    del manifest["sha256"]
    manifest["files"] = [file for file in manifest["files"] if file["name"] != ".metadata"]
    (saved.path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(InvalidInput, match=r"has no \.metadata: it was saved by other means"):
        restored(tmp_path, seed=1)


def test_a_state_names_the_files_that_it_unpickles(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    (saved,) = list_saved(tmp_path)
    contents = Contents(saved.path)
    assert contents.blob_file(0) in {file.name for file in saved.manifest.files}
    assert contents.blob_file(1) is None
    model, optimizer = new()
    state = TrainingState(model, optimizer, {}, None)
    assert LiveState(state).needs(contents, world_size=2, is_last=False).blob_files == {contents.blob_file(0)}
    assert state.asks_for(3) == {0, 1, 2}  # any may know the options of a parameter
    assert TrainingState(model, None, {}, None).asks_for(3) == {0}


@pytest.mark.parametrize("is_spared", [True, False])
def test_ranks_agree_whether_something_has_changed(is_spared: bool, tmp_path: Path) -> None:
    trained(tmp_path, 1)
    damage(tmp_path, 1)
    (saved,) = list_saved(tmp_path)

    def look(peers: ThreadPeers) -> tuple[bool, Any, Any]:
        def needs(contents: Contents) -> Needed:
            if peers.rank == 1:
                raise InvalidInput("it was saved from another model")
            parts = contents.parts({f"model.{name}": one for name, one in nn.Linear(8, 8).state_dict().items()})
            return Needed(parts=[replace(part, start=None) for part in parts] if is_spared else parts)

        outcome = verify(saved, peers, (0, 1), needs)
        return outcome.is_begun, outcome.contents, outcome.left

    assert Meeting(2).run(look) == [(not is_spared, None, None)] * 2
