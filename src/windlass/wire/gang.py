"""The parts of a spec that say who does what in a gang: `plan`, how one model is spread over all processes, `roles`,
processes that do different work, and `elastic`, how many nodes they may be on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from windlass.core.errors import InvalidInput
from windlass.core.quantities import parse_duration
from windlass.core.wanted import parse_wanted
from windlass.wire.strict import StrictModel

_KEY = re.compile(r"plan key '(\w+)'")
Text = Annotated[str, Field(pattern=r"^[^\x00]*$", max_length=100_000)]


def problem_at(path: Sequence[str | int], message: str) -> ValidationError:
    """To be raised by a validator that knows which key below its own is wrong: the problem is then told there."""
    # A message of a custom error is a template in braces, so it is put in as a value.
    error = PydanticCustomError("value_error", "{problem}", {"problem": message})
    return ValidationError.from_exception_data("spec", [InitErrorDetails(type=error, loc=tuple(path), input=None)])


def _plan(value: Any) -> Any:
    """What differs from the defaults: `data=2,tensor=2` and a mapping are the same plan. With `auto`, what is named."""
    if value is None:
        return value
    if not isinstance(value, str | Mapping) or (
        isinstance(value, Mapping) and not all(isinstance(k, str) for k in value)
    ):
        raise ValueError("a plan is a mapping of plan keys, text like `data=2,tensor=2`, or `auto`")
    try:
        return parse_wanted(value).as_spec()
    except InvalidInput as error:
        message = error.message + (f"; {error.hint}" if error.hint else "")
        key = _KEY.search(error.message)
        path = (key[1],) if key and isinstance(value, Mapping) and key[1] in value else ()
        raise problem_at(path, message) from error
    except OverflowError as error:
        raise ValueError(f"a number of the plan is out of range: {error}") from error


def _role(value: Any) -> Any:
    """A number alone: so many processes of the spec's own command."""
    return {"count": value} if isinstance(value, int) and not isinstance(value, bool) else value


class RoleSpec(StrictModel):
    count: int = Field(ge=1, le=100_000, description="processes with this role")
    command: Text | list[Text] | None = Field(None, description="what they run; default the spec's own command")
    essential: bool | None = Field(
        None, description="whether the run goes on until they have ended; default yes, but not for `ps`"
    )


class ElasticSpec(StrictModel):
    min_nodes: int = Field(1, ge=1, le=10_000, description="the fewest nodes that it goes on with")
    max_nodes: int = Field(ge=1, le=10_000, description="the most nodes that it takes; default `resources.nodes`")
    grow_every: Annotated[float, BeforeValidator(parse_duration), Field(ge=1)] | None = Field(
        300.0, description="how often, at most, it is stopped to go on with more nodes; null: never"
    )


PlanSpec = Annotated[Text | dict[str, Any], BeforeValidator(_plan)]
RoleName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,30}$")]
RolesSpec = dict[RoleName, Annotated[RoleSpec, BeforeValidator(_role)]]


def is_essential(name: str, role: RoleSpec) -> bool:
    """Parameter servers of TensorFlow never return: they serve until they are told to stop."""
    return name != "ps" if role.essential is None else role.essential


def check_elastic(elastic: ElasticSpec, *, nodes: int, has_roles: bool) -> None:
    if elastic.min_nodes > elastic.max_nodes:
        raise problem_at(("elastic",), f"has min_nodes {elastic.min_nodes}, more than max_nodes {elastic.max_nodes}")
    if not elastic.min_nodes <= nodes <= elastic.max_nodes:
        raise problem_at(
            ("resources", "nodes"),
            f"is {nodes}, the fewest that an elastic run begins with: a number from min_nodes {elastic.min_nodes} to "
            f"max_nodes {elastic.max_nodes}",
        )
    if has_roles:
        raise problem_at(("elastic",), "changes the number of processes, and `roles` fixes it")


def check_roles(roles: RolesSpec, *, has_command: bool, nodes: int, nproc: int | None) -> None:
    for name, role in roles.items():
        if role.command is None and not has_command:
            raise problem_at(("roles", name), "has no `command`, and the spec has none either")
        if role.command is not None and not "".join(role.command).strip():
            raise problem_at(("roles", name, "command"), "is empty")
    if not any(is_essential(name, role) for name, role in roles.items()):
        raise problem_at(("roles",), "no role is essential, so the run would be over before it began")
    total = sum(role.count for role in roles.values())
    if nproc is not None and nodes * nproc != total:
        raise problem_at(
            ("roles",),
            f"are {total} processes, and the run has {nodes * nproc} ({nodes} nodes × nproc {nproc}); "
            "leave out `nproc` to have it follow from the roles",
        )
    if total % nodes:
        below, above = total // nodes * nodes, (total // nodes + 1) * nodes
        fitting = f"{below} or {above}" if below else str(above)
        raise problem_at(("roles",), f"are {total} processes, which {nodes} nodes do not divide; {fitting} would fit")
