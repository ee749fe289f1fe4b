"""What the planner is told: `ModelFacts` and `ClusterFacts`. None stands for what is not known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from windlass.core.plan import ModelShape, Precision
from windlass.planning.gpus import Gpu, find_gpu

_GATED_INNER = 8 / 3  # a gated layer as large as a plain one of 4 widths
_PLAIN_INNER = 4
_HEAD_WIDTH = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A model. With layers, width and sequence it is taken for a transformer; without, only its state is reckoned."""

    parameters: int
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    kv_heads: int | None = None  # None: as many as heads
    inner: int | None = None  # width inside a block's feed-forward part
    gated: bool = True  # three products there (SwiGLU), not two
    vocabulary: int | None = None
    sequence: int | None = None
    tied: bool = False  # the head's weight is the embedding's
    divisible: bool = True  # says how its products may be divided, so that `tensor` can be used
    stageable: bool = True  # says which layers follow each other, so that `pipeline` and recomputing can be used

    @property
    def shape(self) -> ModelShape:
        return ModelShape(
            layers=self.layers, heads=self.heads, kv_heads=self.kv_heads, sequence=self.sequence, tied=self.tied
        )

    def transformer(self) -> Transformer | None:
        """With the usual proportions where the fine points were not said; None if too little is known."""
        if not (self.layers and self.width and self.sequence):
            return None
        heads = self.heads or max(1, self.width // _HEAD_WIDTH)
        vocabulary = self.vocabulary or 0
        return Transformer(
            parameters=self.parameters,
            layers=self.layers,
            width=self.width,
            heads=heads,
            kv_heads=self.kv_heads or heads,
            inner=self.inner or round(self.width * (_GATED_INNER if self.gated else _PLAIN_INNER)),
            gated=self.gated,
            vocabulary=vocabulary,
            sequence=self.sequence,
            tied=self.tied,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A decoder of equal blocks between an embedding and a head: what the memory and time of a step follow from."""

    parameters: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    inner: int
    gated: bool
    vocabulary: int
    sequence: int
    tied: bool = False

    @property
    def table_parameters(self) -> int:
        """Of the embedding, and of the head as well."""
        return self.vocabulary * self.width

    @property
    def block_parameters(self) -> float:
        """Of one block: what the tables leave, however the shape was come by, so that the sum is always right."""
        tables = self.table_parameters * (1 if self.tied else 2)
        return max(self.parameters - tables, self.parameters / 2) / self.layers

    @property
    def product_parameters(self) -> float:
        """Of all that every token is multiplied with: the blocks and the head, and not the embedding."""
        return self.block_parameters * self.layers + self.table_parameters

    @property
    def flops_per_token(self) -> float:
        """Of forward and backward pass as MFU counts them: whole attention, nothing computed twice."""
        return 6 * self.product_parameters + 12 * self.layers * self.width * self.sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """The processes of a run and what each of them computes on; one process per GPU."""

    world_size: int
    gpu_type: str  # a name of the table, what torch calls the device, or `cpu`
    memory_bytes: int | None = None  # of one GPU, or of the host for one process; None: as in the table
    gpus_per_node: int | None = None
    node_gbps: float | None = None  # between nodes, for a whole node, gigabits a second; None: as in the table
    device: Gpu | None = None  # in place of the table's
    compiles: bool = True  # whether torch's compiler works on these GPUs

    @property
    def gpu(self) -> Gpu:
        return self.device or find_gpu(self.gpu_type, memory_bytes=self.memory_bytes)

    @property
    def per_node(self) -> int:
        return min(self.world_size, self.gpus_per_node or self.gpu.per_node)

    @property
    def between_nodes(self) -> float:
        """Bytes a second and GPU."""
        if self.node_gbps is None:
            return self.gpu.between_nodes
        return self.node_gbps * 1e9 / 8 / (self.gpus_per_node or self.gpu.per_node)

    def usual(self, model: ModelFacts) -> dict[str, Any]:
        """What the planner chooses without comparing: it never makes a step slower. Of a model whose shape is not known
        it is not known either what compiling it does."""
        compiles = self.compiles and not self.gpu.is_cpu and model.transformer() is not None
        return {"precision": self.default_precision(), "compile": compiles}

    def default_precision(self) -> Precision:
        gpu = self.gpu
        if gpu.is_cpu:
            return Precision.FP32
        return Precision.BF16 if gpu.has(Precision.BF16) else Precision.FP16
