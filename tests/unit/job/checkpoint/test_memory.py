"""Copies in the node's memory: which one is given up, when one is whole, and going on from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from windlass.core.errors import InvalidInput  # noqa: E402
from windlass.job.checkpoint.checkpoints import Checkpoints, checkpoints  # noqa: E402
from windlass.job.checkpoint.folder import list_saved  # noqa: E402
from windlass.job.checkpoint.interval import MemoryPace  # noqa: E402
from windlass.job.checkpoint.memory import FOLDER, MemoryCopy, NodeMemory, decide_slots  # noqa: E402
from windlass.job.checkpoint.slots import Slot, choose_slot  # noqa: E402
from windlass.job.checkpoint.sums import Summing  # noqa: E402
from windlass.job.session import session  # noqa: E402

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[4]
GB = 10**9


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeMemory:
    folder = tmp_path / "memory"
    folder.mkdir()
    monkeypatch.setenv(FOLDER, str(folder))
    monkeypatch.setattr(session(), "_checkpoint_dir", str(tmp_path / "disk"))
    monkeypatch.setenv("WINDLASS_CHECKPOINT_DIR", str(tmp_path / "disk"))  # for other processes
    return NodeMemory(folder)


def made(seed: int = 0, width: int = 8) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def opened(folder: Path, model: nn.Module, optimizer: Any, **options: Any) -> Checkpoints:
    return checkpoints(model=model, optimizer=optimizer, folder=folder, **{"every": 1000, "memory": 1, **options})


def trained(ckpt: Checkpoints, model: nn.Module, optimizer: torch.optim.Optimizer, total: int) -> None:
    for step in ckpt.steps(total):
        optimizer.zero_grad()
        draw = torch.Generator().manual_seed(step)
        model(torch.randn(4, 8, generator=draw)).square().sum().backward()
        optimizer.step()


class Killed(BaseException):
    """As good as SIGKILL for what is in memory: nothing is saved on the way out."""


def killed_after(steps: int, folder: Path, **options: Any) -> nn.Module:
    model, optimizer = made()
    try:
        with opened(folder, model, optimizer, **options) as ckpt:
            trained(ckpt, model, optimizer, steps)
            raise Killed
    except Killed:
        return model


def test_it_goes_on_from_memory_with_every_bit(memory: NodeMemory, tmp_path: Path) -> None:
    before = killed_after(5, tmp_path / "disk")
    assert list_saved(tmp_path / "disk") == []
    assert sorted(copy.step for copy in memory.copies(0)) == [3, 4, 5]
    model, optimizer = made(seed=1)
    with opened(tmp_path / "disk", model, optimizer) as ckpt:
        assert ckpt.first_step == 5
        assert ckpt.resumed_from is not None
        assert (ckpt.resumed_from.step, ckpt.resumed_from.manifest.format) == (5, "memory")
        for name, tensor in before.state_dict().items():
            assert torch.equal(tensor, model.state_dict()[name]), name
        trained(ckpt, model, optimizer, 8)
    whole, alone = made()
    with opened(tmp_path / "other", whole, alone, memory="off") as ckpt:
        trained(ckpt, whole, alone, 8)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name]), name
    assert list_saved(tmp_path / "disk")[0].manifest.step == 8


def test_a_state_that_is_in_memory_alone_is_saved_at_the_end(memory: NodeMemory, tmp_path: Path) -> None:
    killed_after(5, tmp_path / "disk")
    model, optimizer = made()
    with opened(tmp_path / "disk", model, optimizer) as ckpt:
        trained(ckpt, model, optimizer, 5)  # nothing is left to do
    assert list_saved(tmp_path / "disk")[0].manifest.step == 5


def test_what_is_newer_on_the_disk_counts(memory: NodeMemory, tmp_path: Path) -> None:
    killed_after(3, tmp_path / "disk")
    model, optimizer = made()
    with opened(tmp_path / "disk", model, optimizer, memory="off") as ckpt:
        assert ckpt.first_step == 0
        trained(ckpt, model, optimizer, 4)
    with opened(tmp_path / "disk", *made()) as ckpt:
        assert ckpt.first_step == 4
        assert ckpt.resumed_from is not None
        assert ckpt.resumed_from.manifest.format == "dcp"
    assert memory.copies(0) == []  # all of them were behind


@pytest.mark.parametrize("change", [{"run_id": "another"}, {"plan": "shard=2"}, {"world_size": 2}, {"version": 7}])
def test_copies_of_others_are_left_alone(change: dict[str, Any], memory: NodeMemory, tmp_path: Path) -> None:
    killed_after(2, tmp_path / "disk")
    for copy in memory.copies(0):
        memory.commit(replace(copy, **change))
    with opened(tmp_path / "disk", *made()) as ckpt:
        assert ckpt.first_step == 0


def test_what_is_saved_elsewhere_has_copies_of_its_own(memory: NodeMemory, tmp_path: Path) -> None:
    """A generator and its discriminator, whose shapes are the same, at once; and one block after the other."""
    pair = [(name, *made(seed)) for seed, name in enumerate(("disk", "disk/other", "elsewhere"))]
    with suppress(Killed), ExitStack() as stack:
        blocks = [stack.enter_context(opened(tmp_path / name, *both)) for name, *both in pair]
        for step in range(1, 4):
            for block, (_, model, _) in zip(blocks, pair, strict=True):
                model[0].weight.data.add_(1.0)
                block.step(step)
        raise Killed
    for name, model, _ in pair:
        fresh, optimizer = made(9)
        with suppress(Killed), opened(tmp_path / name, fresh, optimizer) as ckpt:
            assert ckpt.first_step == 3
            assert torch.equal(fresh[0].weight, model[0].weight)
            raise Killed
    fresh, optimizer = made(9)
    with opened(tmp_path / "disk" / "new", fresh, optimizer) as ckpt:
        assert ckpt.first_step == 0


def test_nothing_is_left_in_memory_of_training_that_ended_well(memory: NodeMemory, tmp_path: Path) -> None:
    model, optimizer = made()
    with opened(tmp_path / "disk", model, optimizer) as ckpt:
        trained(ckpt, model, optimizer, 3)
    assert memory.copies(0) == []
    assert not list(memory.folder.glob("*.arena"))


def test_two_open_blocks_do_not_save_to_one_folder(tmp_path: Path) -> None:
    """But one may have what the other has saved, to look at it while training goes on."""
    model, optimizer = made()
    with opened(tmp_path / "disk", model, optimizer) as ckpt:
        trained(ckpt, model, optimizer, 1)
        ckpt.save()
        fresh, another = made(1)
        with opened(tmp_path / "disk", fresh, another) as reader:
            assert reader.first_step == 1
            assert torch.equal(fresh[0].weight, model[0].weight)
            with pytest.raises(InvalidInput, match="give each a folder"):
                reader.step(2)
        ckpt.step(2)
    with opened(tmp_path / "disk", *made(1)) as again:
        assert again.first_step == 2
        again.step(3)


def test_a_copy_that_does_not_fit_the_model_is_passed_over(
    memory: NodeMemory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed_after(2, tmp_path / "disk")
    model = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    with opened(tmp_path / "disk", model, optimizer) as ckpt:
        assert ckpt.first_step == 0
        assert not optimizer.state
        ckpt.step(1)
    assert "the copy in memory is of no use here" in capsys.readouterr().err


def test_a_truncated_copy_is_none(memory: NodeMemory, tmp_path: Path) -> None:
    killed_after(2, tmp_path / "disk")
    newest = max(memory.copies(0), key=lambda copy: copy.step)
    os.truncate(memory.arena(0, newest.slot), 100)
    with opened(tmp_path / "disk", *made()) as ckpt:
        assert ckpt.first_step == 1


def flip_a_bit(memory: NodeMemory, step: int) -> None:
    (copy,) = [copy for copy in memory.copies(0) if copy.step == step]
    with memory.arena(0, copy.slot).open("r+b") as file:
        file.seek(copy.files[0][2] // 2)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))


def test_a_copy_whose_bytes_have_changed_gives_way_to_the_one_before(
    memory: NodeMemory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = killed_after(4, tmp_path / "disk")
    killed_after(5, tmp_path / "disk")
    Summing(memory, 0).sum_newest()
    flip_a_bit(memory, 5)
    model, optimizer = made(seed=1)
    with opened(tmp_path / "disk", model, optimizer) as ckpt:
        assert ckpt.first_step == 4
        for name, tensor in before.state_dict().items():
            assert torch.equal(tensor, model.state_dict()[name]), name
    told = capsys.readouterr().err
    assert "the copy in memory is not used: the bytes of __0_0.distcp in rank-0-" in told
    assert "are not those that were copied" in told


def test_if_no_copy_is_whole_the_disk_counts(memory: NodeMemory, tmp_path: Path) -> None:
    killed_after(3, tmp_path / "disk", every=2)
    Summing(memory, 0).sum_newest()
    flip_a_bit(memory, 3)
    for copy in memory.copies(0):
        if copy.step != 3:
            memory.drop(0, copy.slot)
    with opened(tmp_path / "disk", *made(seed=1)) as ckpt:
        assert ckpt.first_step == 2
        assert ckpt.resumed_from is not None
        assert ckpt.resumed_from.manifest.format == "dcp"


def test_steps_between_copies_are_those_of_every(memory: NodeMemory, tmp_path: Path) -> None:
    """Multiples, whatever else was copied in between."""
    with opened(tmp_path / "disk", *made(), every=4, memory=3) as ckpt:
        copied = []
        for step in range(1, 14):
            ckpt.step(step)
            ckpt.wait()
            copied.append(max((copy.step for copy in memory.copies(0)), default=0))
    assert copied == [0, 0, 3, 4, 4, 6, 6, 8, 9, 9, 9, 12, 12]


KILLED = """
import os, signal, sys
import torch
from torch import nn
from windlass import job
model = nn.Linear(300, 300)
with torch.no_grad():
    model.weight.zero_()
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
class Dying:
    def state_dict(self): return {}
    def load_state_dict(self, state): pass
with job.checkpoints(model=model, optimizer=optimizer, folder=sys.argv[1], every=1000, memory=1) as ckpt:
    print(ckpt.first_step, float(model.weight.min()), float(model.weight.max()), flush=True)
    for step in ckpt.steps(10**9):
        with torch.no_grad():
            model.weight.fill_(step + 1)
"""


def test_killed_at_any_moment_a_copy_is_whole_and_new(memory: NodeMemory, tmp_path: Path) -> None:
    """SIGKILL at moments that nobody chose; each life begins with the state of the step that it says it has."""
    first = 0
    for life in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path / "disk")], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            step, low, high = process.stdout.readline().split()
            assert float(low) == float(high) == float(step)
            assert int(step) >= first
            assert bool(life) == bool(int(step))
            first = int(step)
            while not any(copy.step >= first + 20 for copy in memory.copies(0)):
                assert process.poll() is None
                time.sleep(0.01)  # it needs the processor more than this loop
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def test_a_saver_that_outlives_its_rank_keeps_its_bytes(memory: NodeMemory, tmp_path: Path) -> None:
    killed_after(2, tmp_path / "disk")
    (old, *_) = memory.copies(0)
    memory.begin_saving(0, old.slot)  # as if it went on
    with memory.arena(0, old.slot).open("rb") as reading:
        content = reading.read()
        with opened(tmp_path / "disk", *made()) as ckpt:
            for step in range(3, 7):
                ckpt.step(step)
            assert not memory.is_saving(0, old.slot)
        assert os.fstat(reading.fileno()).st_nlink == 0  # a new file took the name
        reading.seek(0)
        assert reading.read() == content


def test_while_one_is_written_to_the_disk_others_are_used(memory: NodeMemory, tmp_path: Path) -> None:
    model, optimizer = made()
    with opened(tmp_path / "disk", model, optimizer, every=2) as ckpt:
        ckpt.step(1)
        ckpt.step(2)
        (reading,) = [slot.number for slot in ckpt._snapshots._slots._slots if slot.is_read]
        ckpt._snapshots._saving.hear = lambda _: False  # type: ignore[method-assign]  # it takes its time
        for step in (3, 5, 7):
            ckpt.step(step)
            assert {copy.step: copy.slot for copy in memory.copies(0)}[2] == reading
            assert step in {copy.step for copy in memory.copies(0)}
        del ckpt._snapshots._saving.hear
        ckpt.wait()
    assert [saved.manifest.step for saved in list_saved(tmp_path / "disk")] == [7, 2]


def test_which_slot_is_given_up() -> None:
    slots = [Slot(number=0, step=5), Slot(number=1, step=4), Slot(number=2, step=6)]
    assert choose_slot(slots).number == 1
    slots[1].is_read = True
    assert choose_slot(slots).number == 0
    slots[2].step = None
    assert choose_slot(slots).number == 2
    assert choose_slot([Slot(number=0, step=4, is_read=True), Slot(number=1, step=5)]).number == 1


def test_how_many_there_are() -> None:
    assert decide_slots(GB, free_bytes=10 * GB, left_bytes=None) == 3
    assert decide_slots(2 * GB, free_bytes=10 * GB, left_bytes=None) == 2
    assert decide_slots(3 * GB, free_bytes=10 * GB, left_bytes=None) == 1
    assert decide_slots(GB, free_bytes=10 * GB, left_bytes=4 * GB) == 2
    assert decide_slots(GB, free_bytes=10 * GB, left_bytes=-GB) == 0


def test_a_limit_leaves_room_for_training(memory: NodeMemory, tmp_path: Path) -> None:
    (memory.folder / "owner.json").write_text(json.dumps({"limit_bytes": 1 << 20}))
    killed_after(2, tmp_path / "disk")  # it uses more than that already
    assert memory.copies(0) == []


def test_how_often_is_learned() -> None:
    pace = MemoryPace("auto")
    assert pace.steps == 1
    for _ in range(8):
        pace.stepped(0.1)
        pace.copied(0.001)
    assert pace.steps == 1
    for _ in range(8):
        pace.copied(0.01)
    assert pace.steps == 5
    assert MemoryPace("off").is_off
    assert MemoryPace(7).steps == 7
    timed = MemoryPace("1s")
    timed.stepped(0.1)
    assert timed.steps == 10
    with pytest.raises(
        InvalidInput, match=r"memory is 0; write a number of steps from 1, 'auto', 'off' or a time such as '10m'"
    ):
        MemoryPace(0)
    assert MemoryPace(False).is_off
    assert not MemoryPace(True).is_off


def test_records_that_say_nothing_are_none(memory: NodeMemory) -> None:
    for slot, content in enumerate(["", "[]", json.dumps({"rank": 0})]):
        (memory.folder / f"rank-0-{slot}.json").write_text(content)
    assert memory.copies(0) == []
    assert MemoryCopy.__dataclass_fields__["version"].default == 1
