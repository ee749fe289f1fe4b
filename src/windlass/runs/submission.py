"""From a request to the row of a new run. What can be refused is refused here, before anything is written."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import secrets as random_source
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

from sqlalchemy import Connection, func, select, true

from windlass.blobs.encoding import read_key
from windlass.core.errors import CannotFit, InvalidInput, InvalidSpec, QueueFull
from windlass.core.ids import new_run_id
from windlass.core.names import unknown
from windlass.core.resources import Resources
from windlass.core.wanted import AUTO
from windlass.runs.command import check_plan, fill_command, fill_roles, resolve_resources, workers_per_node
from windlass.runs.tables import runs
from windlass.runs.types import RunState
from windlass.scheduling.access import EngineAccess
from windlass.scheduling.fit import why_never
from windlass.scheduling.rules import Rules, over_limit
from windlass.scheduling.types import NodeKind
from windlass.scheduling.wants import wants_of
from windlass.wire.checkpoints import STORE_KEYS, CheckpointSpec
from windlass.wire.resources import deadline_at
from windlass.wire.runs import SubmitRequest
from windlass.wire.spec import GROUP, RunSpec, parse_spec

_FROM_THE_BEGINNING = frozenset(
    ("args", "code", "command", "env", "name", "params", "retry", "script", "secrets", "seed", "tags", "timeout")
)

# Of `resources`, younger too.
_USUAL: Mapping[str, Any] = {"min_gpus": None, "tpus": 0, "tpu_type": None, "labels": {}, "spot": True}


def request_digest(request: SubmitRequest) -> str:
    """Tells whether two requests with one idempotency key are the same one."""
    return hashlib.sha256(json.dumps(request.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def check_secrets(spec: RunSpec, given: Mapping[str, str]) -> None:
    if absent := sorted(set(spec.secrets) - set(given)):
        raise InvalidSpec(
            [f"`secrets`: no value for {', '.join(absent)}"],
            hint=f"set it in the environment you submit from, or pass --secret {absent[0]}=VALUE",
        )
    if extra := sorted(set(given) - set(spec.secrets)):
        raise InvalidInput(f"a value was given for {extra[0]}, which is not among the spec's `secrets`")
    if spec.checkpoint is not None and spec.checkpoint.encrypt:
        try:
            read_key(given)
        except InvalidInput as error:
            raise InvalidSpec([f"`secrets`: {error.message}"], hint=error.hint) from None


def fill_checkpoint(spec: RunSpec, by_project: Mapping[str, CheckpointSpec]) -> RunSpec:
    """With what its project wants of checkpoints, where the spec does not say. Raises InvalidSpec, such as for a secret
    that it lacks then."""
    if spec.project not in by_project:
        return spec
    usual = by_project[spec.project].model_dump(mode="json", exclude_unset=True)
    own = spec.checkpoint.model_dump(mode="json", exclude_unset=True) if spec.checkpoint else {}
    return parse_spec({**spec.model_dump(mode="json", exclude_unset=True), "checkpoint": _with_usual(own, usual)})


def _with_usual(own: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """A spec's own stores are instead of the project's; what the project says of its one store goes with it."""
    other = {"store": "stores", "stores": "store"}
    both = {**{key: value for key, value in usual.items() if other.get(key) not in own}, **own}
    if both.get("store") is None:
        both = {key: value for key, value in both.items() if key not in STORE_KEYS or key in own}
    return both


def check_engines(spec: RunSpec, known: Collection[str], access: EngineAccess) -> None:
    """`known`: the engines that this server has."""
    granted = access.of_project(spec.project)
    usable = sorted(known if granted is None else granted)
    if wrong := [name for name in spec.engine if known and name not in known]:
        raise InvalidSpec([f"`engine`: {unknown('engine', wrong[0], usable)}"])
    if wrong := [name for name in spec.engine if granted is not None and name not in granted]:
        raise InvalidSpec([f"`engine`: project {spec.project} may not use {wrong[0]}; it has {', '.join(usable)}"])


def check_queue(tx: Connection, row: Mapping[str, Any], rules: Rules) -> None:
    """`row`: of a run that is to wait too. Raises QueueFull if as many wait as may."""
    project, user = row["project"], row["user"]
    bounds = (
        (rules.most_queued_of_project.get(project), f"of project {project}", runs.c.project == project),
        (rules.most_queued_of_user if user else None, f"of user {user}", runs.c.user == user),
        (rules.most_queued, "in all", true()),
    )
    waiting = runs.c.state.in_([state for state in RunState if state.is_waiting])
    for most, whose, mine in bounds:
        if most is None:
            continue
        count = tx.execute(select(func.count()).select_from(runs).where(waiting, mine)).scalar_one()
        if count >= most:
            wait = "1 run" if count == 1 else f"{count:,} runs"
            raise QueueFull(
                f"the queue is full: {wait} {whose} {'waits' if count == 1 else 'wait'}, and {most:,} may",
                hint="try again when some have started, or cancel those that are not needed",
            )


def new_run(
    spec: RunSpec,
    kinds: Sequence[NodeKind],
    *,
    code_digest: str | None,
    origin: Mapping[str, Any],
    user: str | None,
    now: float,
    rules: Rules | None = None,
) -> dict[str, Any]:
    """The row of a new run; `kinds`: of the nodes that it may go to. Raises InvalidSpec or CannotFit."""
    spec = _with_deadline(spec, now)
    argv = fill_command(spec)
    if not argv:
        raise InvalidSpec(["`command` is empty"])
    fill_roles(spec)
    check_plan(spec, argv)
    resources = resolve_resources(spec, workers_per_node(spec, argv), [kind.node for kind in kinds])
    possible = within_limits(resources, spec.project, rules or Rules())
    if kinds and (reason := why_never(possible, kinds)):
        raise CannotFit(f"this run can never start here: it {reason}", hint="`windlass cluster` shows what there is")
    run_id = new_run_id()
    return {
        "id": run_id,
        "name": spec.name or f"{_stem(spec, argv)}-{run_id[2:6]}",
        "project": spec.project,
        "user": user,
        "state": RunState.QUEUED,
        "version": 1,
        "spec": stored_spec(spec),
        "argv": list(argv),
        "tags": dict(spec.tags),
        "seed": spec.seed if spec.seed is not None else random_source.randbelow(2**31),
        "code_digest": code_digest,
        "origin": dict(origin),
        "submitted_at": now,
        "queued_at": now,
        "priority": spec.priority.rank,
        "nodes": resources.nodes,
        "cpus": resources.cpus,
        "memory_bytes": resources.memory_bytes,
        "gpus": math.ceil(resources.gpus),
        "gpu_type": resources.gpu_type,
        "attempt_count": 0,
        "first_attempt": 1,
        "cpu_hours": 0.0,
        "gpu_hours": 0.0,
        "cost_usd": 0.0,
    }


def _with_deadline(spec: RunSpec, now: float) -> RunSpec:
    """As a moment, whichever way it was given."""
    if spec.deadline is None:
        return spec
    at = deadline_at(spec.deadline, now)
    if at <= now:
        was = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
        raise InvalidSpec([f"`deadline`: {was} has passed"], hint="give a later one, such as 12h from now, or none")
    return spec.model_copy(update={"deadline": at})


def within_limits(resources: Resources, project: str, rules: Rules) -> Resources:
    """What is left of a request's alternatives, were nothing else running. Raises CannotFit if nothing is."""
    left: list[str | None] = []
    reasons: list[str] = []
    for want in wants_of(resources, engines=None):
        reason = over_limit(want, project, rules)
        if reason is None:
            left.append(want.gpu_type)
        else:
            reasons.append(reason)
    if not left:
        raise CannotFit(
            f"this run can never start here: it {reasons[-1]}", hint="ask for less, or an administrator for more"
        )
    if resources.gpu_types and len(set(left)) < len(resources.gpu_types):
        types = tuple(name for name in resources.gpu_types if name in left)
        return replace(resources, gpu_type=types[0], gpu_types=types)
    return resources


def stored_spec(spec: RunSpec) -> dict[str, Any]:
    """Without keys that were not given and are younger than the first version: servers of a version that does not know
    them refuse them, and share the database while they are being replaced."""
    dumped = spec.model_dump(mode="json")
    if spec.checkpoint is not None:
        dumped["checkpoint"] = spec.checkpoint.model_dump(mode="json", exclude_none=True)
    if dumped["hang"] == "auto":
        del dumped["hang"]
    if dumped["preemptible"]:
        del dumped["preemptible"]
    if dumped["tensorboard"] is True:
        del dumped["tensorboard"]
    for rule in dumped["rules"]:
        for name in [name for name, value in rule.items() if value is None]:
            del rule[name]
    asked = dumped["resources"]
    dumped["resources"] = {name: asked[name] for name in asked if name not in _USUAL or asked[name] != _USUAL[name]}
    return {name: value for name, value in dumped.items() if name in _FROM_THE_BEGINNING or value not in (None, {}, [])}


def changed_spec(spec: Mapping[str, Any], changes: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """A copy of `spec` with `changes`: a param's name, `params.NAME`, or the path of any other key."""
    changed: dict[str, Any] = copy.deepcopy(dict(spec))
    changed["name"] = name
    for key, value in changes.items():
        if isinstance(changed["params"], dict) and key in changed["params"]:
            changed["params"][key] = value
            continue
        if key == GROUP:  # in place of the tag that it became
            tags = changed.get("tags")
            changed |= {
                "tags": {k: v for k, v in tags.items() if k != GROUP} if isinstance(tags, dict) else tags,
                GROUP: value,
            }
            continue
        first, _, rest = key.partition(".")
        if first not in RunSpec.model_fields:
            raise InvalidInput(unknown("key", key, [*spec["params"], *RunSpec.model_fields, GROUP]))
        parent = changed.get(first) or {}
        if rest and parent == AUTO and first == "plan":
            parent = {AUTO: True}
        if rest and not isinstance(parent, dict):
            raise InvalidInput(f"`{key}` cannot be set: `{first}` has no keys of its own")
        changed[first] = {**parent, rest: value} if rest else value
    return changed


def _stem(spec: RunSpec, argv: tuple[str, ...]) -> str:
    """A readable name for a run that was given none: the script's, else the command's."""
    words = [argv[-1].split()[0] if argv[-1].split() else "run"] if argv[:2] == ("/bin/sh", "-c") else list(argv)
    script = spec.script or spec.recipe or next((word for word in words if word.endswith(".py")), words[0])
    stem = PurePath(script).stem
    clean = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in stem).strip("._-")
    return clean[:50] or "run"
