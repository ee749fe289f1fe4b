"""From a spec to what is started: params filled in, shell or not, how many processes, which request. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from windlass.core import recipes
from windlass.core.accelerators import tpu
from windlass.core.errors import InvalidInput, InvalidSpec
from windlass.core.names import nearest
from windlass.core.plan import InvalidPlan
from windlass.core.resources import Node, Resources
from windlass.core.roles import Role
from windlass.core.wanted import parse_wanted
from windlass.wire.gang import is_essential
from windlass.wire.spec import RunSpec

_PARAM = re.compile(r"\$(\$?)\{([^}]*)\}")
# Anything that only a shell understands. Without it the command is started directly: no shell between us and it.
_SHELL_SYNTAX = re.compile(
    r"[|&;<>()`\n*?\[\]#~{}$!]|^\s*\w+=|^\s*(cd|export|source|set|exec|if|for|while|test|ulimit)\b"
)
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "horovodrun", "srun"})
_LAUNCHER_MODULES = frozenset({"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"})


def fill_command(spec: RunSpec) -> tuple[str, ...]:
    """The argument list that is started, once per process; with roles, that of the first one."""
    if spec.script is not None:
        return ("python", _fill(spec.script, spec), *(_fill(arg, spec) for arg in spec.args))
    if spec.recipe is not None:
        return ("python", "-m", recipes.module_of(spec.recipe), *(_fill(arg, spec) for arg in spec.args))
    if spec.command is not None:
        return _fill_command(spec.command, spec, "command")
    return fill_roles(spec)[0].argv  # RunSpec has one or the other


def fill_roles(spec: RunSpec) -> tuple[Role, ...]:
    return tuple(
        Role(
            name=name,
            count=role.count,
            argv=fill_command(spec) if role.command is None else _fill_command(role.command, spec, f"roles.{name}"),
            essential=is_essential(name, role),
        )
        for name, role in spec.roles.items()
    )


def _fill_command(command: str | list[str], spec: RunSpec, key: str) -> tuple[str, ...]:
    if isinstance(command, list):
        return tuple(_fill(part, spec) for part in command)
    text = _fill(command, spec, quote=shlex.quote)
    if _SHELL_SYNTAX.search(_outside_quotes(text)):
        return ("/bin/sh", "-c", text)
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise InvalidSpec([f"`{key}`: {error} in {command!r}"]) from error


def check_recipe(spec: RunSpec) -> None:
    """InvalidSpec for what its recipe would refuse: params, and a plan or processes that its model or batch cannot be
    spread by. Scripts take what they like."""
    if spec.recipe is None:
        return
    recipe, params = spec.recipe, spec.params
    try:
        recipes.check_params(recipe, params)
    except InvalidInput as error:
        raise InvalidSpec([f"`params`: {error.message}"], hint=error.hint) from error
    if not spec.roles:
        argv, wanted = fill_command(spec), parse_wanted(spec.plan)
        check_plan(spec, argv)
        _check_sizes(spec, argv, lambda size: recipes.check_fit(recipe, params, wanted, size))


def check_plan(spec: RunSpec, argv: tuple[str, ...]) -> None:
    """InvalidSpec if the run's processes cannot form the mesh of its plan, with the numbers that would."""
    if spec.plan is not None:
        advice = ": leave out `data`, and let each node hold whole copies of the model"
        _check_sizes(spec, argv, parse_wanted(spec.plan).check_size, advice)


def _check_sizes(spec: RunSpec, argv: tuple[str, ...], check: Callable[[int], None], advice: str = "") -> None:
    """InvalidSpec for the first number of processes for which `check` raises InvalidPlan. An elastic run may be on any
    number of nodes of its range, and with any number of GPUs of theirs, so all of them must do."""
    elastic, resources = spec.elastic, spec.resources
    counts = range(elastic.min_nodes, elastic.max_nodes + 1) if elastic else (resources.nodes,)
    amounts = range(resources.min_gpus, int(resources.gpus) + 1) if resources.min_gpus else (resources.gpus,)
    sizes = sorted({(nodes, workers_per_node(spec, argv, gpus=gpus)) for nodes in counts for gpus in amounts})
    for nodes, workers in sizes:
        try:
            check(nodes * workers)
        except InvalidPlan as error:
            hint = f"processes are nodes × nproc, here {nodes} × {workers}"
            if elastic:
                hint += f"; an elastic run may be on {elastic.min_nodes} to {elastic.max_nodes} nodes{advice}"
            elif len(sizes) > 1:
                hint += f"; a run with a range of GPUs may have {resources.min_gpus} to {resources.gpus:g} on a node"
            hint = f"{error.hint}; {hint}" if error.hint else hint
            key = "params" if spec.plan is None else "plan"
            raise InvalidSpec([f"`{key}`: {error.message}"], hint=hint) from error


def is_self_launching(argv: tuple[str, ...]) -> bool:
    """Whether the command is a launcher that starts the node's processes itself."""
    if PurePath(argv[0]).name in _LAUNCHERS:
        return True
    if PurePath(argv[0]).name.startswith("python") and "-m" in argv[1:-1]:
        return argv[argv.index("-m") + 1] in _LAUNCHER_MODULES
    if argv[:2] == ("/bin/sh", "-c"):
        words = argv[2].replace("\n", " ").split()
        return any(PurePath(word).name in _LAUNCHERS for word in words)
    return False


def workers_per_node(spec: RunSpec, argv: tuple[str, ...], *, gpus: float | None = None) -> int:
    """One process per GPU, unless the spec says otherwise or a shell line wants to be run just once; one for all TPUs
    of a node, as their libraries have it. `gpus`: how many it was given of a range; None: all."""
    if spec.roles:
        return sum(role.count for role in spec.roles.values()) // spec.resources.nodes
    if spec.nproc is not None:
        return spec.nproc
    if argv[:2] == ("/bin/sh", "-c") and not is_self_launching(argv):
        return 1
    given = spec.resources.gpus if gpus is None or spec.resources.min_gpus is None else gpus
    return max(1, int(given))


def resolve_resources(spec: RunSpec, workers: int, nodes: list[Node]) -> Resources:
    """What is asked of each node. CPUs nobody asked for are one per process, but never more than a node has."""
    cpus = spec.resources.cpus
    if cpus is None:
        cpus = float(min([workers, *([max(node.cpus for node in nodes)] if nodes else [])]))
    kept = Resources(nodes=spec.resources.nodes, cpus=cpus, memory_bytes=spec.resources.memory or 0)
    return whole_request(kept, spec.model_dump(mode="json", include={"resources"}))


def whole_request(kept: Resources, spec: Mapping[str, Any]) -> Resources:
    """With what a run's spec, as it is stored, says beyond the columns of its row. Those are what servers of the
    version before go by: the first of its types, all GPUs of a range, a whole one instead of a part."""
    asked = spec.get("resources") or {}
    tpus = asked.get("tpus", 0)
    types = asked.get("tpu_type" if tpus else "gpu_type")
    if tpus:
        types = [tpu(name) for name in types] if isinstance(types, list | tuple) else tpu(types)
    several = tuple(types) if isinstance(types, list | tuple) else ()
    return replace(
        kept,
        gpus=tpus or asked.get("gpus", kept.gpus),
        gpu_type=several[0] if several else types,
        gpu_types=several,
        least_gpus=asked.get("min_gpus"),
        labels=frozenset(f"{key}={value}" for key, value in (asked.get("labels") or {}).items()),
        spot_ok=asked.get("spot", True),
    )


def params_json(params: Mapping[str, Any]) -> str:
    return json.dumps(params, sort_keys=True)


def _fill(text: str, spec: RunSpec, quote: Any = str) -> str:
    def value_of(match: re.Match[str]) -> str:
        escaped, name = match.groups()
        if escaped:
            return f"${{{name}}}"
        if name in spec.params:
            return str(quote(_plain(spec.params[name])))
        if name in spec.env:
            return str(quote(spec.env[name]))
        guess = nearest(name, spec.params)
        options = f"did you mean ${{{guess}}}? " if guess else f"params: {', '.join(sorted(spec.params)) or 'none'}; "
        escape = f"write $${{{name}}} for a shell variable"
        raise InvalidSpec([f"`${{{name}}}` in the command is not a param of this run; {options}{escape}"])

    return _PARAM.sub(value_of, text)


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool | list | dict):
        return json.dumps(value)
    return repr(value) if isinstance(value, float) else str(value)


def _outside_quotes(text: str) -> str:
    """The text without what is quoted: there, shell characters are only characters. Double quotes still expand `$`."""
    without_single = re.sub(r"'[^']*'", "", text)
    return re.sub(
        r'"((?:[^"\\]|\\.)*)"', lambda match: "$" if re.search(r"[$`]", match.group(1)) else "", without_single
    )
