"""Runs whose speed was published, to hold the planner's predictions against. docs/planning.md says what is certain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from windlass.core.plan import Plan, Precision, Recompute, Schedule
from windlass.planning.facts import ClusterFacts, Transformer
from windlass.planning.gpus import GIB, GPUS
from windlass.planning.software import Software


class Basis(StrEnum):
    """What a row can prove."""

    FITTED = "fitted"  # a constant was chosen so that this row comes right: nothing
    ADJUSTED = "adjusted"  # what its source leaves open was settled after a first comparison: a little
    UNTOUCHED = ""  # described and predicted; nothing was changed for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    name: str
    source: str
    model: Transformer
    cluster: ClusterFacts
    plan: Plan
    microbatch: int
    software: Software
    tokens_per_s: float  # and GPU
    memory_gib: float | None = None
    basis: Basis = Basis.UNTOUCHED

    @property
    def batch(self) -> int:
        return self.microbatch * self.plan.accumulate * self.plan.copies


def published_runs() -> tuple[Published, ...]:
    return (*_megatron(), *_torchtitan(), *_llama(), *_llm_foundry(), *_plain_loops())


# --- Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", table 1
_MEGATRON = Software(
    fused_attention=False, fused_elementwise=True, low_precision_gradients=True, scattered_messages=True
)
_MEGATRON_VOCABULARY, _MEGATRON_SEQUENCE = 51_200, 2_048
#  billions, heads, width, layers, tensor, pipeline, GPUs, batch, TFLOP/s per GPU (with what is computed twice);
#  the microbatch and the stages per process are not in the table: ours
_MEGATRON_ROWS = (
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 137, 4, 1),
    (3.6, 32, 3072, 30, 2, 1, 64, 512, 138, 4, 1),
    (7.5, 32, 4096, 36, 4, 1, 128, 512, 142, 4, 1),
    (18.4, 48, 6144, 40, 8, 1, 256, 1024, 135, 4, 1),
    (39.1, 64, 8192, 48, 8, 2, 512, 1536, 138, 2, 2),
    (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 140, 2, 3),
    (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 148, 1, 2),
    (175.0, 96, 12288, 96, 8, 8, 1024, 1536, 140, 1, 2),
    (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 155, 1, 2),
    (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 163, 1, 3),
    (1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 163, 1, 2),
)


def _megatron() -> Iterator[Published]:
    for billions, heads, width, layers, tensor, pipeline, gpus, batch, teraflops, microbatch, stages in _MEGATRON_ROWS:
        sequence, vocabulary = _MEGATRON_SEQUENCE, _MEGATRON_VOCABULARY
        copies = gpus // tensor // pipeline
        # The paper's own count of a step's FLOPs, which has the forward pass twice.
        flops = 96 * layers * width**2 * (1 + sequence / (6 * width) + vocabulary / (16 * layers * width))
        yield Published(
            name=f"Megatron-LM {billions:g}B",
            source="Narayanan et al. 2021",
            model=Transformer(
                parameters=int(billions * 1e9),
                layers=layers,
                width=width,
                heads=heads,
                kv_heads=heads,
                inner=4 * width,
                gated=False,
                vocabulary=vocabulary,
                sequence=sequence,
                tied=True,
            ),
            cluster=ClusterFacts(world_size=gpus, gpu_type="a100-80g"),
            plan=Plan(
                data=copies,
                tensor=tensor,
                pipeline=pipeline,
                schedule=Schedule.INTERLEAVED if stages > 1 else Schedule.ONE_F_ONE_B,
                stages=stages if stages > 1 else None,
                accumulate=batch // copies // microbatch,
                precision=Precision.FP16,
                activation_checkpoint=Recompute.FULL,
            ),
            microbatch=microbatch,
            software=_MEGATRON,
            tokens_per_s=teraflops * 1e12 / flops,
            basis=Basis.FITTED,
        )


# --- torchtitan, benchmarks/llama3_h100_202412_torchtitan.md; sequence 8,192
# Its H100 have 96 GB of slower memory and a limit of 500 W instead of 700 W, for which 0.73 was fitted.
_H100_500W = replace(GPUS["h100"], name="h100-500w", memory_bytes=95 * GIB, memory_bandwidth=2.4e12)
_TORCHTITAN = Software(selective_products=0.5, flops=0.73)
_LLAMA3_8B = Transformer(
    parameters=8_030_000_000, layers=32, width=4096, heads=32, kv_heads=8, inner=14336, gated=True,
    vocabulary=128_256, sequence=8192,
)  # fmt: skip
_LLAMA3_70B = replace(_LLAMA3_8B, parameters=70_550_000_000, layers=80, width=8192, heads=64, inner=28672)
_LLAMA3_405B = replace(_LLAMA3_8B, parameters=405_850_000_000, layers=126, width=16384, heads=128, inner=53248)


def _torchtitan() -> Iterator[Published]:
    selective = Plan(precision=Precision.BF16, activation_checkpoint=Recompute.SELECTIVE, data=1, shard=8)
    compiled = replace(selective, compile=True)
    low = replace(compiled, precision=Precision.FP8)
    for plan, gpus, speed, memory in (
        (selective, 8, 5762, 82.4),
        (compiled, 8, 6667, 77.0),
        (low, 8, 8532, 76.8),
        (selective, 128, 5605, 67.0),
        (compiled, 128, 6514, 62.0),
        (low, 128, 8380, 61.8),
    ):
        yield _titan(
            "8B",
            _LLAMA3_8B,
            replace(plan, shard=gpus),
            2,
            speed,
            memory,
            basis=Basis.FITTED if gpus == 8 else Basis.UNTOUCHED,
        )
    full = replace(low, activation_checkpoint=Recompute.FULL, tensor=8, sequence=True)
    yield _titan("70B", _LLAMA3_70B, replace(full, shard=32), 16, 829, 71.9)
    # With a pipeline it keeps parameters whole and reduces gradients once a step. As many microbatches as processes is
    # its default; the files do not say another number.
    deep = replace(full, shard=8, zero=1, pipeline=8, accumulate=8)
    for plan, speed, memory in ((deep, 100, 82.5), (replace(deep, schedule=Schedule.INTERLEAVED), 128, 72.7)):
        run = _titan("405B", _LLAMA3_405B, plan, 4, speed, memory, basis=Basis.ADJUSTED)
        yield replace(run, software=replace(_TORCHTITAN, hidden_sums=0.5))  # with asynchronous tensor parallelism


def _titan(
    size: str,
    model: Transformer,
    plan: Plan,
    microbatch: int,
    speed: float,
    memory: float,
    *,
    basis: Basis = Basis.UNTOUCHED,
) -> Published:
    cluster = ClusterFacts(world_size=plan.world_size, gpu_type="h100", device=_H100_500W)
    return Published(
        name=f"torchtitan Llama 3 {size}",
        source="torchtitan, December 2024",
        model=model,
        cluster=cluster,
        plan=plan,
        microbatch=microbatch,
        software=_TORCHTITAN,
        tokens_per_s=speed,
        memory_gib=memory,
        basis=basis,
    )


# --- Llama 3 (Grattafiori et al. 2024, table 4: MFU of 405B) and LLaMA (Touvron et al. 2023: 65B at 380 tokens/s/GPU)
def _llama() -> Iterator[Published]:
    hopper = Plan(
        data=1, shard=64, zero=1, tensor=8, sequence=True, pipeline=16, schedule=Schedule.INTERLEAVED, stages=4,
        accumulate=32, precision=Precision.BF16, compile=True,
    )  # fmt: skip
    for gpus, shard, accumulate, mfu in ((8192, 64, 32, 0.43), (16384, 128, 16, 0.41)):
        yield Published(
            name="Llama 3 405B",
            source="Grattafiori et al. 2024",
            model=_LLAMA3_405B,
            cluster=ClusterFacts(world_size=gpus, gpu_type="h100"),
            plan=replace(hopper, shard=shard, accumulate=accumulate),
            microbatch=1,
            software=Software(),
            tokens_per_s=mfu * 989e12 / _LLAMA3_405B.flops_per_token,
            basis=Basis.ADJUSTED,
        )
    llama = Transformer(
        parameters=65_200_000_000, layers=80, width=8192, heads=64, kv_heads=64, inner=22016, gated=True,
        vocabulary=32_000, sequence=2048,
    )  # fmt: skip
    # 4 million tokens a step are one sequence for each of the 2,048 GPUs; how they were divided was not said.
    yield Published(
        name="LLaMA 65B",
        source="Touvron et al. 2023",
        model=llama,
        cluster=ClusterFacts(world_size=2048, gpu_type="a100-80g"),
        plan=Plan(
            data=1, shard=256, tensor=8, sequence=True, precision=Precision.BF16, compile=True,
            activation_checkpoint=Recompute.SELECTIVE,
        ),
        microbatch=8,
        software=Software(),
        tokens_per_s=380,
    )  # fmt: skip


# --- MosaicML's LLM Foundry, scripts/train/benchmarking/README.md; whole sharding, one kernel each for norm and GELU
_MPT = Software(fused_elementwise=True)
_MPT_SHAPES = {
    "1B": (1_315_950_592, 24, 2048, 16),
    "7B": (6_658_859_008, 32, 4096, 32),
    "13B": (12_853_954_560, 40, 5120, 40),
    "30B": (29_975_214_080, 48, 7168, 56),
    "70B": (64_862_437_376, 80, 8192, 64),
}
#  model, GPU, GPUs, sequence, microbatch, microbatches, recomputing, tokens/s per GPU
_MPT_ROWS = (
    ("1B", "a100-80g", 8, 2048, 14, 4, False, 20_513),
    ("7B", "a100-80g", 8, 2048, 6, 2, False, 4_641),
    ("7B", "a100-80g", 8, 4096, 16, 2, True, 3_684),
    ("7B", "a100-40g", 64, 2048, 18, 1, True, 3_665),
    ("13B", "a100-80g", 8, 2048, 2, 3, False, 2_262),
    ("30B", "a100-80g", 8, 2048, 3, 21, True, 916),
    ("70B", "a100-80g", 64, 2048, 8, 4, True, 410),
    ("1B", "h100", 8, 2048, 14, 1, False, 45_455),
    ("7B", "h100", 8, 2048, 6, 1, False, 10_643),
    ("7B", "h100", 8, 4096, 16, 2, True, 8_611),
    ("13B", "h100", 64, 2048, 2, 1, False, 4_800),
    ("30B", "h100", 32, 2048, 14, 3, True, 2_308),
    ("70B", "h100", 64, 2048, 8, 4, True, 1_039),
)


def _llm_foundry() -> Iterator[Published]:
    for size, gpu, gpus, sequence, microbatch, accumulate, recompute, speed in _MPT_ROWS:
        parameters, layers, width, heads = _MPT_SHAPES[size]
        yield Published(
            name=f"MPT {size}",
            source="LLM Foundry, 2023",
            model=Transformer(
                parameters=parameters,
                layers=layers,
                width=width,
                heads=heads,
                kv_heads=heads,
                inner=4 * width,
                gated=False,
                vocabulary=50_368,
                sequence=sequence,
                tied=True,
            ),
            cluster=ClusterFacts(world_size=gpus, gpu_type=gpu),
            plan=Plan(
                data=1,
                shard=gpus,
                accumulate=accumulate,
                precision=Precision.BF16,
                activation_checkpoint=Recompute.FULL if recompute else Recompute.NONE,
            ),
            microbatch=microbatch,
            software=_MPT,
            tokens_per_s=speed,
        )


# --- A plain loop (torch.compile, fused AdamW, SDPA) on one H200, measured for this project; sequence 1,024
def _plain_loops() -> Iterator[Published]:
    for name, parameters, layers, width, heads, microbatch, speed in (
        ("GPT 124M", 124_400_000, 12, 768, 12, 64, 532_000),
        ("GPT 350M", 354_800_000, 24, 1024, 16, 32, 202_000),
        ("GPT 1.3B", 1_313_000_000, 24, 2048, 16, 16, 65_900),
    ):
        yield Published(
            name=name,
            source="measured, H200",
            model=Transformer(
                parameters=parameters,
                layers=layers,
                width=width,
                heads=heads,
                kv_heads=heads,
                inner=4 * width,
                gated=False,
                vocabulary=50_304,
                sequence=1024,
                tied=True,
            ),
            cluster=ClusterFacts(world_size=1, gpu_type="h200"),
            plan=Plan(data=1, precision=Precision.BF16, compile=True),
            microbatch=microbatch,
            software=Software(),
            tokens_per_s=speed,
            basis=Basis.FITTED,
        )
