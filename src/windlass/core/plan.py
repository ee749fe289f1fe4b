"""How a model is spread over the processes of a run: `Plan`, and the rules by which one fits or not.

Pure, and of the standard library alone: the spec, the command line, the planner and the job all read the same plan.
The processes form one mesh, `pipeline` × `data` × `shard` × `tensor`, the last one varying fastest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from windlass.core.errors import InvalidInput
from windlass.core.names import nearest


class InvalidPlan(InvalidInput):
    """A plan that breaks a rule, by itself or with this many processes or this model."""

    code = "invalid_plan"

    def __str__(self) -> str:
        """With the hint: raised in a script, it is all that is seen of it."""
        return f"{self.message}; {self.hint}" if self.hint else self.message


class Schedule(StrEnum):
    """The order in which a pipeline works through the microbatches of a step."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"


class Precision(StrEnum):
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"  # with a loss scale that follows the gradients
    FP8 = "fp8"  # large products in 8 bits, all else as in bf16; needs a GPU that has them


class Recompute(StrEnum):
    """What is computed again in the backward pass instead of being kept."""

    NONE = "none"
    SELECTIVE = "selective"  # the cheap parts; results of large products are kept
    FULL = "full"  # whole blocks


class Compression(StrEnum):
    FP16 = "fp16"
    BF16 = "bf16"
    POWERSGD = "powersgd"
    TOPK = "topk"


class OnNan(StrEnum):
    """What follows a step whose loss or gradient is no number. An alert is raised in any case."""

    GO_ON = "go_on"
    SKIP = "skip"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    data: int | None = None  # whole copies; None: as many as the other factors leave room for
    shard: int = 1  # parts that a copy's state is divided into (FSDP)
    zero: int = 3  # what is divided: 1 optimizer state, 2 and gradients, 3 and parameters
    tensor: int = 1  # parts that single products are divided into
    sequence: bool = False  # with `tensor`: also divide what is between the products, along the sequence
    pipeline: int = 1  # groups of processes that hold consecutive layers
    schedule: Schedule = Schedule.ONE_F_ONE_B
    stages: int | None = None  # stages per process, for `interleaved`; None: 2 there, else 1
    accumulate: int = 1  # microbatches per step, with and without a pipeline
    precision: Precision = Precision.FP32
    compile: bool = False
    activation_checkpoint: Recompute = Recompute.NONE
    clip: float | None = None  # largest norm of the whole gradient
    compress: Compression | None = None
    offload: bool = False  # parameters and optimizer state live in the host's memory
    on_nan: OnNan = OnNan.GO_ON

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise InvalidPlan(problem)

    @property
    def stages_per_process(self) -> int:
        return self.stages or (2 if self.schedule is Schedule.INTERLEAVED else 1)

    @property
    def total_stages(self) -> int:
        return self.pipeline * (self.stages_per_process if self.pipeline > 1 else 1)

    @property
    def copies(self) -> int:
        """How many different batches a step has: the processes that see different data."""
        return (self.data or 1) * self.shard

    @property
    def world_size(self) -> int:
        """The number of processes of a sized plan."""
        return self.copies * self.tensor * self.pipeline

    def sized(self, world_size: int) -> Plan:
        """This plan for so many processes, `data` filled in; InvalidPlan says which numbers would fit, or which of its
        keys do not go together."""
        for problem in _conflicts(self, world_size):
            raise InvalidPlan(problem)
        others = self.shard * self.tensor * self.pipeline
        product = _product(self, ("shard", "tensor", "pipeline"))
        if self.data is None:
            if world_size % others:
                raise InvalidPlan(
                    f"plan {self} needs a multiple of {others} processes ({product}), and the run has {world_size}",
                    hint=sizes_that_fit(world_size, others),
                )
            return replace(self, data=world_size // others)
        if self.data * others != world_size:
            needed, instead = self.data * others, f"with {world_size} processes, data={world_size // others} fits"
            product = _product(self, ("data", "shard", "tensor", "pipeline"))
            raise InvalidPlan(
                f"plan {self} needs {needed} processes ({product}), and the run has {world_size}",
                hint=f"{needed} processes fit" if world_size % others else instead,
            )
        return self

    def check_model(self, model: ModelShape) -> None:
        """InvalidPlan if this model cannot be cut up as the plan says, with the numbers that would do."""
        for what, count in (("heads", model.heads), ("key/value heads", model.kv_heads)):
            if self.tensor > 1 and count is not None and count % self.tensor:
                raise InvalidPlan(
                    f"tensor={self.tensor} does not divide the model's {count} {what}; {divisors_in_words(count)}"
                )
        if self.sequence and model.sequence is not None and model.sequence % self.tensor:
            raise InvalidPlan(
                f"sequence parallelism over tensor={self.tensor} does not divide the sequence of {model.sequence}; "
                f"{divisors_in_words(model.sequence)}"
            )
        if model.layers is not None and self.total_stages > model.layers:
            raise InvalidPlan(
                f"pipeline={self.pipeline} makes {self.total_stages} stages, and the model has {model.layers} layers; "
                f"at most {model.layers} stages fit"
            )
        if self.pipeline > 1 and model.tied:
            raise InvalidPlan(
                f"pipeline={self.pipeline} puts the first and the last layer on different processes, and in this model "
                "they share a weight; untie the head or use pipeline=1"
            )

    def check_batch(self, batch: int) -> int:
        """How many samples one microbatch of one process has when a step has `batch`; InvalidPlan if none do."""
        parts = self.copies * self.accumulate
        if batch < parts or batch % parts:
            below, above = batch // parts * parts, (batch // parts + 1) * parts
            each = batch // self.copies if batch % self.copies == 0 else None
            raise InvalidPlan(
                f"a batch of {batch} is not divided by {parts} (data×shard={self.copies}, "
                f"accumulate={self.accumulate}); {f'{below} or {above}' if below else above} would be",
                hint=f"accumulate for this batch: {divisors_in_words(each)}" if each else None,
            )
        return batch // parts

    def as_dict(self) -> dict[str, Any]:
        """What differs from the defaults, in plain values; `parse_plan` reads it back."""
        return plain_values(dict(_given(self)))

    def as_json(self) -> str:
        return json.dumps(self.as_dict())

    def __str__(self) -> str:
        return plan_text(dict(_given(self))) or "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What limits how a model can be cut; None where it is not known or there is none."""

    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    sequence: int | None = None
    tied: bool = False


def parse_plan(value: Plan | str | Mapping[str, Any] | None) -> Plan:
    """From a mapping, from JSON, or from `data=2,tensor=4,precision=bf16`. `windlass.core.wanted` reads what leaves
    something to the planner (`auto`)."""
    return value if isinstance(value, Plan) else plan_of(plan_keys(value))


def plan_of(named: Mapping[str, Any]) -> Plan:
    """With defaults for what is not named."""
    plan = Plan(**named)
    # What differs from its default is told from what nobody said when the plan gets its processes; this is not.
    if "zero" in named and plan.shard == 1 and plan.zero == _DEFAULTS["zero"]:
        raise InvalidPlan(_zero_in_vain(plan.zero))
    return plan


def plan_keys(value: str | Mapping[str, Any] | None, *, others: Iterable[str] = ()) -> dict[str, Any]:
    """The keys that are named, with their values as a plan has them. `others`: flags that may stand beside them."""
    pairs = _pairs(value.strip()) if isinstance(value, str) else list((value or {}).items())
    known = [*others, *(field.name for field in fields(Plan))]
    given: dict[str, Any] = {}
    for written, raw in pairs:
        name = written.lower()
        if name not in known:
            guess = nearest(name, known)
            raise InvalidPlan(
                f"unknown plan key {written!r}; "
                + (f"did you mean {guess!r}?" if guess else f"known: {', '.join(known)}")
            )
        if name in given:
            raise InvalidPlan(f"plan key {name!r} is given twice; leave out one of them")
        given[name] = _flag(name, raw) if name in others else _value(name, raw)
        for problem in _wrong(name, given[name]):
            raise InvalidPlan(problem)
    return given


def plan_text(named: Mapping[str, Any]) -> str:
    """As `plan_keys` reads it."""
    return ",".join(f"{name}={_text(value)}" for name, value in named.items())


def plain_values(named: Mapping[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, StrEnum) else value for name, value in named.items()}


_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Plan)}
_KINDS: dict[str, type[StrEnum]] = {
    "schedule": Schedule,
    "precision": Precision,
    "activation_checkpoint": Recompute,
    "compress": Compression,
    "on_nan": OnNan,
}
_COUNTS = ("data", "shard", "tensor", "pipeline", "accumulate", "stages")
_FLAGS = ("sequence", "compile", "offload")
_NONE = (None, "", "none", "null", "~")


def _pairs(text: str) -> list[tuple[str, Any]]:
    if text.startswith("{"):
        try:
            loaded: list[tuple[str, Any]] = json.loads(text, object_pairs_hook=list)
        except json.JSONDecodeError as error:
            raise InvalidPlan(f"the plan is not JSON: {error}") from None
        return loaded
    pairs = [part.strip().partition("=") for part in text.split(",") if part.strip()]
    # A flag may stand alone, and so may what has no number: `tensor=2,sequence`, `data,accumulate=4`.
    return [
        (name.strip(), word.strip() if equals else name.strip().lower() != "data" or None)
        for name, equals, word in pairs
    ]


def _value(name: str, raw: Any) -> Any:
    if name in _KINDS:
        return _choice(name, raw, _KINDS[name])
    if name in _FLAGS:
        return _flag(name, raw)
    if name in ("data", "stages", "clip") and raw in _NONE:
        return None
    try:
        if isinstance(raw, bool):
            raise ValueError(raw)
        number = float(raw)
        return number if name == "clip" else _whole(number)
    except (TypeError, ValueError):
        rule = "a number above 0" if name == "clip" else "a whole number from 1"
        raise InvalidPlan(f"plan key {name!r} is {raw!r}, but must be {rule}") from None


def _whole(number: float) -> int:
    if not number.is_integer():
        raise ValueError(number)
    return int(number)


def _choice(name: str, raw: Any, kind: type[StrEnum]) -> StrEnum | None:
    if name == "compress" and raw in _NONE:
        return None
    try:
        return kind(str(raw).lower() if raw is not None else "none")
    except ValueError:
        options = ", ".join((["none"] if name == "compress" else []) + [str(option) for option in kind])
        raise InvalidPlan(f"plan key {name!r} is {raw!r}; options: {options}") from None


def _flag(name: str, raw: Any) -> bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    flag = raw if isinstance(raw, bool) else words.get(str(raw).lower())
    if flag is None:
        raise InvalidPlan(f"plan key {name!r} is {raw!r}, but must be true or false")
    return flag


def _wrong(name: str, value: Any) -> Iterator[str]:
    """What no plan can have, whatever else it says."""
    if name in _COUNTS and value is not None and value < 1:
        yield f"plan key {name!r} is {value}, but must be a whole number from 1"
    if name == "zero" and value not in (1, 2, 3):
        yield f"plan key 'zero' is {value}; options: 1 (optimizer state), 2 (and gradients), 3 (and parameters)"
    if name == "clip" and value is not None and not (value > 0 and math.isfinite(value)):
        yield f"plan key 'clip' is {value}, but must be a number above 0"


def _problems(plan: Plan) -> Iterator[str]:
    for name in (*_COUNTS, "zero", "clip"):
        yield from _wrong(name, getattr(plan, name))
    if plan.sequence and plan.tensor == 1:
        yield "sequence=true divides along the sequence over the processes of `tensor`, and tensor is 1; try tensor=2"
    if plan.stages is not None and plan.stages > 1 and plan.schedule is not Schedule.INTERLEAVED:
        yield f"stages={plan.stages} per process need schedule=interleaved, not {plan.schedule}"
    if plan.pipeline > 1 and plan.schedule is Schedule.INTERLEAVED:
        if plan.stages == 1:
            yield "schedule=interleaved needs at least 2 stages per process, and stages is 1; use 1f1b for one"
        if plan.accumulate % plan.pipeline:
            least = plan.pipeline * max(1, plan.accumulate // plan.pipeline)
            yield (
                f"schedule=interleaved needs accumulate to be a multiple of pipeline={plan.pipeline}, "
                f"and it is {plan.accumulate}; try accumulate={least}"
            )
    if plan.compress and (plan.shard > 1 or plan.tensor > 1 or plan.pipeline > 1):
        yield f"compress={plan.compress} works on whole gradients: with `data` alone, not with shard, tensor, pipeline"
    if plan.offload and plan.shard == 1:
        yield "offload=true moves divided state to the host's memory, and shard is 1; try shard=2 or more"


def _conflicts(plan: Plan, world_size: int) -> Iterator[str]:
    """What is said in vain, or what Windlass cannot do together. Not refused before the plan is to be used: records of
    runs, and those of other software, may have it."""
    if plan.shard == 1 and plan.zero != _DEFAULTS["zero"]:
        yield _zero_in_vain(plan.zero, world_size // (plan.tensor * plan.pipeline * (plan.data or 1)))
    if plan.pipeline == 1 and (plan.schedule is not _DEFAULTS["schedule"] or plan.stages_per_process > 1):
        yield f"schedule={plan.schedule} is an order of work in a pipeline, and pipeline is 1; try pipeline=2 or more"
    if plan.precision is Precision.FP8 and plan.tensor > 1:
        yield (
            f"precision=fp8 scales whole weights, and tensor={plan.tensor} divides them; use data, shard or pipeline "
            "with it, or bf16"
        )


def _zero_in_vain(zero: int, shard: int = 2) -> str:
    """`shard`: what would fit."""
    way = f"try shard={shard}" if shard > 1 else "more processes have it, with shard=2"
    return f"zero={zero} says what is divided among the processes of `shard`, and shard is 1; {way}, or leave out zero"


def _given(plan: Plan) -> Iterator[tuple[str, Any]]:
    for field in fields(plan):
        value = getattr(plan, field.name)
        if value != field.default:
            yield field.name, value


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _product(plan: Plan, names: tuple[str, ...]) -> str:
    return " × ".join(f"{name} {getattr(plan, name)}" for name in names)


def sizes_that_fit(world_size: int, others: int) -> str:
    below, above = world_size // others * others, (world_size // others + 1) * others
    return f"{below} or {above} processes fit" if below else f"{above} processes fit"


def divisors_in_words(count: int) -> str:
    return "options: " + ", ".join(str(part) for part in range(1, count + 1) if count % part == 0)
