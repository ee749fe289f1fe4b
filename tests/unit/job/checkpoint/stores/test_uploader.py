"""The uploader process: what it sends and clears up, and killed at any request of the store."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("obstore")

from tests.unit.job.checkpoint.images import order, save
from tests.unit.job.checkpoint.stores.uploads import finish, settings, start, upload
from windlass.blobs import stored as naming
from windlass.blobs.bucket import Bucket, open_bucket
from windlass.blobs.stored import Stored, check_stored, list_stored
from windlass.core.integrity import Finding
from windlass.job.checkpoint.disk import Disk
from windlass.job.checkpoint.folder import check_hashes, check_sizes, discard, list_saved
from windlass.job.checkpoint.stores.fetching import fetch_files, show
from windlass.job.checkpoint.stores.throttle import Throttle
from windlass.job.checkpoint.stores.whole import WholeSender


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return open_bucket(f"file://{tmp_path}/store", environ={})


def fetch(bucket: Bucket, one: Stored, folder: Path) -> None:
    fetch_files(bucket, one, one.manifest.files, folder, Disk())
    show(one, folder, Disk())


def check(bucket: Bucket, one: Stored) -> None:
    found = check_stored(bucket, one.name, run_id="r1", step=one.manifest.step)
    assert (found.finding, found.problems) == (Finding.GOOD, ())


def test_what_is_saved_goes_to_the_store_and_comes_back(bucket: Bucket, tmp_path: Path) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    save(order(folder, 1))
    code, said = upload(settings(folder, bucket.address))
    assert code == 0
    assert [line["what"] for line in said] == ["there", "stored"]
    (one,) = list_stored(bucket)
    check(bucket, one)
    fetch(bucket, one, other)
    (saved,) = list_saved(other)
    check_sizes(saved)
    check_hashes(saved)
    assert saved.manifest == list_saved(folder)[0].manifest
    code, said = upload(settings(folder, bucket.address))  # again: there is nothing to do
    assert [line["what"] for line in said] == ["there", "stored"]
    assert "took_s" not in said[1]


def test_the_store_has_a_retention_of_its_own(bucket: Bucket, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for step in (1, 2, 3):
        save(order(folder, step))  # of which the folder keeps one
        code, said = upload(settings(folder, bucket.address, keep=2))
        assert code == 0
    assert [one.manifest.step for one in list_stored(bucket)] == [3, 2]
    assert [line["name"][:15] for line in said if line["what"] == "removed"] == ["step-0000000001"]
    assert [saved.manifest.step for saved in list_saved(folder)] == [3]


def test_what_another_uploader_has_finished_is_no_garbage(bucket: Bucket, tmp_path: Path) -> None:
    """Of an attempt before, say, whose last save it was left to send; it counts for the retention too."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    save(order(ours, 1))
    sender = WholeSender(settings(ours, bucket.address), bucket, Throttle(None))
    assert sender.look(closing=False)
    sender.tidy()
    save(order(theirs, 3, save_id="bbbb"))
    assert upload(settings(theirs, bucket.address))[0] == 0
    long_ago = time.time() - 7200
    for path in (tmp_path / "store").glob("step-0000000003-*/*"):
        os.utime(path, (long_ago, long_ago))
    save(order(ours, 2, save_id="cccc"))
    while sender.look(closing=True):
        sender.tidy()
    assert [one.manifest.step for one in list_stored(bucket)] == [3, 2]


@pytest.mark.timeout(600)
def test_killed_at_any_request_the_next_one_goes_on(tmp_path: Path) -> None:
    """Step 1 is in the store, and leaves it when step 2 has come: so deletions are swept as well. After the N-th
    request is before the next one, so one moment does."""
    folder, base = tmp_path / "folder", tmp_path / "base"
    save(order(folder, 1))
    assert upload(settings(folder, f"file://{base}", keep=1))[0] == 0
    save(order(folder, 2, save_id="bbbb"))
    for number in range(1, 100):
        shutil.copytree(base, tmp_path / str(number))
        place = open_bucket(f"file://{tmp_path}/{number}", environ={})
        wanted = settings(folder, place.address, keep=1)
        code, _ = upload(wanted, {"WINDLASS_FAULT_STORE": f"{number}:after"})
        check(place, list_stored(place)[0])
        if code == 0:
            break
        assert code == -signal.SIGKILL
        assert upload(wanted)[0] == 0
        (one,) = list_stored(place)
        assert one.manifest.step == 2
        check(place, one)
    else:
        pytest.fail("the upload never came to its end")
    assert number > 12


def test_a_damaged_file_does_not_become_a_checkpoint_in_the_store(bucket: Bucket, tmp_path: Path) -> None:
    save(order(tmp_path / "folder", 1))
    (saved,) = list_saved(tmp_path / "folder")
    path = saved.path / "__0_1.distcp"
    path.write_bytes(path.read_bytes()[:-1] + b"\x77")
    code, said = upload(settings(tmp_path / "folder", bucket.address))
    assert code == 0
    assert [line["what"] for line in said] == ["there", "damaged"]
    assert list_stored(bucket) == []
    assert bucket.folders() == []
    path.unlink()
    code, said = upload(settings(tmp_path / "folder", bucket.address))
    assert (code, said[-1]["why"]) == (0, "step-0000000001 has no __0_1.distcp")


def test_what_is_removed_meanwhile_is_sent_all_the_same(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's own retention does not wait for a slow store."""
    from windlass.job.checkpoint.stores.throttle import Throttle
    from windlass.job.checkpoint.stores.uploading import send_files

    save(order(tmp_path / "folder", 1))
    (saved,) = list_saved(tmp_path / "folder")

    class Removing(Throttle):
        def wait(self, _: int) -> None:
            discard(saved.path, Disk())

    send_files(bucket, "step-0000000001-aa", saved.path, saved.manifest.files, Removing(None))
    assert sum(one.size_bytes for one in bucket.list("step-0000000001-aa").values()) == saved.manifest.size_bytes


def test_large_files_go_in_pieces_that_can_be_gone_on_with(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from windlass.job.checkpoint.stores.throttle import Throttle
    from windlass.job.checkpoint.stores.uploading import send_files

    monkeypatch.setattr(naming, "PIECE_BYTES", 1000)
    save(order(tmp_path / "folder", 1))
    (saved,) = list_saved(tmp_path / "folder")
    name = "step-0000000001-aa"
    size = saved.manifest.size_bytes
    assert send_files(bucket, name, saved.path, saved.manifest.files, Throttle(None)) == size
    assert len(bucket.list(name)) == 19
    bucket.delete([f"{name}/__0_1.distcp.00003"])
    assert send_files(bucket, name, saved.path, saved.manifest.files, Throttle(None)) == 1000
    one = Stored(name=name, manifest=saved.manifest)
    # Half of it came before its process died.
    (tmp_path / "other" / f".fetch-{name}").mkdir(parents=True)
    (tmp_path / "other" / f".fetch-{name}" / "__0_0.distcp.partial").write_bytes(
        (saved.path / "__0_0.distcp").read_bytes()[:2500]
    )
    came = fetch_files(bucket, one, saved.manifest.files, tmp_path / "other", Disk())
    assert came == size - 2000
    show(one, tmp_path / "other", Disk())
    check_hashes(list_saved(tmp_path / "other")[0])


def test_two_uploaders_of_one_folder_take_turns(bucket: Bucket, tmp_path: Path) -> None:
    """That of a rank that died goes on for a while beside that of the next."""
    folder = tmp_path / "folder"
    save(order(folder, 1))
    first = start(settings(folder, bucket.address))
    assert first.stdout is not None
    assert '"there"' in first.stdout.readline()
    second = start(settings(folder, bucket.address))
    deadline = time.monotonic() + 60
    while not list_stored(bucket):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert second.poll() is None
    assert finish(first)[0] == 0
    code, said = finish(second)
    assert (code, [line["what"] for line in said]) == (0, ["there", "stored"])
