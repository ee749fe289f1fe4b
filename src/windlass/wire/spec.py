"""The run spec: what a user wants, as written in YAML, sent over HTTP and kept in the record. Strict: an unknown or
ill-typed key is an error that names the key, the rule and the nearest right key, never silently dropped.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from windlass.core.errors import InvalidInput, InvalidSpec
from windlass.core.frameworks import Framework
from windlass.core.quantities import parse_duration
from windlass.core.recipes import check_recipe
from windlass.wire.checkpoints import CHECKPOINT_KEY, CheckpointSpec, check_stores, check_watch
from windlass.wire.gang import ElasticSpec, PlanSpec, RolesSpec, check_elastic, check_roles, problem_at
from windlass.wire.kubernetes import KubernetesOptions
from windlass.wire.problems import problems_of
from windlass.wire.ray import RayOptions
from windlass.wire.resources import Deadline, ResourcesSpec
from windlass.wire.rules import RuleSpec
from windlass.wire.slurm import SlurmOptions
from windlass.wire.strict import StrictModel

# Keys of capabilities that this version does not have. Refused by name: accepting them would be a promise.
NOT_YET = {
    "": {"data", "max_cost"},
}
GROUP = "group"  # the tag by which runs belong together
ENV_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
EnvName = Annotated[str, Field(pattern=ENV_NAME.pattern, max_length=200)]
# PostgreSQL stores no NUL and neither do environments or argument lists.
Text = Annotated[str, Field(pattern=r"^[^\x00]*$", max_length=100_000)]
DurationS = Annotated[float, BeforeValidator(parse_duration)]
# JSON has no infinities and no NaN, and params travel and are kept as JSON.
Scalar = bool | int | Annotated[float, Field(allow_inf_nan=False)] | Text | None


def _one_rule(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """A union says for each of its members why it is not meant, which is a line for every kind of param."""
    try:
        return check(value)
    except ValidationError:
        raise ValueError(
            "a param is a finite number, text without NUL (at most 100,000 characters), true, false or null,"
            f" or a list or mapping of these and no deeper; this is {reprlib.repr(value)}"
        ) from None


ParamValue = Annotated[Scalar | list[Scalar] | dict[Text, Scalar], WrapValidator(_one_rule)]


class Priority(StrEnum):
    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"

    @property
    def rank(self) -> int:
        return {"low": 0, "normal": 10, "high": 20}[self.value]


class RetrySpec(StrictModel):
    max: int = Field(3, ge=0, le=1_000, description="how often a run is tried again")
    backoff: DurationS = Field(2.0, ge=0, le=86_400, description="wait before the first retry; doubles each time")


def _env_text(value: Any) -> Any:
    """YAML reads `EPOCHS: 3` as a number; an environment holds text."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _hang(value: Any) -> Any:
    """YAML reads `off` as no."""
    if value in ("auto", "off", None) or isinstance(value, bool):
        return value if isinstance(value, str) else "auto" if value is None or value else "off"
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{error}; or auto, or off") from None
    if seconds < 1:
        raise ValueError(f"{value!r} is less than a second; give a duration, auto or off")
    return seconds


def _tags(value: Any) -> Any:
    """A list of tags is short for tags without values."""
    if isinstance(value, list) and all(isinstance(tag, str) for tag in value):
        return dict.fromkeys(value, "")
    return value


def _several(value: Any) -> Any:
    """One name is short for a list of one."""
    return [value] if isinstance(value, str) else () if value is None else value


def _recipe(value: Any) -> Any:
    try:
        return check_recipe(value) if isinstance(value, str) else value
    except InvalidInput as error:
        raise ValueError(error.message) from error


def check_group(name: str) -> None:
    """Raises InvalidInput for what no search could ask for."""
    if not name.strip() or {"'", '"'} <= set(name):
        raise InvalidInput(f"the name of a group is not empty, and has quotes of one kind only: {name[:80]!r}")


def _with_group(schema: dict[str, Any]) -> None:
    """No field of its own, since it becomes a tag, but a key that a spec may have."""
    about = "the name of a group of runs; becomes the tag `group`"
    schema["properties"][GROUP] = {"anyOf": [{"type": "string"}, {"type": "null"}], "description": about}


class RunSpec(StrictModel):
    model_config = ConfigDict(json_schema_extra=_with_group)

    name: Name | None = None
    command: Text | list[Text] | None = Field(None, description="a shell line, or a list of arguments")
    script: Text | None = Field(None, description="a Python script; started once per process")
    recipe: Annotated[Text, AfterValidator(_recipe)] | None = Field(
        None, description="a training program that comes with Windlass"
    )
    args: list[Text] = Field(default_factory=list, max_length=10_000, description="arguments of the script or recipe")
    code: Text | None = Field(
        ".", description="the folder to snapshot; null runs in `workdir` as it is; a recipe needs none"
    )
    workdir: Text | None = Field(None, description="an existing folder to run in, instead of a snapshot")
    nproc: int | None = Field(None, ge=1, le=1_024, description="processes per node; default one per GPU, or one")
    resources: ResourcesSpec = Field(default_factory=ResourcesSpec)
    plan: PlanSpec | None = Field(None, description="how the model is spread over the processes, or `auto`")
    roles: RolesSpec = Field(default_factory=dict, max_length=100, description="groups of processes of one gang")
    elastic: ElasticSpec | None = Field(None, description="a range of nodes, of which it takes what is free")
    framework: Framework | None = Field(None, description="what it trains with; found out where it can be")
    experiment: Annotated[Text, Field(min_length=1, max_length=500)] | None = Field(
        None, description="the experiment it is in, as MLflow's clients see it; default its project's"
    )
    params: dict[Name, ParamValue] = Field(default_factory=dict)
    env: dict[EnvName, Annotated[Text, BeforeValidator(_env_text)]] = Field(default_factory=dict)
    secrets: list[EnvName] = Field(
        default_factory=list, max_length=1_000, description="names; values are never kept here"
    )
    retry: RetrySpec | None = Field(None, description="given: any failure is retried; not given: only transient ones")
    checkpoint: CheckpointSpec | None = Field(None, description="how often checkpoints are saved, and which stay")
    rules: list[RuleSpec] = Field(
        default_factory=list, max_length=50, description="what of its metrics to tell, or to end it for"
    )
    tensorboard: bool | Annotated[Text, Field(min_length=1)] = Field(
        True, description="whether event files of TensorBoard become metrics; or the folder to look for them in"
    )
    timeout: DurationS | None = Field(None, gt=0, description="time limit of all attempts together, for example 12h")
    grace: DurationS = Field(10.0, ge=0, le=86_400, description="time between SIGTERM and SIGKILL")
    hang: Annotated[Literal["auto", "off"] | float, BeforeValidator(_hang)] = Field(
        "auto", description="a rank without a step for so long hangs; `auto`: for many times as long as usual"
    )
    priority: Priority = Priority.NORMAL
    preemptible: bool = Field(True, description="whether it may be stopped for others; it goes on later")
    deadline: Deadline | None = Field(
        None, description="when it should be done, for example 2026-11-20T18:00+01:00, or 12h after the submission"
    )
    tags: Annotated[dict[Text, Text], BeforeValidator(_tags)] = Field(default_factory=dict)
    project: Name = "default"
    seed: int | None = Field(None, ge=0, lt=2**63)
    warm: bool = Field(True, description="start in a pre-imported interpreter when there is one")
    engine: Annotated[tuple[Name, ...], BeforeValidator(_several)] = Field(
        (), max_length=100, description="the only engines it may go to; default any that its project has"
    )
    image: Text | None = Field(None, description="a container image to run in, on engines with containers")
    slurm: SlurmOptions | None = Field(None, description="used if it goes to Slurm")
    ray: RayOptions | None = Field(None, description="used if it goes to Ray")
    kubernetes: KubernetesOptions | None = Field(None, description="used if it goes to Kubernetes")

    @model_validator(mode="before")
    @classmethod
    def _recipe_brings_its_code(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("recipe") is not None and "code" not in data:
            return {**data, "code": None}
        return data

    @model_validator(mode="before")
    @classmethod
    def _group_is_a_tag(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or "group" not in data:
            return data
        group, tags = data["group"], _tags(data.get("tags") or {})
        kept = {key: value for key, value in data.items() if key != "group"}
        if group is None:
            return kept
        if not isinstance(group, str) or not isinstance(tags, Mapping):
            raise ValueError(f"`group` is the name of a group of runs, not {group!r}")
        try:
            check_group(group)
        except InvalidInput as error:
            raise ValueError(f"`group`: {error.message}") from error
        if tags.get(GROUP, group) != group:
            raise ValueError(f"`group` is {group!r}, and the tag of that name is {tags[GROUP]!r}: give one of them")
        return {**kept, "tags": {**tags, GROUP: group}}

    @model_validator(mode="before")
    @classmethod
    def _elastic_and_nodes_say_the_rest(cls, data: Any) -> Any:
        """A run begins with its fewest nodes, and takes no more than it begins with, unless it says otherwise. Written
        into the spec, so that it reads the same after a round trip."""
        if not isinstance(data, Mapping) or not isinstance(data.get("elastic"), Mapping):
            return data
        elastic, resources = data["elastic"], data.get("resources")
        if resources is not None and not isinstance(resources, Mapping):
            return data
        if resources is not None and "nodes" in resources:
            return {**data, "elastic": {"max_nodes": resources["nodes"], **elastic}}
        fewest = elastic.get("min_nodes", 1)
        return {**data, "resources": {**(resources or {}), "nodes": fewest}} if isinstance(fewest, int) else data

    @model_validator(mode="after")
    def _one_way_to_start(self) -> RunSpec:
        ways = [name for name in ("command", "script", "recipe") if getattr(self, name) is not None]
        if len(ways) > 1 or not (ways or self.roles):
            raise ValueError("give one of `command`, `script` and `recipe`, and only one of them")
        if self.command is not None and (not self.command or not "".join(self.command).strip()):
            raise ValueError("`command` is empty")
        if self.script is not None and not self.script.strip():
            raise ValueError("`script` is empty")
        if self.args and self.script is None and self.recipe is None:
            raise ValueError("`args` goes with `script`; with `command`, write the arguments into the command")
        if self.code is not None and self.workdir is not None:
            raise ValueError("`workdir` goes with `code: null`: a run has a snapshot or a folder, not both")
        if both := sorted(set(self.env) & set(self.secrets)):
            raise ValueError(f"{both[0]} is in both `env` and `secrets`")
        if self.elastic is not None:
            check_elastic(self.elastic, nodes=self.resources.nodes, has_roles=bool(self.roles))
        if self.checkpoint is not None:
            check_watch(self.checkpoint)
        if self.checkpoint is not None and self.checkpoint.encrypt and CHECKPOINT_KEY not in self.secrets:
            raise problem_at(("checkpoint", "encrypt"), f"needs the key: put {CHECKPOINT_KEY} into `secrets`")
        if self.roles:
            check_roles(self.roles, has_command=bool(ways), nodes=self.resources.nodes, nproc=self.nproc)
            if self.plan is not None:
                raise problem_at(("plan",), "spreads one model over all processes, and `roles` gives them other work")
        return self


_KEYS, _RULE_KEYS = "docs/spec.md lists every key", "docs/rules.md lists the keys of rules"


def most_ranks(spec: RunSpec) -> int:
    """Of an elastic run, or one with a range of GPUs, the most that it may have."""
    if spec.roles:
        return sum(role.count for role in spec.roles.values())
    nodes = spec.elastic.max_nodes if spec.elastic else spec.resources.nodes
    return nodes * (spec.nproc or int(spec.resources.gpus) or 1)


def parse_spec(data: Any, *, line_of: Callable[[Sequence[str | int]], str] | None = None) -> RunSpec:
    """Validate `data`; raise InvalidSpec with every problem. `line_of` makes a key path a prefix like `f.yaml:7: `."""
    where = line_of or (lambda _loc: "")
    if not isinstance(data, Mapping):
        raise InvalidSpec([f"{where(())}a spec is a mapping of keys, not {type(data).__name__}"])
    try:
        spec = RunSpec.model_validate(data)
        if spec.checkpoint is not None:
            check_stores(spec.checkpoint)  # not by the model: runs of before that have it must stay readable
    except ValidationError as invalid:
        problems = problems_of(invalid, RunSpec, data, where=where, not_yet=NOT_YET)
        about = {error["loc"][:1] for error in invalid.errors(include_url=False)}
        raise InvalidSpec(problems, hint=_RULE_KEYS if about == {("rules",)} else _KEYS) from None
    # Not by the model: specs that were taken before this was asked must stay readable.
    if idle := [
        f"{where(('rules', number, key))}`rules.{number}.{key}` goes with `patience`; this rule has none"
        for number, rule in enumerate(spec.rules)
        for key in rule.idle_keys()
    ]:
        raise InvalidSpec(idle, hint=_RULE_KEYS)
    return spec
