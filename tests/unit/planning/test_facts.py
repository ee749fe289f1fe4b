"""What the planner is told and what it fills in: GPUs by their many names, shapes by their size, counts as written."""

from __future__ import annotations

import subprocess
import sys

import pytest

from windlass.core.errors import InvalidInput
from windlass.core.plan import Precision
from windlass.planning.counts import format_count, parse_count
from windlass.planning.facts import ClusterFacts, ModelFacts
from windlass.planning.gpus import GPUS, find_gpu
from windlass.planning.shapes import infer_model, usual_batch


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a100-80g", "a100-80g"),
        ("A100", "a100-80g"),
        ("NVIDIA A100-SXM4-40GB", "a100-40g"),
        ("NVIDIA A100 80GB PCIe", "a100-80g"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("Tesla V100-SXM2-16GB", "v100-16g"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("Tesla T4", "t4"),
        ("AMD Instinct MI300X", "mi300x"),
        ("CPU", "cpu"),
    ],
)
def test_gpus_are_found_by_our_names_and_by_torchs(text: str, name: str) -> None:
    assert find_gpu(text).name == name


def test_a_size_is_told_by_the_memory() -> None:
    small = find_gpu("a100", memory_bytes=42_000_000_000)
    assert (small.name, small.memory_bytes) == ("a100-40g", 42_000_000_000)
    assert find_gpu("NVIDIA A100-SXM4-80GB", memory_bytes=84_000_000_000).name == "a100-80g"


def test_unknown_gpus_are_refused_unless_their_memory_is_known() -> None:
    with pytest.raises(InvalidInput, match="unknown GPU type 'h2000'; did you mean 'h200'"):
        find_gpu("h2000")
    assert find_gpu("Some Accelerator", memory_bytes=10**10).memory_bytes == 10**10


def test_the_table_is_plausible() -> None:
    for gpu in GPUS.values():
        assert 10e9 < gpu.memory_bytes < 300e9
        assert 0.2e12 < gpu.memory_bandwidth < 10e12
        assert gpu.fp32 < gpu.fp16 <= (gpu.bf16 or gpu.fp16) <= (gpu.fp8 or gpu.fp16)
        assert gpu.between_nodes < gpu.within_node
        assert 0.3 < gpu.sustained < 0.9


@pytest.mark.parametrize(
    ("gpu", "precision"), [("h100", Precision.BF16), ("t4", Precision.FP16), ("cpu", Precision.FP32)]
)
def test_default_precisions(gpu: str, precision: Precision) -> None:
    assert ClusterFacts(world_size=1, gpu_type=gpu).default_precision() is precision


def test_the_network_of_a_node_is_shared_by_its_gpus() -> None:
    assert ClusterFacts(world_size=16, gpu_type="h100").between_nodes == 50e9
    assert ClusterFacts(world_size=16, gpu_type="h100", node_gbps=800).between_nodes == 12.5e9
    assert ClusterFacts(world_size=16, gpu_type="h100", node_gbps=800, gpus_per_node=4).between_nodes == 25e9


@pytest.mark.parametrize(
    ("text", "count"),
    [("7B", 7 * 10**9), ("350m", 350 * 10**6), ("1.5T", 15 * 10**11), ("1,024", 1024), ("3e9", 3 * 10**9)],
)
def test_counts(text: str, count: int) -> None:
    assert parse_count(text, what="--params") == count
    assert parse_count(format_count(count), what="--params") == pytest.approx(count, rel=0.01)


@pytest.mark.parametrize("text", ["", "7x", "B", "-3", "0", "nan", "1e"])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"--params .* write for example 350M, 7B or 1\.5T"):
        parse_count(text, what="--params")


def test_known_shapes_are_used_and_said() -> None:
    found = infer_model(7_000_000_000)
    assert (found.model.layers, found.model.width, found.model.heads) == (32, 4096, 32)
    assert found.assumed == ("32 layers, width 4,096, 32 heads, vocabulary 32,000, sequence 4,096 (as in Llama 2 7B)",)


def test_what_is_given_is_kept() -> None:
    found = infer_model(7_000_000_000, layers=40, width=3840, heads=30, kv_heads=10, vocabulary=64_000, sequence=1024)
    assert found.assumed == ()
    assert found.model == ModelFacts(
        parameters=7_000_000_000, layers=40, width=3840, heads=30, kv_heads=10, vocabulary=64_000, sequence=1024
    )


def test_a_known_models_head_is_tied_as_it_was_unless_it_is_said() -> None:
    found = infer_model(124_000_000)
    assert found.model.tied
    assert "the head tied to the embedding (as in GPT-2 124M)" in found.assumed[0]
    assert found.model.transformer() == infer_model(124_000_000, tied=True).model.transformer()
    untied = infer_model(124_000_000, tied=False)
    assert not untied.model.tied
    assert "tied" not in untied.assumed[0]
    assert not infer_model(7_000_000_000).model.tied


@pytest.mark.parametrize(
    ("parameters", "given", "says"),
    [
        (1, {}, "a model of 1 parameters is too small to plan for; from 1M on"),
        (7_000_000_000, {"heads": 7, "width": 1024}, "heads 7 do not divide the width of 1,024; options: 1, 2, 4, 8"),
        (8_000_000_000, {"kv_heads": 7}, "kv-heads 7 do not divide the 32 heads; options: 1, 2, 4, 8, 16, 32"),
    ],
)
def test_what_is_no_shape_is_refused(parameters: int, given: dict[str, int], says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        infer_model(parameters, **given)  # type: ignore[arg-type]
    assert says in refused.value.message


def test_heads_that_nobody_gave_divide_the_width() -> None:
    model = infer_model(500_000_000, width=1000).model
    assert model.heads
    assert 1000 % model.heads == 0


@pytest.mark.parametrize("parameters", [60e6, 200e6, 500e6, 3e9, 4.5e9, 20e9, 50e9, 110e9, 250e9, 700e9, 2e12])
def test_other_sizes_get_usual_proportions(parameters: float) -> None:
    model = infer_model(int(parameters)).model
    shaped = model.transformer()
    assert shaped is not None
    matrices = 12 * shaped.layers * shaped.width**2 + 2 * shaped.table_parameters
    assert matrices == pytest.approx(parameters, rel=0.15)
    assert 25 < shaped.width / shaped.layers < 300
    assert shaped.width % shaped.heads == 0


@pytest.mark.parametrize(("given", "expected"), [({"layers": 24}, "width"), ({"width": 4096}, "layers")])
def test_one_side_of_a_shape_follows_from_the_other(given: dict[str, int], expected: str) -> None:
    shaped = infer_model(5_000_000_000, **given).model.transformer()
    assert shaped is not None
    assert 12 * shaped.layers * shaped.width**2 + 2 * shaped.table_parameters == pytest.approx(5e9, rel=0.1)
    assert getattr(shaped, expected) > 1


@pytest.mark.parametrize("gpus", [1, 7, 8, 64, 100, 4096])
def test_usual_batches_can_be_divided(gpus: int) -> None:
    model = infer_model(7_000_000_000).model
    batch = usual_batch(model, gpus)
    assert 1e6 < batch * 4096 < 40e6
    assert batch % gpus == 0 or gpus % batch == 0 or any(batch % part == 0 == gpus % part for part in range(2, gpus))


def test_a_model_without_a_shape_is_no_transformer() -> None:
    assert ModelFacts(parameters=10).transformer() is None


def test_flops_are_those_of_mfu() -> None:
    model = ModelFacts(
        parameters=124_000_000, layers=12, width=768, heads=12, vocabulary=50_304, sequence=1024, tied=True
    ).transformer()
    assert model is not None
    assert model.flops_per_token == pytest.approx(6 * 124e6 + 12 * 12 * 768 * 1024)


def test_the_planner_needs_the_standard_library_alone() -> None:
    script = (
        "import sys, windlass.planning, windlass.planning.validate;"
        "print([name for name in ('pydantic', 'torch', 'numpy', 'typer', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
