"""Label schemas: questions that reviewers of traces are asked, and how they answer. What may be one is decided by pure
functions; what can be done with them, one transaction each, by the service.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Row, delete, select, update
from sqlalchemy.exc import IntegrityError

from windlass.core.clock import Clock
from windlass.core.errors import AlreadyExists, InvalidInput, NotFound
from windlass.core.paging import offset_of, page_token
from windlass.db.database import Database
from windlass.db.insertion import insert_new
from windlass.evaluation.tables import label_schemas
from windlass.experiments.catalogue import load_experiment
from windlass.experiments.rules import experiment_number
from windlass.experiments.types import View

DEFAULT_NAME = "Feedback"
DEFAULT_INSTRUCTION = "Share any feedback on this trace."
_LONGEST_NAME = 250
_LONGEST_INSTRUCTION = 1_000
_LONGEST_LABEL = 64
_MOST_OPTIONS = 10
_INPUTS = {"pass_fail": "InputPassFail", "categorical": "InputCategorical", "numeric": "InputNumeric"}
_INPUTS["text"] = "InputText"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerInput:
    """How a question is answered: `form` is pass_fail, categorical, numeric or text; `limits` are those of the form."""

    form: str
    limits: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSchema:
    id: str
    experiment_id: int
    name: str
    kind: str  # feedback or expectation
    input: AnswerInput
    instruction: str | None
    comment: bool
    is_default: bool
    created_ms: int
    updated_ms: int


class LabelService:
    def __init__(self, *, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock

    def create(
        self, experiment_id: str, *, name: str, kind: str, input: AnswerInput, instruction: str | None, comment: bool
    ) -> LabelSchema:
        check_name(name)
        check_instruction(instruction)
        check_input(input)
        schema = self._new(experiment_id, name, kind, input, instruction, comment=comment)
        with self._db.write() as tx:
            load_experiment(tx, schema.experiment_id, View.ACTIVE_ONLY)
            if not insert_new(tx, label_schemas, _row(schema)):
                raise _taken(name, experiment_id)
        return schema

    def get(self, schema_id: str) -> LabelSchema:
        with self._db.read() as tx:
            return _load(tx, schema_id)

    def get_named(self, experiment_id: str, name: str) -> LabelSchema:
        number = experiment_number(experiment_id)
        with self._db.read() as tx:
            load_experiment(tx, number, View.ACTIVE_ONLY)
            query = select(label_schemas).where(label_schemas.c.experiment_id == number, label_schemas.c.name == name)
            row = tx.execute(query).one_or_none()
        if row is None:
            raise NotFound(f"Label schema with name '{name}' not found for experiment '{experiment_id}'.")
        return _schema(row)

    def list(self, experiment_id: str, *, most: int, token: str | None) -> tuple[Sequence[LabelSchema], str | None]:
        """The newest first. Every experiment has a question that nobody needs to write, and nobody can change."""
        number, offset = experiment_number(experiment_id), offset_of(token)
        mine = label_schemas.c.experiment_id == number
        with self._db.read() as tx:
            load_experiment(tx, number, View.ACTIVE_ONLY)
            has_default = tx.execute(select(label_schemas.c.id).where(mine, label_schemas.c.is_default)).first()
        if has_default is None:
            free = AnswerInput(form="text", limits={})
            default = self._new(experiment_id, DEFAULT_NAME, "feedback", free, DEFAULT_INSTRUCTION, comment=False)
            with self._db.write() as tx:
                insert_new(tx, label_schemas, _row(replace(default, is_default=True)))
        query = select(label_schemas).where(mine)
        query = query.order_by(label_schemas.c.created_ms.desc(), label_schemas.c.id).offset(offset).limit(most + 1)
        with self._db.read() as tx:
            rows = tx.execute(query).all()
        return [_schema(row) for row in rows[:most]], page_token(offset + most) if len(rows) > most else None

    def update(
        self,
        schema_id: str,
        *,
        name: str | None,
        instruction: str | None,
        comment: bool | None,
        input: AnswerInput | None,
    ) -> LabelSchema:
        with self._db.write() as tx:
            held = _load(tx, schema_id, lock=True)
            changed = decide_change(held, name=name, instruction=instruction, comment=comment, input=input)
            changed = replace(changed, updated_ms=int(self._clock.now() * 1000))
            taken = select(label_schemas.c.id).where(
                label_schemas.c.experiment_id == held.experiment_id,
                label_schemas.c.name == changed.name,
                label_schemas.c.id != schema_id,
            )
            if tx.execute(taken).first() is not None:
                raise _taken(changed.name, held.experiment_id)
            try:
                tx.execute(update(label_schemas).where(label_schemas.c.id == schema_id).values(**_row(changed)))
            except IntegrityError as error:  # somebody else took the name at the same moment
                raise _taken(changed.name, held.experiment_id) from error
        return changed

    def delete(self, schema_id: str) -> None:
        """Nothing happens if there is none. Answers that it was asked for stay."""
        with self._db.write() as tx:
            row = tx.execute(select(label_schemas.c.is_default).where(label_schemas.c.id == schema_id)).one_or_none()
            if row is not None and row.is_default:
                raise InvalidInput("The experiment's default question cannot be deleted.")
            tx.execute(delete(label_schemas).where(label_schemas.c.id == schema_id))

    def _new(
        self, experiment_id: str, name: str, kind: str, input: AnswerInput, instruction: str | None, *, comment: bool
    ) -> LabelSchema:
        now_ms = int(self._clock.now() * 1000)
        return LabelSchema(
            id=f"ls-{uuid.uuid4().hex}",
            experiment_id=experiment_number(experiment_id),
            name=name,
            kind=kind,
            input=input,
            instruction=instruction,
            comment=comment,
            is_default=False,
            created_ms=now_ms,
            updated_ms=now_ms,
        )


# ---- rules ---------------------------------------------------------------------------------------------------------


def check_name(name: str) -> None:
    if not name:
        raise InvalidInput(f"Label schema `name` must be a non-empty string; got {name!r}.")
    if len(name) > _LONGEST_NAME:
        raise InvalidInput(f"Label schema `name` must be at most {_LONGEST_NAME} characters; got {len(name)}.")
    if name.strip().lower() == DEFAULT_NAME.lower():
        raise InvalidInput(
            f"`{name}` is reserved for the experiment's default question and cannot be used for another label schema."
        )


def check_instruction(instruction: str | None) -> None:
    if instruction is not None and len(instruction) > _LONGEST_INSTRUCTION:
        raise InvalidInput(
            f"Label schema `instruction` must be at most {_LONGEST_INSTRUCTION} characters; got {len(instruction)}."
        )


def check_input(input: AnswerInput) -> None:
    limits = input.limits
    match input.form:
        case "pass_fail":
            _check_labels(limits["positive_label"], limits["negative_label"])
        case "categorical":
            _check_options(limits["options"])
        case "numeric":
            low, high = limits.get("min_value"), limits.get("max_value")
            for name, limit in (("min_value", low), ("max_value", high)):
                if limit is not None and not math.isfinite(limit):  # JSON has no word for it
                    raise InvalidInput(f"`InputNumeric.{name}` must be a finite number; got {limit}.")
            if low is not None and high is not None and low >= high:
                raise InvalidInput(
                    f"`InputNumeric.min_value` must be strictly less than `max_value`; got min={low}, max={high}."
                )
        case _:
            longest = limits.get("max_length")
            if longest is not None and longest < 1:
                raise InvalidInput(f"`InputText.max_length` must be at least 1; got {longest}.")


def _check_labels(positive: str, negative: str) -> None:
    for name, label in (("positive_label", positive), ("negative_label", negative)):
        if not label:
            raise InvalidInput(f"`InputPassFail.{name}` must be a non-empty string; got {label!r}.")
        if len(label) > _LONGEST_LABEL:
            raise InvalidInput(f"`InputPassFail.{name}` must be at most {_LONGEST_LABEL} characters; got {len(label)}.")
    if positive == negative:
        raise InvalidInput(
            f"`InputPassFail.positive_label` and `negative_label` must be distinct; got {positive!r} for both."
        )


def _check_options(options: Sequence[str]) -> None:
    if not options:
        raise InvalidInput("`InputCategorical.options` must be a non-empty list; got [].")
    if len(options) > _MOST_OPTIONS:
        raise InvalidInput(f"`InputCategorical.options` must have at most {_MOST_OPTIONS} entries; got {len(options)}.")
    for place, option in enumerate(options):
        if not option:
            raise InvalidInput(f"`InputCategorical.options` entries must be non-empty strings; got {option!r}.")
        if len(option) > _LONGEST_LABEL:
            raise InvalidInput(
                f"`InputCategorical.options` entries must be at most {_LONGEST_LABEL} characters;"
                f" got {len(option)} for {option!r}."
            )
        if option in options[:place]:
            raise InvalidInput(f"`InputCategorical.options` must be deduplicated; {option!r} appears twice.")


def decide_change(
    held: LabelSchema, *, name: str | None, instruction: str | None, comment: bool | None, input: AnswerInput | None
) -> LabelSchema:
    """What a question becomes. Its form stays, since answers have been given in it. Raises InvalidInput."""
    if held.is_default:
        raise InvalidInput("The experiment's default question cannot be edited.")
    if name is not None:
        check_name(name)
    check_instruction(instruction)
    if input is not None:
        check_input(input)
        if input.form != held.input.form:
            raise InvalidInput(
                "A label schema's input type cannot be changed after creation"
                f" (existing: {_INPUTS[held.input.form]}, got: {_INPUTS[input.form]})."
            )
        if input.limits.get("multi_select", False) != held.input.limits.get("multi_select", False):
            raise InvalidInput("`InputCategorical.multi_select` cannot be changed after creation.")
    return replace(
        held,
        name=held.name if name is None else name,
        instruction=held.instruction if instruction is None else instruction,
        comment=held.comment if comment is None else comment,
        input=input or held.input,
    )


# ---- rows ----------------------------------------------------------------------------------------------------------


def _load(tx: Connection, schema_id: str, *, lock: bool = False) -> LabelSchema:
    query = select(label_schemas).where(label_schemas.c.id == schema_id)
    row = tx.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise NotFound(f"Label schema with id '{schema_id}' not found.")
    return _schema(row)


def load_known(tx: Connection, experiment_id: int, schema_ids: Sequence[str]) -> set[str]:
    """Which of these the experiment has."""
    query = select(label_schemas.c.id).where(
        label_schemas.c.experiment_id == experiment_id, label_schemas.c.id.in_(schema_ids)
    )
    return set(tx.execute(query).scalars())


def _taken(name: str, experiment_id: str | int) -> AlreadyExists:
    return AlreadyExists(f"Label schema with name '{name}' already exists for experiment '{experiment_id}'.")


def _row(schema: LabelSchema) -> dict[str, Any]:
    return {
        "id": schema.id,
        "experiment_id": schema.experiment_id,
        "name": schema.name,
        "kind": schema.kind,
        "form": schema.input.form,
        "limits": json.dumps(dict(schema.input.limits)),
        "instruction": schema.instruction,
        "comment": schema.comment,
        "is_default": schema.is_default,
        "created_ms": schema.created_ms,
        "updated_ms": schema.updated_ms,
    }


def _schema(row: Row[Any]) -> LabelSchema:
    found = dict(row._mapping)
    input = AnswerInput(form=found.pop("form"), limits=json.loads(found.pop("limits")))
    return LabelSchema(**found, input=input)
