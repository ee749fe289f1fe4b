"""Nodes that share no folder: each sends its own files, and they become one checkpoint in the store."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("obstore")

from tests.unit.job.checkpoint.images import order, save
from tests.unit.job.checkpoint.stores.uploads import finish, settings, start
from windlass.blobs.bucket import Bucket, open_bucket
from windlass.blobs.stored import check_stored, list_stored
from windlass.core.integrity import Finding
from windlass.job.checkpoint.disk import Disk
from windlass.job.checkpoint.folder import check_hashes, collect_garbage, list_parts, list_saved
from windlass.job.checkpoint.stores.fetching import fetch_files, show
from windlass.job.checkpoint.stores.gathered import OtherNodeSender
from windlass.job.checkpoint.stores.throttle import Throttle


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return open_bucket(f"file://{tmp_path}/store", environ={})


def save_on(folder: Path, rank: int, step: int) -> None:
    answer = save(replace(order(folder, step, rank=rank, world_size=2), group=[rank]))
    assert answer is not None
    assert answer["error"] is None


def test_the_parts_of_all_nodes_make_one_checkpoint(bucket: Bucket, tmp_path: Path) -> None:
    folders = [tmp_path / "node0", tmp_path / "node1"]
    for node, folder in enumerate(folders):
        save_on(folder, node, 5)
        assert list_saved(folder) == []  # a part is no checkpoint
        assert len(list_parts(folder)) == 1
    processes = [start(settings(folder, bucket.address, node=node, nodes=2)) for node, folder in enumerate(folders)]
    ends = [finish(process) for process in reversed(processes)]
    assert [code for code, _ in ends] == [0, 0]
    (one,) = list_stored(bucket)
    assert check_stored(bucket, one.name, run_id="r1", step=5).finding is Finding.GOOD
    assert len(one.manifest.files) == 5
    # Node 1 needs only what node 0 wrote: the rest it has.
    came = fetch_files(bucket, one, one.manifest.files, folders[1], Disk(), near=[list_parts(folders[1])[0].path])
    assert came == sum(file.size_bytes for file in one.manifest.files if not file.name.startswith("__1"))
    show(one, folders[1], Disk())
    check_hashes(list_saved(folders[1])[0])


def test_a_node_sends_what_the_first_one_wants_and_says_what_it_does_not_have(bucket: Bucket, tmp_path: Path) -> None:
    sender = OtherNodeSender(settings(tmp_path, bucket.address, node=1, nodes=2), bucket, Throttle(None))
    assert not sender.look(closing=False)  # nobody wants anything
    bucket.put("wanted.json", json.dumps("step-0000000005-aaaa").encode())
    assert not sender.look(closing=False)  # it may still come
    save_on(tmp_path, 1, 5)
    assert sender.look(closing=False)
    assert not sender.look(closing=False)
    assert sorted(bucket.list("step-0000000005-aaaa")) == ["__1_0.distcp", "__1_1.distcp", "part-00001.json"]
    save_on(tmp_path, 1, 7)
    bucket.put("wanted.json", json.dumps("step-0000000006-aaaa").encode())
    assert sender.look(closing=False)
    assert bucket.get("step-0000000006-aaaa/part-00001.json") == b"null"
    assert sender.look(closing=True)  # the last one, without being asked
    assert "part-00001.json" in bucket.list("step-0000000007-aaaa")


def test_old_parts_go(tmp_path: Path) -> None:
    for step in range(1, 6):
        save_on(tmp_path, 1, step)
    assert [part.manifest.step for part in list_parts(tmp_path)] == [5, 4, 3]


def test_probes_of_the_dead_go(tmp_path: Path) -> None:
    (tmp_path / ".probe-abc-0").touch()
    collect_garbage(tmp_path, Disk())
    assert (tmp_path / ".probe-abc-0").exists()
    collect_garbage(tmp_path, Disk(), now=time.time() + 3600)
    assert not (tmp_path / ".probe-abc-0").exists()
