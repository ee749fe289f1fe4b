"""What a program saves by itself: when it is finished, which step it is of, and what is taken of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from windlass.core.errors import InvalidInput
from windlass.core.manifest import folder_name
from windlass.job.checkpoint import adopting
from windlass.job.checkpoint.adopting import ADOPTED, Adopter, Unsteady, signature_of
from windlass.job.checkpoint.disk import Disk
from windlass.job.checkpoint.folder import check_hashes, check_sizes, list_saved, set_aside
from windlass.job.checkpoint.naming import is_epoch, is_named, step_in
from windlass.job.checkpoint.stores import fetching
from windlass.job.session import Session


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("epoch=3-step=1200.ckpt", 1200),
        ("checkpoint-500", 500),
        ("model_v2_step_70.pt", 70),
        ("global_step8", 8),
        ("ckpt.0007.pt", 7),
        ("last.pt", None),
        ("9" * 30, None),
        ("epoch=03-val_loss=0.42.ckpt", 3),
        ("epoch010-loss21.50.pt", 10),
        ("ep4_acc97.pt", 4),
        ("epoch=1.5.ckpt", None),
        ("model-3.pt", 3),
        ("keep12.pt", 12),  # no `ep`
        ("interval_500.pt", 500),  # no `val`
        ("model-02-0.4213.hdf5", 2),
        ("weights.05-0.35.hdf5", 5),
        ("m_lr1e-4_300.pt", 300),
        ("m_300_lr1e-4.pt", 300),
        ("valLoss21_500.pt", 500),
        ("ckpt_500_val_loss_21.pt", 500),
        ("best_auc0_93.pt", None),
        ("best-f1-93.pt", None),
        ("best_score_12.pt", None),
        ("best-0.97.ckpt", None),
        ("model_v2.pt", None),
        ("llama-500-7b.pt", 500),
        ("mixtral-8x7b.pt", None),
        ("yolov5s-100.pt", 100),
    ],
)
def test_the_step_is_in_the_name(name: str, step: int | None) -> None:
    assert step_in(name) == step


def test_names_say_what_their_number_is() -> None:
    names = ("global_step8", "epoch=3-step=1200.ckpt", "epoch=3.ckpt", "checkpoint-500")
    assert [(is_named(name), is_epoch(name)) for name in names] == [
        (True, False),
        (True, False),
        (True, True),
        (False, False),
    ]


class Told(Session):
    """Whose alerts are remembered."""

    def __init__(self) -> None:
        super().__init__({})
        self.alerts: list[tuple[str, str, int | None]] = []

    def alert(self, kind: str, message: str, step: int | None = None, *, once: bool = False) -> None:  # noqa: ARG002
        self.alerts.append((kind, message, step))


def write(path: Path, at: int) -> Path:
    """So many seconds after the beginning of time."""
    path.write_text(path.name)
    os.utime(path, (at, at))
    return path


def taken_in(folder: Path) -> dict[int, str]:
    return {saved.step: saved.manifest.files[0].name for saved in list_saved(folder / ADOPTED)}


def test_where_numbers_fall_the_order_of_writing_counts(tmp_path: Path) -> None:
    told = Told()
    adopter = Adopter(tmp_path / "saved", {"keep": 2}, mine=told)
    names = [f"best{number}.pt" for number in (97, 85, 61, 42)]
    assert [adopter.take(write(tmp_path / name, at)) for at, name in enumerate(names)] == [97, 98, 99, 100]
    assert taken_in(tmp_path / "saved") == {100: "best42.pt", 99: "best61.pt"}
    assert adopter.newest() == tmp_path / "saved" / ADOPTED / folder_name(100) / "best42.pt"
    ((kind, text, step),) = told.alerts
    assert (kind, step) == ("checkpoint-order", 98)
    assert text.startswith("best85.pt was written after what is of step 97, and the number in its name is 85: ")
    assert adopter.take(write(tmp_path / "best100.pt", 9)) == 101  # a number that is another's only by the order
    assert adopter.take(write(tmp_path / "best500.pt", 10)) == 500
    adopter.close()


def test_what_was_just_taken_stays_whatever_its_number(tmp_path: Path) -> None:
    """Of a training that has gone back, say: names that say `step` are right."""
    adopter = Adopter(tmp_path / "saved", {"keep": 2})
    for at, step in enumerate([100, 200, 300, 50, 60, 400]):
        assert adopter.take(write(tmp_path / f"step{step}.pt", at)) == step
        assert step in taken_in(tmp_path / "saved")
    assert list(taken_in(tmp_path / "saved")) == [400, 300]


@pytest.mark.parametrize("name", ["best-0.{}.pt", "best{}.pt"])
def test_what_an_attempt_before_has_taken_does_not_become_the_newest(name: str, tmp_path: Path) -> None:
    names = [name.format(number) for number in (97, 85, 61, 42)]
    paths = [write(tmp_path / name, at) for at, name in enumerate(names, start=1)]
    adopter = Adopter(tmp_path / "saved", {"keep": 2})
    last = [number for path in paths if (number := adopter.take(path))][-1]
    again = Adopter(tmp_path / "saved", {"keep": 2})
    for path in paths:
        again.take(path)
    newest = again.newest()
    assert newest is not None
    assert newest.name == names[-1]
    assert list(taken_in(tmp_path / "saved").values()).count(names[-1]) == 1
    assert again.take(write(tmp_path / name.format(30), 5)) == last + 1


def test_a_file_is_taken_once_and_old_ones_go(tmp_path: Path) -> None:
    adopter = Adopter(tmp_path, {"keep": 2})
    for step in (1, 2, 3):
        path = tmp_path / f"model-{step}.pt"
        path.write_bytes(b"x" * step)
        assert adopter.take(path, metrics={"loss": 1.0 / step}) == step
        assert adopter.take(path) is None
    found = list_saved(tmp_path / "adopted")
    assert [(saved.manifest.step, saved.manifest.format) for saved in found] == [(3, "files"), (2, "files")]
    check_hashes(found[0])
    assert adopter.newest() == tmp_path / "adopted" / folder_name(3) / "model-3.pt"
    (found[0].path / "model-3.pt").write_bytes(b"xxy")
    assert adopter.newest() == tmp_path / "adopted" / folder_name(2) / "model-2.pt"  # the newer one is damaged
    adopter.close()


def test_what_has_no_number_counts_on(tmp_path: Path) -> None:
    adopter, path = Adopter(tmp_path, {}), tmp_path / "last.pt"
    path.write_bytes(b"one")
    assert adopter.take(path) == 1
    assert adopter.take(path) is None  # the same as before
    path.write_bytes(b"two")
    assert adopter.take(path) == 2
    assert (tmp_path / "adopted" / folder_name(1) / "last.pt").read_bytes() == b"one"


class Noting(Disk):
    """Which names are on the disk for certain: those in folders that were synced."""

    def __init__(self) -> None:
        super().__init__()
        self.certain: set[str] = set()

    def sync_dir(self, path: Path) -> None:
        super().sync_dir(path)
        self.certain |= {inner.name for inner in path.iterdir()}

    def rename(self, path: Path, to: Path) -> None:
        if path.is_dir():
            assert self.certain >= {"deep", "deeper", "weights.bin"}
        super().rename(path, to)


def test_names_in_inner_folders_are_on_the_disk_before_it_is_seen(tmp_path: Path) -> None:
    inner = tmp_path / "checkpoint-5" / "deep" / "deeper"
    inner.mkdir(parents=True)
    (inner / "weights.bin").write_bytes(b"x")
    assert Adopter(tmp_path, {}, disk=Noting()).take(tmp_path / "checkpoint-5") == 5


def test_a_folder_is_taken_with_all_in_it_and_removed_with_all_in_it(tmp_path: Path) -> None:
    adopter = Adopter(tmp_path, {"keep": 1})
    for step in (5, 6):
        inner = tmp_path / f"checkpoint-{step}" / "inner"
        inner.mkdir(parents=True)
        (inner / "weights").write_bytes(b"w")
        (inner.parent / "config.json").write_text("{}")
        assert adopter.take(inner.parent) == step
    (saved,) = list_saved(tmp_path / "adopted")
    assert [file.name for file in saved.manifest.files] == ["config.json", "inner/weights"]
    check_hashes(saved)
    assert adopter.newest() == saved.path
    assert [path for path in (tmp_path / "adopted").iterdir() if path.is_dir()] == [saved.path]


def test_what_is_held_may_be_removed_before_it_is_taken(tmp_path: Path) -> None:
    adopter, source = Adopter(tmp_path / "run", {}), tmp_path / "checkpoint-2"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "model.pt").write_bytes(b"two")
    single = tmp_path / "m-3.pt"
    single.write_bytes(b"three")
    held = {2: adopter.hold(source, 2), 3: adopter.hold(single, 3)}
    shutil.rmtree(source)
    single.unlink()
    for step, path in held.items():
        assert adopter.take(path, step=step) == step
        adopter.let_go(path)
    three, two = list_saved(tmp_path / "run" / ADOPTED)
    assert (three.path / "m-3.pt").read_bytes() == b"three"
    assert (two.path / "deep" / "model.pt").read_bytes() == b"two"
    assert sorted(path.name for path in (tmp_path / "run" / ADOPTED).iterdir()) == [two.path.name, three.path.name]
    with pytest.raises(FileNotFoundError):
        adopter.hold(tmp_path / "gone", 4)


def test_what_changes_while_it_is_copied_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adopter, path = Adopter(tmp_path, {}), tmp_path / "m-1.pt"
    path.write_bytes(b"half")
    with pytest.raises(Unsteady, match="is not there"):
        adopter.take(tmp_path / "m-2.pt")
    now = signature_of(path)
    looks = iter([now, now, (("m-1.pt", 9, 9),)])
    monkeypatch.setattr(adopting, "signature_of", lambda _: next(looks))
    with pytest.raises(Unsteady, match="has changed"):
        adopter.take(path)
    assert list((tmp_path / "adopted").iterdir()) == []


def test_all_ranks_may_ask_at_once_for_the_newest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"store": f"file://{tmp_path}/store"}
    (tmp_path / "m-5.pt").write_bytes(b"5")
    adopter = Adopter(tmp_path / "one", wanted)
    adopter.take(tmp_path / "m-5.pt")
    adopter.close()
    fetched, another = [], threading.Event()
    fetch = fetching.fetch_files

    def fetch_slowly(*args: Any) -> int:
        fetched.append(args)
        if len(fetched) > 1:
            another.set()
        another.wait(0.5)  # as long as a second one would take to come
        return fetch(*args)

    monkeypatch.setattr(fetching, "fetch_files", fetch_slowly)
    ranks = [Adopter(tmp_path / "two", wanted, mine=Session({"RANK": str(rank)})) for rank in range(3)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda rank: rank.newest(), ranks))
    assert found == [tmp_path / "two" / "adopted" / folder_name(5) / "m-5.pt"] * 3
    assert len(fetched) == 1
    found[0].write_bytes(b"x")  # damaged: the first one who sees it brings it again, for all
    assert [rank.newest() for rank in ranks] == found
    assert found[0].read_bytes() == b"5"
    ranks[0].close()  # it has no other's uploader to wait for
    set_aside(found[0].parent.with_name("gone"), Disk())


@pytest.mark.parametrize("wanted", [{"encrypt": True}, {"compress": "zstd"}])
def test_nothing_is_taken_plain_that_was_to_be_otherwise(tmp_path: Path, wanted: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=f"wants `{next(iter(wanted))}`"):
        Adopter(tmp_path, wanted)
    assert list(tmp_path.iterdir()) == []
    Adopter(tmp_path, {"encrypt": False, "compress": "none"}).close()


def test_files_that_belong_together_are_one_checkpoint(tmp_path: Path) -> None:
    adopter = Adopter(tmp_path / "saved", {})
    for name in ("a/model_7.pt", "b/optim_7.pt", "b/rng_7/0"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    sources = [tmp_path / "a/model_7.pt", tmp_path / "b/optim_7.pt", tmp_path / "b/rng_7"]
    assert adopter.take(*sources) == 7
    (saved,) = list_saved(tmp_path / "saved" / ADOPTED)
    assert [file.name for file in saved.manifest.files] == ["a/model_7.pt", "b/optim_7.pt", "b/rng_7/0"]
    check_hashes(saved)
    assert adopter.newest() == saved.path
    assert adopter.left_out(*sources, step=7) == []
    (tmp_path / "b" / "ema_7.pt").write_bytes(b"late")
    assert adopter.left_out(*sources, tmp_path / "b" / "ema_7.pt", step=7) == ["b/ema_7.pt"]
    assert adopter.left_out(tmp_path / "b" / "ema_7.pt", step=8) == []
    with pytest.raises(Unsteady, match=r"gone_9\.pt is not there"):
        adopter.take(tmp_path / "b" / "ema_7.pt", tmp_path / "gone_9.pt", step=9)


_SWEEP = """
import os, sys
from pathlib import Path
from windlass.core.deaths import Deaths
from windlass.job.checkpoint.adopting import Adopter
from windlass.job.checkpoint.disk import Disk

def adopt(folder, step, deaths=None):
    source = folder / f"m-{step}"
    source.mkdir()
    for name in ("model.pt", "optim.pt"):
        (source / name).write_bytes(f"{name} {step}".encode())
    adopter = Adopter(folder / "saved", {"keep": 1}, disk=Disk(deaths))
    held = adopter.hold(source, step)
    adopter.take(held, step=step)
    adopter.let_go(held)

for number in range(1, 100):
    folder = Path(sys.argv[1], str(number))
    folder.mkdir()
    adopt(folder, 1)
    child = os.fork()
    if not child:
        adopt(folder, 2, Deaths({"FAULT": f"{number}:{sys.argv[2]}"}, "FAULT"))
        os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        print(number)
        break
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_change_the_newest_visible_one_is_good(when: str, tmp_path: Path) -> None:
    """Step 1 is taken; step 2 dies at its N-th change; step 3 is taken over what is left. Keep is one, so every one
    deletes as well."""
    done = subprocess.run(
        [sys.executable, "-c", _SWEEP, str(tmp_path), when], capture_output=True, text=True, timeout=120, check=True
    )
    last, newest = int(done.stdout), []
    assert last > 25  # it did die at many of them
    for number in range(1, last + 1):
        saved = list_saved(tmp_path / str(number) / "saved" / ADOPTED)[0]
        check_sizes(saved)
        check_hashes(saved)
        newest.append(saved.manifest.step)
        adopter = Adopter(tmp_path / str(number) / "saved", {"keep": 1})
        found = adopter.newest()
        assert found is not None
        assert (found / "optim.pt").read_text() == f"optim.pt {newest[-1]}"
        (tmp_path / str(number) / "m-3").write_bytes(b"three")
        assert adopter.take(tmp_path / str(number) / "m-3") == 3
        assert [one.manifest.step for one in list_saved(tmp_path / str(number) / "saved" / ADOPTED)] == [3]
        adopter.close()
    assert newest == sorted(newest)
    assert set(newest) == {1, 2}
