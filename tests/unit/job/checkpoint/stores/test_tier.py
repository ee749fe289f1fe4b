"""Checkpoints with a store behind the folder, in one process: what goes there, and what comes back from it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("obstore")

from torch import nn  # noqa: E402

from tests.unit.job.checkpoint.stores.uploads import settings  # noqa: E402
from windlass.blobs.bucket import Bucket, open_bucket  # noqa: E402
from windlass.blobs.stored import Stored, list_stored  # noqa: E402
from windlass.checkpoints.export import export_weights  # noqa: E402
from windlass.core.errors import InvalidInput, StoreRefused, Unavailable  # noqa: E402
from windlass.core.manifest import NewerManifest, SaveReason  # noqa: E402
from windlass.job.checkpoint.checkpoints import checkpoints  # noqa: E402
from windlass.job.checkpoint.folder import check_hashes, list_saved  # noqa: E402
from windlass.job.checkpoint.peers import Peers  # noqa: E402
from windlass.job.checkpoint.retention import Keep  # noqa: E402
from windlass.job.checkpoint.stores import tier, whole  # noqa: E402
from windlass.job.checkpoint.stores.neighbours import Neighbours  # noqa: E402
from windlass.job.checkpoint.stores.throttle import Throttle  # noqa: E402
from windlass.job.session import session  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return open_bucket(f"file://{tmp_path}/store", environ={})


def train(folder: Path, store: str | None, total: int, *, every: int = 2) -> tuple[int, nn.Module]:
    """Where it began, and what came of it. Every step changes the weights in its own way."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    with checkpoints(model=model, every=every, folder=folder, store=store) as ckpt:
        for step in ckpt.steps(total):
            with torch.no_grad():
                model.weight.mul_(0.9).add_(step)
            ckpt.wait()
    return ckpt.first_step, model


def weights(model: nn.Module) -> list[list[float]]:
    return model.state_dict()["weight"].tolist()  # type: ignore[no-any-return]


def test_a_run_whose_folder_is_gone_goes_on_from_the_store(bucket: Bucket, tmp_path: Path) -> None:
    first, _ = train(tmp_path / "one", bucket.address, 5)
    assert first == 0
    newest = list_stored(bucket)[0]
    assert (newest.manifest.step, newest.manifest.reason) == (5, SaveReason.FINAL)
    shutil.rmtree(tmp_path / "one")
    first, model = train(tmp_path / "one", bucket.address, 8)
    assert first == 5
    _, undisturbed = train(tmp_path / "two", f"{bucket.address}2", 8)
    assert weights(model) == weights(undisturbed)
    assert list_stored(bucket)[0].manifest.step == 8


def test_what_is_damaged_in_the_folder_comes_from_the_store(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "one", bucket.address, 4)
    newest = list_saved(tmp_path / "one")[0]
    path = newest.path / newest.manifest.files[0].name
    path.write_bytes(b"\x00" + path.read_bytes()[1:])
    first, _ = train(tmp_path / "one", bucket.address, 4)
    assert first == 4
    assert "are not those that were saved" in capsys.readouterr().err


def test_a_bit_flipped_in_any_object_falls_back_to_the_one_before(
    bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "one", bucket.address, 2)
    train(tmp_path / "one", bucket.address, 4)
    newest, before = list_stored(bucket)[:2]
    assert (newest.manifest.step, before.manifest.step) == (4, 2)
    for number, file in enumerate(newest.manifest.files):
        store = tmp_path / f"store{number}"
        shutil.copytree(tmp_path / "store", store)
        path = store / newest.name / file.name
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        first, _ = train(tmp_path / f"f{number}", f"file://{store}", 2)
        assert first == 2, file.name
        assert "going on from another" in capsys.readouterr().err
        assert (store / newest.name / "damaged.json").exists()
        assert [one.manifest.step for one in list_stored(open_bucket(f"file://{store}", environ={}))] == [2]


def make_newer(bucket: Bucket, name: str) -> None:
    """As a later version might write it."""
    manifest = json.loads(bucket.get(f"{name}/manifest.json"))
    del manifest["sha256"]
    bucket.put(f"{name}/manifest.json", json.dumps({**manifest, "version": 99}).encode())


def test_what_a_newer_version_has_stored_is_neither_passed_over_nor_removed(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path / "one", bucket.address, 2)
    train(tmp_path / "one", bucket.address, 4)
    newest, before = list_stored(bucket)[:2]
    make_newer(bucket, newest.name)
    shutil.rmtree(tmp_path / "one")
    with pytest.raises(NewerManifest, match=f"{newest.name} was saved by a newer version of Windlass"):
        train(tmp_path / "one", bucket.address, 8)
    bucket.delete([f"{newest.name}/manifest.json"])
    make_newer(bucket, before.name)
    train(tmp_path / "two", None, 6)  # a folder that is ahead of it
    monkeypatch.setattr(whole, "_DEAD_AFTER_S", -1.0)
    sender = whole.WholeSender(settings(tmp_path / "two", bucket.address), bucket, Throttle(None))
    assert sender.look(closing=True)
    sender.tidy()
    assert bucket.get(f"{before.name}/manifest.json")
    assert bucket.list(newest.name) == {}  # without a manifest it is nobody's


def test_a_store_that_is_away_never_means_that_there_is_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tier, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(tier, "list_stored", lambda _: (_ for _ in ()).throw(Unavailable("away")))
    with pytest.raises(Unavailable, match="away"):
        train(tmp_path / "one", f"file://{tmp_path}/store", 2)
    assert "checkpoint-store" in capsys.readouterr().err
    monkeypatch.undo()
    train(tmp_path / "one", f"file://{tmp_path}/store", 2)
    monkeypatch.setattr(tier, "list_stored", lambda _: (_ for _ in ()).throw(Unavailable("away")))
    assert train(tmp_path / "one", f"file://{tmp_path}/store", 2)[0] == 2  # the folder has it


def test_a_store_that_is_away_ends_no_run_whose_nodes_have_all_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tier, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(tier, "list_stored", lambda _: (_ for _ in ()).throw(Unavailable("away")))
    opened = tier.open_tier({"store": f"file://{tmp_path}/store"}, tmp_path / "one", Keep(), Peers())
    assert opened is not None
    opened.neighbours = Neighbours(folder=tmp_path / "one", rank=0, ranks=(0,), number=0, count=2)
    opened.bring_newer(than=99)
    assert "checkpoint-store" in capsys.readouterr().err
    with pytest.raises(Unavailable, match="away"):
        opened.bring_newer()


def test_a_store_that_refuses_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the patience that it has for one that is away this would take minutes."""
    refused = StoreRefused("s3://b refuses access", hint="check the credentials")
    monkeypatch.setattr(tier, "list_stored", lambda _: (_ for _ in ()).throw(refused))
    monkeypatch.setattr(tier.time, "sleep", lambda _: pytest.fail("it waits"))
    with pytest.raises(Unavailable, match="refuses access; check the credentials"):
        train(tmp_path / "one", f"file://{tmp_path}/store", 2)
    assert capsys.readouterr().err.count("checkpoint-store") == 1


@pytest.fixture
def two_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Bucket]]:
    """As a spec says it; the second gets and keeps less."""
    addresses = [f"file://{tmp_path}/near", f"file://{tmp_path}/far"]
    stores = [{"at": addresses[0], "keep": 2}, {"at": addresses[1], "every": 1000, "keep": 1}]
    session.cache_clear()
    monkeypatch.setenv("WINDLASS_CHECKPOINT", json.dumps({"keep": 1, "stores": stores}))
    yield [open_bucket(address, environ={}) for address in addresses]
    session.cache_clear()


def steps_in(bucket: Bucket) -> list[int]:
    return [one.manifest.step for one in list_stored(bucket)]


def test_several_stores_have_each_an_interval_and_a_retention(two_stores: list[Bucket], tmp_path: Path) -> None:
    near, far = two_stores
    for total in (2, 3, 5):
        train(tmp_path / "one", None, total)
    assert [saved.manifest.step for saved in list_saved(tmp_path / "one")] == [5]
    assert steps_in(near)[0] == 5
    assert len(steps_in(near)) == 2
    assert steps_in(far) == [5]
    shutil.rmtree(tmp_path / "one")
    shutil.rmtree(tmp_path / "near")
    first, _ = train(tmp_path / "one", None, 6)
    assert first == 5  # from the one that has it
    assert [steps_in(bucket)[0] for bucket in two_stores] == [6, 6]


def test_one_of_several_stores_may_be_away(
    two_stores: list[Bucket], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    near, far = two_stores
    train(tmp_path / "one", None, 3)
    shutil.rmtree(tmp_path / "one")

    def list_some(bucket: Bucket) -> list[Stored]:
        if bucket.address == near.address:
            raise Unavailable("the near one is away")
        return list_stored(bucket)

    monkeypatch.setattr(tier, "list_stored", list_some)
    assert train(tmp_path / "one", None, 3)[0] == 3
    assert "the near one is away" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "one")
    shutil.rmtree(tmp_path / "far")
    far.put("nothing", b"")
    monkeypatch.setattr(tier, "_PATIENCE_S", 0.0)
    with pytest.raises(Unavailable, match="the near one is away"):  # it may have one, and no other has
        train(tmp_path / "one", None, 3)


@pytest.mark.parametrize("wanted", [{"compress": "zlib"}, {"compress": "zstd", "encrypt": True}])
def test_encoded_checkpoints_come_back_bit_for_bit(
    wanted: dict[str, object], bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography")
    pytest.importorskip("zstandard")
    session.cache_clear()
    monkeypatch.setenv("WINDLASS_CHECKPOINT", json.dumps(wanted))
    monkeypatch.setenv("WINDLASS_CHECKPOINT_KEY", "ab" * 32)
    try:
        _, model = train(tmp_path / "one", bucket.address, 3)
        newest = list_saved(tmp_path / "one")[0]
        assert all(file.name.endswith(".enc") for file in newest.manifest.files)
        check_hashes(newest)  # which needs no key
        done = export_weights(newest.path, newest.manifest, tmp_path / "out.safetensors")
        assert done.tensors == 2
        shutil.rmtree(tmp_path / "one")
        first, again = train(tmp_path / "one", bucket.address, 3)
        assert (first, weights(again)) == (3, weights(model))
        if "encrypt" in wanted:
            assert newest.manifest.format == "dcp+zstd+aes"
            monkeypatch.setenv("WINDLASS_CHECKPOINT_KEY", "cd" * 32)
            with pytest.raises(InvalidInput, match="another key"):
                train(tmp_path / "one", bucket.address, 3)
            assert list_saved(tmp_path / "one")[0].manifest.step == 3  # no reason to set it aside
    finally:
        session.cache_clear()
