"""The shape of a model of which only the size is known: that of a well-known one, or one with usual proportions."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from windlass.core.errors import InvalidInput
from windlass.core.plan import divisors_in_words
from windlass.planning.counts import format_count
from windlass.planning.facts import ModelFacts

# Fewer parameters are a slip of the pen, or nothing to plan for.
SMALLEST = 1_000_000
# A known model's shape stands for all sizes that differ by less than this.
NEAR = 0.08
_HEAD_WIDTH = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Inferred:
    model: ModelFacts
    assumed: tuple[str, ...]  # in words, what was not given


def _known(parameters: float, layers: int, width: int, heads: int, **rest: int | bool) -> ModelFacts:
    facts = ModelFacts(parameters=int(parameters), layers=layers, width=width, heads=heads, sequence=4096)
    return replace(facts, **rest)  # type: ignore[arg-type]


_GPT = {"gated": False, "vocabulary": 50_304}
_KNOWN = {
    "GPT-2 124M": _known(124e6, 12, 768, 12, sequence=1024, tied=True, **_GPT),
    "GPT-2 350M": _known(355e6, 24, 1024, 16, sequence=1024, tied=True, **_GPT),
    "GPT-2 774M": _known(774e6, 36, 1280, 20, sequence=1024, tied=True, **_GPT),
    "GPT-3 1.3B": _known(1.3e9, 24, 2048, 16, sequence=2048, **_GPT),
    "GPT-3 2.7B": _known(2.7e9, 32, 2560, 32, sequence=2048, **_GPT),
    "Llama 2 7B": _known(6.74e9, 32, 4096, 32, inner=11008, vocabulary=32_000),
    "Llama 3 8B": _known(8.03e9, 32, 4096, 32, kv_heads=8, inner=14336, vocabulary=128_256, sequence=8192),
    "Llama 2 13B": _known(13.0e9, 40, 5120, 40, inner=13824, vocabulary=32_000),
    "LLaMA 33B": _known(32.5e9, 60, 6656, 52, inner=17920, vocabulary=32_000, sequence=2048),
    "Llama 2 70B": _known(69.0e9, 80, 8192, 64, kv_heads=8, inner=28672, vocabulary=32_000),
    "GPT-3 175B": _known(175e9, 96, 12288, 96, sequence=2048, **_GPT),
    "Llama 3 405B": _known(405.9e9, 126, 16384, 128, kv_heads=8, inner=53248, vocabulary=128_256, sequence=8192),
    "Megatron 530B": _known(530e9, 105, 20480, 128, sequence=2048, **_GPT),
    "Megatron 1T": _known(1.008e12, 128, 25600, 160, sequence=2048, **_GPT),
}


def infer_model(
    parameters: int,
    *,
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    vocabulary: int | None = None,
    sequence: int | None = None,
    tied: bool | None = None,
) -> Inferred:
    """What is given is kept; the rest comes from a known model of about this size, or else from proportions.

    InvalidInput for what is no shape of a model.
    """
    if parameters < SMALLEST:
        raise InvalidInput(
            f"a model of {parameters:,} parameters is too small to plan for; from {format_count(SMALLEST)} on, "
            "written for example 350M or 7B"
        )
    given = {
        "layers": layers, "width": width, "heads": heads, "kv_heads": kv_heads,
        "vocabulary": vocabulary, "sequence": sequence, "tied": tied,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    name = min(_KNOWN, key=lambda known: abs(math.log(_KNOWN[known].parameters / parameters)))
    like = _KNOWN[name]
    if abs(math.log(like.parameters / parameters)) < NEAR and not given.keys() & {"layers", "width", "heads"}:
        source, guess = f"as in {name}", replace(like, parameters=parameters)
    else:
        source = "by usual proportions"
        guess = _by_proportions(parameters, layers=layers, width=width, heads=heads, vocabulary=vocabulary)
    model = replace(guess, **given)  # type: ignore[arg-type]
    _check(model)
    words = {
        "layers": f"{model.layers} layers",
        "width": f"width {model.width:,}",
        "heads": f"{model.heads} heads" + (f" ({model.kv_heads} for keys)" if model.kv_heads else ""),
        "vocabulary": f"vocabulary {model.vocabulary:,}",
        "sequence": f"sequence {model.sequence:,}",
        "tied": "the head tied to the embedding" if model.tied else "",
    }
    assumed = [text for key, text in words.items() if text and key not in given]
    return Inferred(model=model, assumed=(f"{', '.join(assumed)} ({source})",) if assumed else ())


def _by_proportions(
    parameters: int, *, layers: int | None, width: int | None, heads: int | None, vocabulary: int | None
) -> ModelFacts:
    small = parameters < 3e9
    vocabulary = vocabulary or (50_304 if small else 32_000)
    if width is None:
        width = _width(parameters, layers, vocabulary, heads)
    if layers is None:
        layers = max(1, round(_rest(parameters, width, vocabulary) / (12 * width**2)))
        layers = round(layers / 4) * 4 if layers >= 16 else layers  # so that pipelines divide it
    heads = heads or _heads(width)
    return ModelFacts(
        parameters=parameters, layers=layers, width=width, heads=heads, vocabulary=vocabulary,
        sequence=2048 if small else 4096,
    )  # fmt: skip


def _heads(width: int) -> int:
    """As many as divide the width, each at least as wide as is usual."""
    most = max(1, width // (_HEAD_WIDTH if width >= 2048 else 64))
    return next(heads for heads in range(most, 0, -1) if width % heads == 0)


def _check(model: ModelFacts) -> None:
    assert model.width is not None
    assert model.heads is not None
    if model.width % model.heads:
        options = divisors_in_words(model.width)
        raise InvalidInput(f"heads {model.heads} do not divide the width of {model.width:,}; {options}")
    if model.kv_heads and model.heads % model.kv_heads:
        options = divisors_in_words(model.heads)
        raise InvalidInput(f"kv-heads {model.kv_heads} do not divide the {model.heads} heads; {options}")


def _width(parameters: int, layers: int | None, vocabulary: int, heads: int | None) -> int:
    """The one of even heads whose depth is in proportion: models are about 64 times as wide as deep, large ones 128."""
    aspect = 64 if parameters < 0.5e9 else 85 if parameters < 3e9 else 128
    step = heads * 8 if heads else 64 if parameters < 0.5e9 else 256 if parameters < 3e9 else 512

    def unlike(width: int) -> float:
        depth = max(_rest(parameters, width, vocabulary) / (12 * width**2), 0.1)
        return abs(math.log(depth / layers)) if layers else abs(math.log(width / depth / aspect))

    return min(range(step, 64 * 1024, step), key=unlike)


def _rest(parameters: int, width: int, vocabulary: int) -> float:
    """What embedding and head leave for the blocks."""
    return max(parameters - 2 * vocabulary * width, parameters / 8)


def usual_batch(model: ModelFacts, world_size: int) -> int:
    """Samples of a step: half a million tokens for small models, four for large ones, in equal parts for the GPUs."""
    tokens = min(4e6, max(0.5e6, 0.5e6 * math.sqrt(model.parameters / 125e6)))
    samples = 1 << max(0, round(math.log2(tokens / (model.sequence or 1))))
    if samples >= world_size:
        return math.ceil(samples / world_size) * world_size
    part = max(part for part in range(1, samples + 1) if world_size % part == 0)
    return samples // part * part
