"""Rules of a run: what of its metrics somebody wants to hear of, or to end it for."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from windlass.core.quantities import parse_duration
from windlass.wire.strict import StrictModel

_CONDITIONS = ("patience", "above", "below", "nan", "silent")
_Finite = Annotated[float, Field(allow_inf_nan=False)]


class Goal(StrEnum):
    MIN = "min"
    MAX = "max"


class Then(StrEnum):
    ALERT = "alert"
    STOP = "stop"


def _nan(value: Any) -> Any:
    """`nan: true`; YAML reads `.nan` as a number."""
    return True if value is None or (isinstance(value, float) and value != value) else value


class RuleSpec(StrictModel):
    """One of `patience`, `above`, `below`, `nan` and `silent` says when it applies."""

    metric: str | None = Field(
        None,
        min_length=1,
        max_length=250,
        pattern=r"^[^\x00]*$",
        description="of `nan` and `silent`: any, if none is given",
    )
    patience: int | None = Field(None, ge=1, le=10**9, description="so many values, none of them better than the best")
    goal: Goal = Field(Goal.MIN, description="of `patience`: what is better, min or max")
    min_delta: float = Field(0.0, ge=0, le=1e300, description="of `patience`: by how much, at least")
    above: _Finite | None = Field(None, description="a value over this")
    below: _Finite | None = Field(None, description="a value under this")
    nan: Annotated[bool, BeforeValidator(_nan)] = Field(False, description="a value that is no number, or infinite")
    silent: Annotated[float | None, BeforeValidator(lambda v: None if v is None else parse_duration(v))] = Field(
        None, ge=1, le=366 * 86_400, description="no value for so long while it runs, such as 30m"
    )
    after: int = Field(0, ge=0, lt=2**63, description="values of earlier steps do not count")
    then: Then = Field(Then.ALERT, description="alert, or stop: end the run as `windlass cancel` does")

    @model_validator(mode="after")
    def _one_condition(self) -> RuleSpec:
        given = [name for name in _CONDITIONS if (value := getattr(self, name)) is not None and value is not False]
        if len(given) != 1:
            what = " and ".join(given) if given else "none"
            raise ValueError(f"a rule has one of {', '.join(_CONDITIONS)}; this one has {what}")
        if self.metric is None and given[0] not in ("nan", "silent"):
            raise ValueError(f"`{given[0]}` needs a `metric`")
        return self

    def idle_keys(self) -> list[str]:
        """Keys that say something which this rule does not heed."""
        if self.patience is not None:
            return []
        return [name for name in ("goal", "min_delta") if getattr(self, name) != type(self).model_fields[name].default]

    def describe(self) -> str:
        """For people, in one line."""
        of = self.metric or "any metric"
        if self.patience is not None:
            return f"{of} no better in {self.patience:,} values"
        if self.above is not None:
            return f"{of} above {self.above:g}"
        if self.below is not None:
            return f"{of} below {self.below:g}"
        if self.nan:
            return f"{of} is no number"
        return f"no value of {of} for {self.silent:g} s"
