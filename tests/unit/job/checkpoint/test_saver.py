"""The saver process at its worst moments: killed at every change of the disk, on a full disk, beside a dead peer."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import skip_unless_ci
from tests.unit.job.checkpoint.images import SIZE, image, order, save
from windlass.blobs.encoding import read_plain
from windlass.core.manifest import MANIFEST
from windlass.job.checkpoint.disk import Disk
from windlass.job.checkpoint.folder import (
    Damaged,
    check_hashes,
    check_sizes,
    collect_garbage,
    discard,
    list_saved,
    unreadable,
)
from windlass.job.checkpoint.saver import Saver


def check_newest(folder: Path, *, steps: tuple[int, ...]) -> int:
    """The newest that can be seen is whole, and is one of these; its step."""
    newest = list_saved(folder)[0]
    check_sizes(newest)
    check_hashes(newest)
    assert newest.manifest.step in steps
    written = b"".join(read_plain(newest.path, f"__0_{number}.distcp", os.environ) for number in (0, 1))
    assert written == image(newest.manifest.step)
    return newest.manifest.step


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("when", "compress"), [("before", None), ("after", None), ("after", "zlib")])
def test_killed_at_any_change_the_newest_visible_one_is_good(when: str, compress: str | None, tmp_path: Path) -> None:
    """Step 1 is saved; step 2 dies at its N-th change; step 3 is saved over what is left. Keep is one, so every save
    deletes as well."""
    seen, encode = set(), {"compress": compress}
    for number in range(1, 200):
        folder = tmp_path / str(number)
        assert save(order(folder, 1, encode=encode)) is not None
        answer = save(order(folder, 2, save_id="bbbb", encode=encode), fault=f"{number}:{when}")
        seen.add(check_newest(folder, steps=(1, 2)))
        if answer is not None:
            break
        assert save(order(folder, 3, save_id="cccc", encode=encode)) is not None
        assert check_newest(folder, steps=(3,)) == 3
        assert [saved.manifest.step for saved in list_saved(folder)] == [3]
        assert not [path for path in folder.iterdir() if path.name.startswith(".trash")]
    else:
        pytest.fail("the save never came to its end")
    assert seen == {1, 2}
    assert number > 20  # it did die at many of them


def test_what_a_dead_save_left_is_removed_when_it_cannot_live(tmp_path: Path) -> None:
    assert save(order(tmp_path, 1), fault="8:before") is None
    (left,) = tmp_path.iterdir()
    collect_garbage(tmp_path, Disk())
    assert left.exists()  # its saver may still be at work, for all that others know
    collect_garbage(tmp_path, Disk(), now=time.time() + 3600)
    assert list(tmp_path.iterdir()) == []


def test_the_first_rank_commits_what_all_have_written(tmp_path: Path) -> None:
    other = save(order(tmp_path, 5, rank=1, world_size=2))
    assert other is not None
    assert other["error"] is None
    assert list_saved(tmp_path) == []  # a part is no checkpoint
    assert save(order(tmp_path, 5, rank=0, world_size=2)) is not None
    (saved,) = list_saved(tmp_path)
    check_hashes(saved)
    assert sorted(file.name for file in saved.manifest.files) == [
        ".metadata",
        "__0_0.distcp",
        "__0_1.distcp",
        "__1_0.distcp",
        "__1_1.distcp",
    ]
    assert {path.name for path in saved.path.iterdir()} == {file.name for file in saved.manifest.files} | {
        "manifest.json"
    }


class Full(Disk):
    def reserve(self, fd: int, size: int) -> None:  # noqa: ARG002
        raise OSError(errno.ENOSPC, "No space left on device")


def saved_by(folder: Path, rank: int, disk: Disk) -> str | None:
    saver = Saver(disk)
    arena = os.memfd_create("arena")
    os.write(arena, image(5))
    saver.use_arena(arena, b"meta")
    error: str | None = saver.save(order(folder, 5, rank=rank, world_size=2))["error"]
    return error


def test_nothing_is_left_of_a_save_that_the_first_rank_gives_up(tmp_path: Path) -> None:
    """However much later another one comes to its part: it writes nothing any more."""
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(saved_by, tmp_path, 0, Full())
        while not first.done() and not list(tmp_path.glob(".step-*/.part-0.json")):
            time.sleep(0.001)
        said = "rank 0 could not write its part: [Errno 28] No space left on device"
        assert saved_by(tmp_path, 1, Disk()) == said
        assert first.result(60) == "[Errno 28] No space left on device"
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_of_a_save_that_another_rank_gives_up(tmp_path: Path) -> None:
    assert saved_by(tmp_path, 1, Full()) == "[Errno 28] No space left on device"
    assert saved_by(tmp_path, 0, Disk()) == "rank 1 could not write its part: [Errno 28] No space left on device"
    assert list(tmp_path.iterdir()) == []


def test_the_same_step_again_changes_nothing(tmp_path: Path) -> None:
    save(order(tmp_path, 1))
    (before,) = list_saved(tmp_path)
    answer = save(order(tmp_path, 1, save_id="bbbb"))
    assert answer is not None
    assert answer["error"] is None
    assert list_saved(tmp_path) == [before]
    assert [path.name for path in tmp_path.iterdir()] == [before.path.name]


def test_a_bit_flipped_in_any_file_is_found(tmp_path: Path) -> None:
    save(order(tmp_path, 1))
    (saved,) = list_saved(tmp_path)
    for file in saved.manifest.files:
        path = saved.path / file.name
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        check_sizes(saved)
        with pytest.raises(Damaged, match=f"{file.name} are not those that were saved"):
            check_hashes(saved)
        path.write_bytes(content[:-1])
        with pytest.raises(Damaged, match=f"{file.name} has {len(content) - 1} bytes"):
            check_sizes(saved)
        path.write_bytes(content)
        check_hashes(saved)


def test_a_bit_flipped_anywhere_in_the_manifest_is_found(tmp_path: Path) -> None:
    save(replace(order(tmp_path, 20), metrics={"loss": 0.25}))
    (saved,) = list_saved(tmp_path)
    path = saved.path / MANIFEST
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ (1 << at % 7)]) + content[at + 1 :])
        found = list_saved(tmp_path)
        assert found in ([], [saved])  # what is no word is space
        assert list(unreadable(tmp_path)) == ([] if found else [saved.path])


def test_discarding_twice_is_discarding_once(tmp_path: Path) -> None:
    save(order(tmp_path, 1))
    (saved,) = list_saved(tmp_path)
    discard(saved.path, Disk())
    discard(saved.path, Disk())
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """With room for one checkpoint and a half."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE * 3 // 2 + 6 * 4096}", "none", str(disk)], capture_output=True
    )
    if mounted.returncode != 0:
        skip_unless_ci("right to mount", RuntimeError(mounted.stderr.decode()))
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_fails_the_save_and_keeps_the_one_before(small_disk: Path) -> None:
    assert save(order(small_disk, 1)) is not None
    filler = small_disk / "filler"
    free = os.statvfs(small_disk)
    filler.write_bytes(b"x" * max(0, free.f_bavail * free.f_bsize - SIZE))
    answer = save(order(small_disk, 2, save_id="bbbb"))
    assert answer is not None
    assert "No space left" in answer["error"]
    check_newest(small_disk, steps=(1,))
    assert sorted(path.name for path in small_disk.iterdir()) == ["filler", "step-0000000001"]  # room was made at once
    filler.unlink()
    assert save(order(small_disk, 3, save_id="cccc")) is not None
    check_newest(small_disk, steps=(3,))
