"""Checkpoints in a real S3 server: with trouble, with outages, and with several nodes that share no folder."""

from __future__ import annotations

import json
import shutil
import signal
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.integration.flaky import failing_proxy
from tests.unit.job.checkpoint.images import order, save
from tests.unit.job.checkpoint.programs import train
from tests.unit.job.checkpoint.stores.uploads import finish, settings, start, upload
from windlass.blobs.bucket import Bucket, open_bucket
from windlass.blobs.stored import Stored, check_stored, list_stored
from windlass.checkpoints.places import export_place
from windlass.cli.checkpoints import look_here
from windlass.core.integrity import Finding
from windlass.job.checkpoint.disk import Disk
from windlass.job.checkpoint.folder import check_hashes, list_saved
from windlass.job.checkpoint.stores.fetching import fetch_files, show
from windlass.testing.s3 import S3Server
from windlass.wire.checkpoints import CheckpointView, Verification
from windlass.wire.spec import parse_spec

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def environ(s3_server: S3Server) -> Mapping[str, str]:
    return s3_server.environ


@pytest.fixture
def bucket(s3_server: S3Server, environ: Mapping[str, str]) -> Bucket:
    address = f"{s3_server.section().url}/{uuid.uuid4().hex}"
    return open_bucket(address, endpoint=s3_server.endpoint, environ=environ)


def steps_in(bucket: Bucket) -> list[int]:
    """Of the store; each is whole."""
    found = list_stored(bucket)
    for one in found:
        seen = check_stored(bucket, one.name, run_id="r1", step=one.manifest.step)
        assert (seen.finding, seen.problems) == (Finding.GOOD, ())
    return [one.manifest.step for one in found]


def test_there_and_back(bucket: Bucket, s3_server: S3Server, environ: Mapping[str, str], tmp_path: Path) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    wanted = settings(folder, bucket.address, keep=1, endpoint=s3_server.endpoint)
    for step in (1, 2):
        save(order(folder, step))
        assert upload(wanted, environ)[0] == 0
    assert steps_in(bucket) == [2]
    (one,) = list_stored(bucket)
    assert [name for name in bucket.folders() if bucket.list(name)] == [one.name]  # of the first nothing is left
    fetch_files(bucket, one, one.manifest.files, other, Disk())
    show(one, other, Disk())
    (saved,) = list_saved(other)
    check_hashes(saved)


def test_the_command_looks_where_the_spec_says_the_store_is(
    bucket: Bucket, s3_server: S3Server, environ: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has no credentials for it; this machine has, and nothing here but the spec knows the address."""
    save(order(tmp_path, 1))
    assert upload(settings(tmp_path, bucket.address, endpoint=s3_server.endpoint), environ)[0] == 0
    (one,) = list_stored(bucket)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    looked = Verification(
        checkpoint=view_of(one, bucket.at(one.name)), finding="unseen", problems=["no credentials"], host="vm"
    )
    spec = parse_spec({"command": "x", "checkpoint": {"store": bucket.address, "store_endpoint": s3_server.endpoint}})
    assert look_here(spec, looked).finding == "good"


def view_of(one: Stored, location: str) -> CheckpointView:
    manifest = one.manifest
    return CheckpointView(
        **{name: getattr(manifest, name) for name in ("attempt", "step", "created_at", "world_size", "plan", "format")},
        id="c-1",
        run_id="r1",
        location=location,
        tier="store",
        size_bytes=manifest.size_bytes,
        file_count=len(manifest.files),
        reason=manifest.reason,
        metrics={},
        state="available",
    )


def test_a_store_that_fails_every_third_request(
    bucket: Bucket, s3_server: S3Server, environ: Mapping[str, str], tmp_path: Path
) -> None:
    """Without retries by the client, so that every failure reaches the uploader."""
    folder = tmp_path / "folder"
    with failing_proxy(s3_server.port, every=3) as proxy:
        wanted = settings(folder, bucket.address, keep=1, endpoint=proxy.address, retries=0)
        for step in (1, 2):
            save(order(folder, step))
            assert upload(wanted, environ)[0] == 0
        assert proxy.count > 5
        there = open_bucket(bucket.address, endpoint=proxy.address, environ=environ)  # which tries again by itself
        (one,) = list_stored(there)
        fetch_files(there, one, one.manifest.files, tmp_path / "other", Disk())
    assert steps_in(bucket) == [2]


def test_an_outage_delays_and_loses_nothing(
    bucket: Bucket, s3_server: S3Server, environ: Mapping[str, str], tmp_path: Path
) -> None:
    save(order(tmp_path, 1))
    with failing_proxy(s3_server.port, every=1) as proxy:
        process = start(settings(tmp_path, bucket.address, endpoint=proxy.address, retries=0), environ)
        assert process.stdout is not None
        assert '"trouble"' in process.stdout.readline()
        proxy.every = None
        code, said = finish(process)
    assert code == 0
    assert [line["what"] for line in said if line["what"] != "trouble"] == ["there", "stored"]
    assert steps_in(bucket) == [1]


@pytest.mark.slow
def test_killed_at_requests(bucket: Bucket, s3_server: S3Server, environ: Mapping[str, str], tmp_path: Path) -> None:
    for number in range(1, 100, 3):  # all of them are swept with a folder as the store
        folder = tmp_path / str(number)
        place = open_bucket(f"{bucket.address}/{number}", endpoint=s3_server.endpoint, environ=environ)
        wanted = settings(folder, place.address, keep=1, endpoint=s3_server.endpoint)
        save(order(folder, 1))
        assert upload(wanted, environ)[0] == 0
        save(order(folder, 2, save_id="bbbb"))
        code, _ = upload(wanted, {**environ, "WINDLASS_FAULT_STORE": f"{number}:after"})
        assert steps_in(place)[0] in (1, 2)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        assert upload(wanted, environ)[0] == 0
        assert steps_in(place) == [2]
    else:
        pytest.fail("the upload never came to its end")
    assert number > 12


def test_no_faster_than_it_may(bucket: Bucket, s3_server: S3Server, environ: Mapping[str, str], tmp_path: Path) -> None:
    """Until training is over: then it hurries."""
    save(order(tmp_path, 1))
    wanted = settings(tmp_path, bucket.address, endpoint=s3_server.endpoint, bytes_per_s=1024.0)
    process = start(wanted, environ)  # 16 s at this pace
    assert process.stdout is not None
    assert '"there"' in process.stdout.readline()
    began = time.monotonic()
    while not bucket.folders():
        assert time.monotonic() - began < 60
    assert steps_in(bucket) == []
    assert finish(process)[0] == 0
    assert steps_in(bucket) == [1]


@pytest.mark.slow
@pytest.mark.torch
def test_ranks_that_share_no_folder_go_on_from_the_store(
    bucket: Bucket, s3_server: S3Server, environ: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes with a disk of their own; one is replaced by an empty one."""
    pytest.importorskip("torch")
    for name, value in {**environ, "AWS_ENDPOINT_URL": s3_server.endpoint}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WINDLASS_CHECKPOINT", json.dumps({"store": bucket.address}))
    before = train(tmp_path / "node-{rank}", "shard=2", 3, count=2)
    assert list_saved(tmp_path / "node-0") == []
    assert list_stored(bucket)[0].manifest.step == 3
    shutil.rmtree(tmp_path / "node-1")
    after = [line for line in train(tmp_path / "node-{rank}", "shard=2", 4, count=2) if "text" not in line]
    assert (after[0]["first"], after[0]["state"]) == (3, before[-1]["state"])
    newest = list_stored(bucket)[0]
    assert newest.manifest.step == 4
    check_export(bucket, newest, tmp_path)


def check_export(bucket: Bucket, one: Stored, folder: Path) -> None:
    """What two ranks had in halves is whole, as torch reads it."""
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file

    from tests.unit.job.parallel.models import small_gpt

    done = export_place(bucket.at(one.name), folder / "out.safetensors", run_id=None, step=one.manifest.step)
    assert done is not None
    fetch_files(bucket, one, one.manifest.files, folder / "all", Disk())
    state = {"model": small_gpt(seed=99).state_dict()}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(state, checkpoint_id=show(one, folder / "all", Disk()))
    found = load_file(folder / "out.safetensors")
    assert found.keys() == state["model"].keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in state["model"].items())
