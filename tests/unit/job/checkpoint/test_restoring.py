"""Which checkpoint ranks go on from: where nodes share no folder, and where a newer one is damaged."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.unit.job.checkpoint.meeting import Meeting, ThreadPeers  # noqa: E402
from windlass.core.manifest import MANIFEST, VERSION, NewerManifest, folder_name  # noqa: E402
from windlass.job.checkpoint.checkpoints import checkpoints  # noqa: E402
from windlass.job.checkpoint.clearing import make_room  # noqa: E402
from windlass.job.checkpoint.disk import Disk  # noqa: E402
from windlass.job.checkpoint.folder import Saved, collect_garbage, list_saved, list_set_aside  # noqa: E402
from windlass.job.checkpoint.memory import FOLDER  # noqa: E402
from windlass.job.checkpoint.restoring import find_good  # noqa: E402
from windlass.job.checkpoint.retention import Keep  # noqa: E402

pytestmark = pytest.mark.torch


def save(folder: Path, *steps: int, seed: int = 0) -> None:
    torch.manual_seed(seed)
    with checkpoints(model=nn.Linear(4, 4), folder=folder, every=1000, memory="off", keep=10) as ckpt:
        for step in steps:
            ckpt.step(step)
            ckpt.save()


def remember(folder: Path, step: int) -> None:
    with checkpoints(model=nn.Linear(4, 4), folder=folder, every=1000, memory=1) as ckpt:
        ckpt.step(step)
        raise KeyboardInterrupt  # it ends without a save


def damage(folder: Path, step: int) -> None:
    (saved,) = [one for one in list_saved(folder) if one.manifest.step == step]
    path = saved.path / saved.manifest.files[0].name
    path.write_bytes(b"\x00" + path.read_bytes()[1:])


def steps_in(folder: Path) -> list[int]:
    return [saved.manifest.step for saved in list_saved(folder)]


def found_by_two_nodes(folders: list[Path], *, than: int | None = None) -> list[Saved | None]:
    def look(peers: ThreadPeers) -> Saved | None:
        apart: Any = SimpleNamespace(neighbours=SimpleNamespace(ranks=(peers.rank,)), bring_newer=lambda **_: None)
        found = find_good(folders[peers.rank], peers, apart, than=than)
        return found.saved if found is not None else None

    return Meeting(2).run(look)


@pytest.fixture
def nodes(tmp_path: Path) -> list[Path]:
    """Two with the same checkpoints, as they were brought from a store."""
    save(tmp_path / "a", 1, 2)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    return [tmp_path / "a", tmp_path / "b"]


def test_what_one_node_lacks_is_not_damaged(nodes: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    save(nodes[0], 3)
    found = found_by_two_nodes(nodes)
    assert [(one.path.parent, one.manifest.step) for one in found if one] == [(nodes[0], 2), (nodes[1], 2)]
    assert found_by_two_nodes(nodes, than=2) == [None, None]  # what all have in memory counts
    assert steps_in(nodes[0]) == [3, 2, 1]
    assert "checkpoint-damaged" not in capsys.readouterr().err
    shutil.rmtree(nodes[1])
    assert found_by_two_nodes(nodes) == [None, None]
    assert steps_in(nodes[0]) == [3, 2, 1]


def test_what_is_damaged_on_one_node_is_set_aside_there(nodes: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    (newest, _) = list_saved(nodes[1])
    for file in newest.manifest.files:
        (newest.path / file.name).write_bytes(b"")
    assert [one.manifest.step for one in found_by_two_nodes(nodes) if one] == [1, 1]
    assert (steps_in(nodes[0]), steps_in(nodes[1])) == ([2, 1], [1])
    assert "looking for one before it" in capsys.readouterr().err


def test_two_checkpoints_of_one_step_are_not_taken_for_one(nodes: list[Path]) -> None:
    shutil.rmtree(nodes[1])
    save(nodes[1], 2, seed=1)
    assert found_by_two_nodes(nodes) == [None, None]
    assert steps_in(nodes[0]) == [2, 1]


def make_newer(folder: Path, step: int) -> Path:
    """As a later version might write it."""
    path = folder / folder_name(step) / MANIFEST
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    path.write_text(json.dumps({**manifest, "version": VERSION + 1, "more": "that is not known here"}))
    return path.parent


def test_a_newer_version_s_checkpoint_is_neither_passed_over_nor_removed(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3)
    theirs = make_newer(tmp_path, 3)
    with pytest.raises(NewerManifest, match=f"{theirs} was saved by a newer version of Windlass") as refused:
        save(tmp_path, 4)
    assert "upgrade Windlass where the run trains" in (refused.value.hint or "")
    shutil.copytree(tmp_path / folder_name(2), tmp_path / folder_name(4))
    manifest = json.loads((tmp_path / folder_name(4) / MANIFEST).read_text())
    del manifest["sha256"]
    (tmp_path / folder_name(4) / MANIFEST).write_text(json.dumps({**manifest, "step": 4}))
    with checkpoints(model=nn.Linear(4, 4), folder=tmp_path, every=1000, memory="off", keep=1) as ckpt:
        assert ckpt.first_step == 4  # it is no loss then
        for step in (5, 6):
            ckpt.step(step)
            ckpt.save()
    collect_garbage(tmp_path, Disk(), now=time.time() + 2 * 86_400)
    make_room(tmp_path, Keep(last=1), Disk(), None)
    assert steps_in(tmp_path) == [6]
    assert theirs.exists()


def test_a_newer_version_s_checkpoint_of_one_node_ends_the_others_too(nodes: list[Path]) -> None:
    save(nodes[1], 3)
    make_newer(nodes[1], 3)

    def look(peers: ThreadPeers) -> str:
        apart: Any = SimpleNamespace(neighbours=SimpleNamespace(ranks=(peers.rank,)), bring_newer=lambda **_: None)
        with pytest.raises(NewerManifest) as refused:
            find_good(nodes[peers.rank], peers, apart)
        return refused.value.message

    assert len(set(Meeting(2).run(look))) == 1
    assert found_by_two_nodes(nodes, than=3) == [None, None]  # what all have in memory is as new


def test_a_manifest_that_says_another_step_is_set_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, 1, 2)
    path = tmp_path / folder_name(2) / MANIFEST
    for text in (path.read_text().replace('"step": 2', '"step": 8'), path.read_text().replace("sha256", "sha25v", 1)):
        path.write_text(text)
        with checkpoints(model=nn.Linear(4, 4), folder=tmp_path, every=1000, memory="off") as ckpt:
            assert ckpt.first_step == 1
            ckpt.step(2)
        assert "step-0000000002: the checkpoint's manifest " in capsys.readouterr().err


def test_it_begins_anew_aloud_if_none_is_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And leaves the newest for whoever can make something of it, until a day has passed."""
    save(tmp_path, 1)
    damage(tmp_path, 1)
    with checkpoints(model=nn.Linear(4, 4), folder=tmp_path, every=1000) as ckpt:
        assert ckpt.first_step == 0
        told = capsys.readouterr().err
        assert "are not those that were saved; there is no other one" in told
        assert f"no checkpoint in {tmp_path} is good: beginning at the first step; the newest that was set" in told
        for step in (1, 2):
            ckpt.step(step)
            ckpt.save()
    (aside,) = list_set_aside(tmp_path)
    assert (aside / "manifest.json").exists()
    collect_garbage(tmp_path, Disk(), now=time.time() + 2 * 86_400)
    assert list_set_aside(tmp_path) == []


def test_damaged_ones_go_with_the_next_save_if_one_before_was_good(tmp_path: Path) -> None:
    save(tmp_path, 1, 2, 3)
    damage(tmp_path, 2)
    damage(tmp_path, 3)
    with checkpoints(model=nn.Linear(4, 4), folder=tmp_path, every=1000) as ckpt:
        assert ckpt.first_step == 1
        assert len(list_set_aside(tmp_path)) == 2
        ckpt.step(2)
        ckpt.save()
        assert list_set_aside(tmp_path) == []


@pytest.mark.parametrize("with_older", [True, False])
def test_memory_counts_if_what_is_newer_on_the_disk_is_damaged(
    with_older: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory").mkdir()
    monkeypatch.setenv(FOLDER, str(tmp_path / "memory"))
    if with_older:
        save(tmp_path / "disk", 50)
    with pytest.raises(KeyboardInterrupt):
        remember(tmp_path / "disk", 99)
    save(tmp_path / "other", 100)
    shutil.copytree(tmp_path / "other", tmp_path / "disk", dirs_exist_ok=True)
    damage(tmp_path / "disk", 100)
    with checkpoints(model=nn.Linear(4, 4), folder=tmp_path / "disk", every=1000, memory=1) as ckpt:
        assert ckpt.first_step == 99
        assert ckpt.resumed_from is not None
        assert ckpt.resumed_from.manifest.format == "memory"
    assert steps_in(tmp_path / "disk") == ([99, 50] if with_older else [99])
