"""A submission put together: spec file, keyword arguments and secrets become one request. Reads files and the
environment, talks to no server. The spec's models take long to load, so whoever is in a hurry lets the server check.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from windlass.core.errors import InvalidInput

if TYPE_CHECKING:
    from windlass.client.specfile import SpecFile
    from windlass.wire.spec import RunSpec

Secrets = Mapping[str, str] | Iterable[str]
_STREAMS = ("/dev/fd/", "/dev/stdin", "/proc/")
# Given in both the file and the arguments, these are merged key by key; everything else is replaced.
_MERGED = ("params", "env", "tags", "resources", "retry")


class Submission(NamedTuple):
    spec: Mapping[str, Any]  # as it is sent
    code: Path | None  # the folder to snapshot
    files: Sequence[str] | None = None  # these of it and no others
    secrets: Mapping[str, str] = MappingProxyType({})

    def __repr__(self) -> str:
        return f"Submission({dict(self.spec)!r}, code={self.code!r})"  # without secrets


def assemble(
    spec: str | Path | Mapping[str, Any] | RunSpec | None,
    keys: Mapping[str, Any],
    secrets: Secrets | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    check: bool = True,
) -> Submission:
    """`keys` win over `spec`; those that are None count as not given. A path names a spec file, and `code` in it is
    relative to that file's folder. Without `check` the server is the first to validate the spec; only here can a
    problem be told with the line of the file it is on."""
    data, base, file = _base(spec)
    given = {name: value for name, value in keys.items() if value is not None}
    if "code" in given or "workdir" in given:
        base = Path.cwd()
    values, names = split_secrets(secrets)
    data = _merged(data, given)
    if names or values:
        listed = data.get("secrets") or []
        data["secrets"] = [*listed, *(name for name in (*values, *names) if name not in listed)]
    if "workdir" in given:
        data["code"] = None
    if check or not _is_plain(data):
        from windlass.wire.spec import parse_spec

        parsed = parse_spec(data, line_of=_line_of(file, given) if file else None)
        data = parsed.model_dump(mode="json", exclude_unset=True)
    folder, files = data.get("code", "."), None
    code = None if folder is None else (base / Path(folder).expanduser()).resolve()
    if data.get("recipe") is not None and code is None and data.get("workdir") is None:
        from windlass.client.recipes import package_files, package_root

        code, files = package_root(), tuple(package_files())
    else:
        data = _placed(data, code, base)
    data = _with_findings(data, code or Path(data.get("workdir") or "."))
    secret_values = _secret_values(data.get("secrets") or (), values, environ)
    return Submission(spec=data, code=code, files=files, secrets=secret_values)


def _is_plain(data: Mapping[str, Any]) -> bool:
    """Whether it is the same as JSON as it is here, and what is looked at before it is sent is of the right type."""
    if data.get("recipe") is not None or data.get("roles"):
        return False
    texts = [data.get(name) for name in ("code", "workdir", "script")]
    for value in (data.get("command"), data.get("secrets")):
        texts += value if isinstance(value, list) else [value]
    return all(text is None or isinstance(text, str) for text in texts) and _is_json(data)


def _is_json(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and _is_json(inner) for name, inner in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def _base(spec: str | Path | Mapping[str, Any] | RunSpec | None) -> tuple[dict[str, Any], Path, SpecFile | None]:
    if spec is None:
        return {}, Path.cwd(), None
    if isinstance(spec, str | Path):
        from windlass.client.specfile import read_spec_file

        path = Path(spec).expanduser()
        file = read_spec_file(path)
        data = file.data if isinstance(file.data, Mapping) else file.validate().model_dump()
        return dict(data), _folder_of(path), file
    if isinstance(spec, Mapping):
        return dict(spec), Path.cwd(), None
    return spec.model_dump(exclude_unset=True), Path.cwd(), None


def _folder_of(file: Path) -> Path:
    """Where what a spec names is looked for. A pipe lies nowhere, and what comes by stdin not in /dev."""
    place = file.absolute()
    lies_somewhere = place.is_file() and not str(place).startswith(_STREAMS)
    return place.parent if lies_somewhere else Path.cwd()


def _line_of(file: SpecFile, given: Mapping[str, Any]) -> Any:
    # A key that was given as an argument stands on no line of the file.
    return lambda path: "" if path and path[0] in given else file.line_of(path)


def _merged(data: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(data)
    for name, value in given.items():
        old = merged.get(name)
        if name in _MERGED and isinstance(old, Mapping) and isinstance(value, Mapping):
            value = {**old, **value}
        merged[name] = value
    if given.keys() & {"command", "script", "recipe"}:
        for name in ("command", "script", "recipe", "args"):
            if name not in given:
                merged.pop(name, None)
    return merged


def _placed(spec: Mapping[str, Any], code: Path | None, base: Path) -> dict[str, Any]:
    """Check what can be checked before anything is sent: the folder and the script."""
    if code is None:
        folder = (base / Path(spec.get("workdir") or ".").expanduser()).resolve()
        if not folder.is_dir():
            raise InvalidInput(f"the working folder {folder} does not exist")
        spec = {**spec, "workdir": str(folder)}
    else:
        folder = code
        if not folder.is_dir():
            raise InvalidInput(f"the code folder {folder} {'is not a folder' if folder.exists() else 'does not exist'}")
    script = spec.get("script")
    return dict(spec) if script is None else {**spec, "script": _script(script, folder)}


def _with_findings(spec: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What it trains with and which experiment it is in, if it does not say so itself: told from the command and the
    source of its script."""
    from windlass.core.chosenexperiment import chosen_experiment
    from windlass.core.frameworks import detect_framework, script_of

    argv, recipe = _words(spec), spec.get("recipe")
    script = _recipe_path(recipe) if recipe else script_of(argv)
    path = folder / script if script is not None else None
    source = path.read_bytes() if path is not None and path.is_file() else None
    found = dict(spec)
    if spec.get("framework") is None and (framework := detect_framework(argv, source)) is not None:
        found["framework"] = framework.value
    if source is not None and _may_choose(spec) and (experiment := chosen_experiment(source)) is not None:
        found["experiment"] = experiment
    return found


def _may_choose(spec: Mapping[str, Any]) -> bool:
    """Whether nobody has chosen where MLflow's client logs to."""
    from windlass.core.chosenexperiment import CHOICES, TRACKING_URI

    set_already = {*(spec.get("env") or ()), *(spec.get("secrets") or ())}
    return spec.get("experiment") is None and set_already.isdisjoint((*CHOICES, TRACKING_URI))


def _recipe_path(recipe: str) -> str:
    from windlass.core.recipes import module_of

    return f"{module_of(recipe).replace('.', '/')}.py"


def _words(spec: Mapping[str, Any]) -> list[str]:
    """About what is started: enough to find a launcher and a script in it."""
    roles = (spec.get("roles") or {}).values()
    command = spec.get("command") or next((role["command"] for role in roles if role.get("command")), None)
    if spec.get("script") is not None or command is None:
        return ["python", spec.get("script") or ""]
    return command.split() if isinstance(command, str) else list(command)


def _script(script: str, folder: Path) -> str:
    path = Path(os.path.normpath(folder / Path(script).expanduser()))
    if not path.is_relative_to(folder):
        raise InvalidInput(
            f"the script {script} is outside the code folder {folder}",
            hint="set `code` to a folder that holds it, or run in place with --no-snapshot",
        )
    if not path.is_file():
        from windlass.core.names import nearest

        known = [item.name for item in folder.glob("*.py")] if path.parent == folder else []
        guess = nearest(path.name, known)
        raise InvalidInput(
            f"the script {script} does not exist in {folder}", hint=f"did you mean {guess}?" if guess else None
        )
    return path.relative_to(folder).as_posix()


def split_secrets(secrets: Secrets | None) -> tuple[dict[str, str], list[str]]:
    """Values given by name, and names whose values are in the environment."""
    if secrets is None:
        return {}, []
    if isinstance(secrets, Mapping):
        return dict(secrets), []
    if isinstance(secrets, str):
        raise InvalidInput(f"secrets is {secrets!r}, but must be a mapping of values or a list of names")
    return {}, list(secrets)


def _secret_values(names: Sequence[str], given: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    values = {}
    missing = []
    for name in names:
        if name in given:
            values[name] = given[name]
        elif name in environ:
            values[name] = environ[name]
        else:
            missing.append(name)
    if missing:
        raise InvalidInput(
            f"no value for the secret{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
            hint=f"give it with `--secret {missing[0]}=VALUE`, or set {missing[0]} in the environment",
        )
    return values


def given_secrets(secrets: Secrets | None, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Values for a clone: only what is asked for here. The server has the rest from the original."""
    values, names = split_secrets(secrets)
    return values | _secret_values(names, values, environ)
