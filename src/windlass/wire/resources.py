"""The `resources` of a spec: what a run asks of its nodes, with what else would do; and times that it has to keep."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, field_serializer, model_validator

from windlass.core.quantities import parse_duration, parse_size
from windlass.wire.gang import problem_at
from windlass.wire.strict import StrictModel

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
Label = Annotated[str, Field(pattern=r"^[^\x00=]*$", max_length=317)]
SizeBytes = Annotated[int, BeforeValidator(parse_size), Field(le=2**60)]
_RANGE = re.compile(r"^\s*(\d{1,4})\s*\.\.\s*(\d{1,4})\s*$")
# Durations end at ten years, which is less: a number tells by itself whether it is a time or how long from now.
_EARLIEST_TIME = 1e9
# As it is written: none, one, or several.
_ONE_OR_SEVERAL = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}]}


def _text(value: Any) -> Any:
    """YAML reads `generation: 3` as a number and `nvlink: true` as a truth; labels are text."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _types(value: Any) -> Any:
    """One name is short for a list of one."""
    if value is None or isinstance(value, str):
        return () if value is None else (value,)
    if isinstance(value, list | tuple) and (again := [name for i, name in enumerate(value) if name in value[:i]]):
        raise ValueError(f"names {again[0]} twice")
    return value


def _whole_or_part(gpus: float) -> float:
    if gpus > 1 and gpus != int(gpus):
        raise ValueError(f"{gpus:g} GPUs: give a whole number, a part of one such as 0.5, or a range such as 4..8")
    return int(gpus) if gpus == int(gpus) else gpus


class ResourcesSpec(StrictModel):
    nodes: int = Field(1, ge=1, le=10_000, description="how many nodes")
    cpus: float | None = Field(None, ge=0, le=100_000, description="CPU cores per node; default one per process")
    memory: SizeBytes | None = Field(None, ge=0, description="memory per node, for example 64GB; also the limit")
    gpus: Annotated[float, Field(ge=0, le=1_000, allow_inf_nan=False), AfterValidator(_whole_or_part)] = Field(
        0, description="GPUs per node, a part of one such as 0.5, or a range such as 4..8 of which it takes the most"
    )
    min_gpus: int | None = Field(None, ge=1, le=1_000, description="the fewest of a range; `gpus: 4..8` is 8 and 4")
    gpu_type: Annotated[tuple[Name, ...], BeforeValidator(_types), WithJsonSchema(_ONE_OR_SEVERAL)] = Field(
        (), max_length=100, description="for example h100, or a list in order of preference; default any"
    )
    tpus: int = Field(0, ge=0, le=1_000, description="TPU chips per node, instead of GPUs")
    tpu_type: Annotated[tuple[Name, ...], BeforeValidator(_types), WithJsonSchema(_ONE_OR_SEVERAL)] = Field(
        (), max_length=100, description="for example v5e, or a list in order of preference; default any"
    )
    labels: dict[Label, Annotated[Label, BeforeValidator(_text)]] = Field(
        default_factory=dict, max_length=100, description="that its nodes must have, e.g. {zone: eu-1a}"
    )
    spot: bool = Field(True, description="whether it may go to nodes that can be taken away")

    @model_validator(mode="before")
    @classmethod
    def _range_is_two_numbers(cls, data: Any) -> Any:
        """Written into the spec, so that `gpus` is a number for whoever reads it."""
        if not isinstance(data, Mapping) or not isinstance(data.get("gpus"), str):
            return data
        found = _RANGE.match(data["gpus"])
        if found is None or data.get("min_gpus") is not None:
            return data
        least, most = int(found[1]), int(found[2])
        if not 1 <= least <= most:
            raise problem_at(("gpus",), f"{data['gpus']!r} is no range: write the fewest first, 1 or more, as in 4..8")
        return {**data, "gpus": most, "min_gpus": least}

    @model_validator(mode="after")
    def _goes_together(self) -> ResourcesSpec:
        if 0 < self.gpus < 1 and self.nodes > 1:
            raise problem_at(("gpus",), f"a part of a GPU ({self.gpus:g}) is for runs on one node, not {self.nodes}")
        if self.min_gpus is not None and self.min_gpus > self.gpus:
            raise problem_at(("min_gpus",), f"is {self.min_gpus}, more than `gpus`, {self.gpus:g}")
        if self.tpus and self.gpus:
            raise problem_at(("tpus",), f"a node has GPUs or TPUs, not {self.gpus:g} and {self.tpus}: ask for one kind")
        if self.tpu_type and not self.tpus:
            raise problem_at(("tpu_type",), f"is {', '.join(self.tpu_type)}, and no `tpus` are asked for: say how many")
        return self

    @field_serializer("gpus")
    def _plain_number(self, gpus: float) -> int | float:
        return int(gpus) if gpus == int(gpus) else gpus

    @field_serializer("gpu_type", "tpu_type")
    def _plain_name(self, types: tuple[str, ...]) -> str | list[str] | None:
        """A list only where there are several: that is what servers of the version before know."""
        return list(types) if len(types) > 1 else types[0] if types else None


def _deadline(value: Any) -> Any:
    """Seconds since 1970, or from the submission on. Times without a zone are UTC, as YAML has it."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            pass
    if isinstance(value, date):
        moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= _EARLIEST_TIME:
        return float(value)
    try:
        seconds = parse_duration(value)
    except ValueError:
        raise ValueError(f"{value!r} is no time; write for example 2026-11-20T18:00+01:00, or 12h") from None
    if not seconds:
        raise ValueError("is the moment of the submission: nothing is done by then")
    return seconds


Deadline = Annotated[float, Field(allow_inf_nan=False, le=1e11), BeforeValidator(_deadline)]


def deadline_at(deadline: float, submitted_at: float) -> float:
    """Seconds since 1970."""
    return deadline if deadline >= _EARLIEST_TIME else submitted_at + deadline
