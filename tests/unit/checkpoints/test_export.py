"""Weights as one safetensors file: from a folder and a store, whole and from pieces of other ranks, without torch."""

from __future__ import annotations

import io
import itertools
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass.checkpoints.export import export_weights, runs_of
from windlass.checkpoints.places import export_place
from windlass.core.dcp import InvalidIndex, read_index
from windlass.core.errors import Conflict, InvalidInput, NotFound
from windlass.core.safetensors import render_header


@pytest.mark.parametrize("shape", [(), (5,), (4, 3), (3, 4, 2), (2, 3, 2, 2)])
def test_the_rows_of_a_box_are_where_they_belong(shape: tuple[int, ...]) -> None:
    """Compared with going through all items, for every box of the tensor."""
    every = list(itertools.product(*(range(length) for length in shape)))
    number = {place: at for at, place in enumerate(every)}
    choices = [[(a, b) for a in range(length) for b in range(a + 1, length + 1)] for length in shape]
    for box in itertools.product(*choices):
        offsets, sizes = tuple(a for a, _ in box), tuple(b - a for a, b in box)
        inside = [number[place] for place in every if all(a <= at < b for at, (a, b) in zip(place, box, strict=True))]
        runs = list(runs_of(shape, offsets, sizes))
        assert [at + step for at, length in runs for step in range(length)] == inside
    assert list(runs_of((4, 0), (0, 0), (4, 0))) == []


def test_nothing_but_torch_s_own_classes_is_let_in() -> None:
    class Bad:
        def __reduce__(self) -> Any:
            return print, ("run",)

    with pytest.raises(InvalidIndex, match=r"builtins\.print"):
        read_index(pickle.dumps(Bad()))
    with pytest.raises(InvalidIndex, match="cannot be read"):
        read_index(b"no pickle")


def test_what_the_format_lacks_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no type for a, which is complex64"):
        render_header({"a": ("complex64", (1,))}, {})
    plan = render_header({"a": ("bool", (3,)), "b": ("float32", ())}, {})
    assert (plan.starts["b"] % 64, plan.starts["a"] - plan.starts["b"], plan.size_bytes) == (0, 4, plan.starts["a"] + 3)


@pytest.mark.torch
class TestWithTorch:
    @pytest.fixture
    def saved(self, tmp_path: Path) -> tuple[Any, Any]:
        """A model, and a checkpoint of it that DCP saved, as we do."""
        torch = pytest.importorskip("torch")
        from windlass.job.checkpoint.checkpoints import checkpoints
        from windlass.job.checkpoint.folder import list_saved

        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(torch.randn(7, 3).t())
        model.narrow = torch.nn.Parameter(torch.randn(5).bfloat16())
        model.register_buffer("count", torch.tensor(3))
        model.register_buffer("nothing", torch.empty(0, 4))
        store = f"file://{tmp_path}/store"
        with checkpoints(model=model, every=100, folder=tmp_path / "folder", store=store) as ckpt:
            ckpt.step(1)
        return model, list_saved(tmp_path / "folder")[0]

    def check(self, model: Any, path: Path) -> None:
        import torch

        load_file = pytest.importorskip("safetensors.torch").load_file
        found, wanted = load_file(path), model.state_dict()
        assert found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            assert found[name].dtype == tensor.dtype
            assert torch.equal(found[name], tensor), name

    def test_from_the_folder_without_torch(self, saved: tuple[Any, Any], tmp_path: Path) -> None:
        model, one = saved
        code = (
            "import sys; from pathlib import Path; from windlass.checkpoints.export import export_weights\n"
            "from windlass.core.manifest import parse_manifest\n"
            "folder = Path(sys.argv[1]); manifest = parse_manifest((folder / 'manifest.json').read_bytes())\n"
            "export_weights(folder, manifest, Path(sys.argv[2])); assert 'torch' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", code, str(one.path), str(tmp_path / "out.safetensors")], check=True)
        self.check(model, tmp_path / "out.safetensors")

    def test_from_the_store(self, saved: tuple[Any, Any], tmp_path: Path) -> None:
        model, _ = saved
        (place,) = (tmp_path / "store").iterdir()
        done = export_place(f"file://{place}", tmp_path / "out.safetensors", run_id=None, step=1)
        assert done is not None
        self.check(model, tmp_path / "out.safetensors")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "out.safetensors", "store"]

    def test_a_damaged_one_is_not_exported(self, saved: tuple[Any, Any], tmp_path: Path) -> None:
        _, one = saved
        path = one.path / "__0_0.distcp"
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        with pytest.raises(Conflict, match=r"__0_0\.distcp has changed"):
            export_weights(one.path, one.manifest, tmp_path / "out.safetensors")
        assert not (tmp_path / "out.safetensors").exists()

    def test_what_others_saved_with_dcp_can_be_read_too(self, tmp_path: Path) -> None:
        """Without our note of where the bytes begin."""
        torch = pytest.importorskip("torch")
        import torch.distributed.checkpoint as dcp

        from windlass.core.integrity import problem_of
        from windlass.core.manifest import Manifest, PartFile, SaveReason
        from windlass.job.checkpoint.folder import hash_file

        model = torch.nn.Linear(3, 2)
        with pytest.warns(UserWarning, match="single process"):
            dcp.save({"model": model.state_dict()}, checkpoint_id=tmp_path / "dcp")
        files = tuple(
            PartFile(name=path.name, size_bytes=path.stat().st_size, sha256=hash_file(path))
            for path in (tmp_path / "dcp").iterdir()
        )
        assert all(problem_of(tmp_path / "dcp", file) is None for file in files)
        manifest = Manifest(
            run_id=None, attempt=1, step=1, created_at=0.0, reason=SaveReason.ASKED, world_size=1, plan="", files=files
        )
        export_weights(tmp_path / "dcp", manifest, tmp_path / "out.safetensors")
        self.check(model, tmp_path / "out.safetensors")

    def test_without_weights_there_is_nothing_to_export(self, tmp_path: Path) -> None:
        torch = pytest.importorskip("torch")
        from torch.distributed.checkpoint.metadata import Metadata

        del torch
        from windlass.core.manifest import Manifest, PartFile, SaveReason
        from windlass.job.checkpoint.folder import hash_file

        buffer = io.BytesIO()
        pickle.dump(Metadata(state_dict_metadata={}, planner_data={}, storage_data={}), buffer)
        path = tmp_path / ".metadata"
        path.write_bytes(buffer.getvalue())
        files = (PartFile(name=".metadata", size_bytes=path.stat().st_size, sha256=hash_file(path)),)
        manifest = Manifest(
            run_id=None, attempt=1, step=1, created_at=0.0, reason=SaveReason.ASKED, world_size=1, plan="", files=files
        )
        with pytest.raises(NotFound, match="no tensors that are a model's"):
            export_weights(tmp_path, manifest, tmp_path / "out.safetensors")
