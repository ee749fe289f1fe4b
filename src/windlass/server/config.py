"""From file, environment and command line to one checked `ServerConfig`, and where each of its values came from.

An option of the command wins over a variable, a variable over the file, the file over the default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from windlass.core.errors import InvalidConfig
from windlass.core.names import nearest
from windlass.server.catalogue import Setting, sections, settings
from windlass.wire.config import ServerConfig
from windlass.wire.problems import problems_of

CONFIG_VARIABLE = "WINDLASS_CONFIG"
FILE_NAME = "config.yaml"
# What Kubernetes tells every container about a Service that is called `windlass-server` or alike.
_SERVICE_LINK = re.compile(r"_(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)$")
_SERVICE_ADDRESS = re.compile(r"^(tcp|udp|sctp)://")
_HINT = "docs/config.md lists every setting; `windlass server config` shows what is used"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a value came from, in words: `config.yaml:7`, `WINDLASS_SERVER_PORT`, `--port`, `default`."""

    kind: str  # flag, environment, file or default
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    config: ServerConfig
    origins: Mapping[tuple[str, ...], Origin]
    path: Path | None  # of the file, if there is one


@dataclass(slots=True)
class _Gathered:
    """What the layers say so far; later layers replace what earlier ones said."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[tuple[str, ...], Origin] = field(default_factory=dict)

    def put(self, path: tuple[str, ...], value: Any, origin: Origin) -> None:
        here = self.data
        for part in path[:-1]:
            here = here.setdefault(part, {})
        here[path[-1]] = value
        self.origins[path] = origin


def find_file(given: Path | None, environ: Mapping[str, str], home: Path) -> Path | None:
    """The file to read: named by option or variable (then it must be there), else the home's own if there is one."""
    if given is not None:
        return given
    if named := environ.get(CONFIG_VARIABLE):
        return Path(named).expanduser()
    own = home / FILE_NAME
    return own if own.is_file() else None


def load_config(
    environ: Mapping[str, str],
    *,
    home: Path,
    file: Path | None = None,
    flags: Mapping[tuple[str, ...], tuple[str, Any]] | None = None,
) -> LoadedConfig:
    """`flags`: by setting, the option's name and its value. Raises InvalidConfig with every problem and its place."""
    environ = _without_service_links(environ)
    gathered = _Gathered()
    path = find_file(file, environ, home)
    lines = _read_file(path, gathered) if path else {}
    problems = _unknown_variables(environ)
    _read_environ(environ, gathered)
    for setting, (option, value) in (flags or {}).items():
        gathered.put(setting, value, Origin(kind="flag", text=option))
    try:
        config = ServerConfig.model_validate(gathered.data)
    except ValidationError as invalid:

        def where(found: tuple[str | int, ...]) -> str:
            return _place(found, gathered.origins, lines)

        problems += problems_of(invalid, ServerConfig, gathered.data, where=where)
    if problems:
        raise InvalidConfig(problems, hint=_HINT)
    return LoadedConfig(config=config, origins=gathered.origins, path=path)


def _read_file(path: Path, gathered: _Gathered) -> dict[tuple[str | int, ...], str]:
    """The file's values into `gathered`; returns the place of every key."""
    from windlass.wire.document import Kind, read_document  # YAML takes a while to import, and many servers have none

    document = read_document(path, Kind(noun="config", error=InvalidConfig, hint="`windlass server init` writes one"))
    data = document.data
    if not isinstance(data, Mapping):
        raise InvalidConfig([f"{document.name}:1: a config is a mapping of keys, not {type(data).__name__}"])
    groups = sections()
    for name, value in data.items():
        line = document.line_of((name,)).removesuffix(": ")
        if name in groups and value is None:
            continue  # all its settings are commented out
        if name in groups and isinstance(value, Mapping):
            for inner, item in value.items():
                origin = Origin(kind="file", text=document.line_of((name, inner)).removesuffix(": "))
                gathered.put((name, inner), item, origin)
        else:
            gathered.put((name,), value, Origin(kind="file", text=line))
    return {keys: document.line_of(keys) for keys in document.lines}


def _place(
    found: tuple[str | int, ...], origins: Mapping[tuple[str, ...], Origin], lines: Mapping[tuple[str | int, ...], str]
) -> str:
    """What stands before a problem: the line of the key itself if its setting is from the file, else the variable."""
    for end in range(len(found), 0, -1):
        origin = origins.get(tuple(str(part) for part in found[:end]))
        if origin is not None and origin.kind == "file":
            keys = found
            while keys not in lines and len(keys) > end:
                keys = keys[:-1]
            return lines.get(keys, f"{origin.text}: ")
        if origin is not None:
            return f"{origin.text}: "
    return ""


# ---- the environment -------------------------------------------------------------------------------------------------


def _without_service_links(environ: Mapping[str, str]) -> dict[str, str]:
    return {
        name: text
        for name, text in environ.items()
        if not (
            name.startswith("WINDLASS_")
            and (_SERVICE_LINK.search(name) or (name.endswith("_PORT") and _SERVICE_ADDRESS.match(text)))
        )
    }


def _read_environ(environ: Mapping[str, str], gathered: _Gathered) -> None:
    """An empty variable counts as none: tools that fill in templates leave such behind."""
    _read_older_names(environ, gathered)
    for setting in settings():
        if text := environ.get(setting.variable):
            gathered.put(setting.path, _value(setting, text), Origin(kind="environment", text=setting.variable))
    _read_local_engine(environ, gathered)


def _value(setting: Setting, text: str) -> Any:
    if not setting.structured:
        return text
    from windlass.wire.document import parse_value

    return parse_value(text)


def _read_older_names(environ: Mapping[str, str], gathered: _Gathered) -> None:
    """WINDLASS_CPU_PRICE=0.03 and WINDLASS_GPU_PRICES=h100=2.1,a100=1.2."""
    if text := environ.get("WINDLASS_CPU_PRICE"):
        gathered.put(("prices", "cpu"), text, Origin(kind="environment", text="WINDLASS_CPU_PRICE"))
    if text := environ.get("WINDLASS_GPU_PRICES"):
        pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
        value = {name.strip(): price.strip() for name, _, price in pairs}
        gathered.put(("prices", "gpu"), value, Origin(kind="environment", text="WINDLASS_GPU_PRICES"))


def _read_local_engine(environ: Mapping[str, str], gathered: _Gathered) -> None:
    """WINDLASS_LOCAL_NODES and WINDLASS_WARM: for every local engine there is."""
    given = {"nodes": environ.get("WINDLASS_LOCAL_NODES"), "warm": environ.get("WINDLASS_WARM")}
    given = {key: value for key, value in given.items() if value}
    if not given:
        return
    engines = gathered.data.get("engines", {"local": {"type": "local"}})
    if not isinstance(engines, Mapping):
        return  # refused for what it is
    names = [name for name, engine in engines.items() if isinstance(engine, Mapping) and engine.get("type") == "local"]
    changed = {name: {**engine, **given} if name in names else engine for name, engine in engines.items()}
    variables = {"nodes": "WINDLASS_LOCAL_NODES", "warm": "WINDLASS_WARM"}
    gathered.data["engines"] = changed
    gathered.origins.setdefault(("engines",), Origin(kind="environment", text=variables[next(iter(given))]))
    for name in names:
        for key in given:
            origin = Origin(kind="environment", text=variables[key])
            gathered.origins["engines", str(name), key] = origin


def _unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """A variable that begins as those of a section do and is none of them is a slip of the pen."""
    known = {setting.variable for setting in settings()}
    prefixes = tuple(f"WINDLASS_{name.upper()}_" for name in sections())
    found = []
    for name in sorted(environ):
        if name.startswith(prefixes) and name not in known and environ[name]:
            guess = nearest(name.lower(), [variable.lower() for variable in known])
            found.append(f"unknown variable {name}" + (f"; did you mean {guess.upper()}?" if guess else ""))
    return found
