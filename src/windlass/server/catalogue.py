"""Every setting there is, read off the models: its place in the file, its variable, its default, what it is for. The
commented config file and the table of docs/config.md are rendered from it, so that they cannot drift. Pure.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from windlass.wire.config import ServerConfig
from windlass.wire.engines import LocalConfig
from windlass.wire.kubernetes import KubernetesConfig
from windlass.wire.ray import RayConfig
from windlass.wire.slurm import SlurmConfig

ENGINE_MODELS: tuple[type[BaseModel], ...] = (LocalConfig, RayConfig, SlurmConfig, KubernetesConfig)
_WIDTH = 116
_HEADER = """\
# Settings of a Windlass server. Everything is optional: what stands here behind a `#` is the default.
# A variable, named in brackets, wins over this file; an option of the command wins over both.
# `windlass server config` shows what a server would use, and where each value comes from.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    path: tuple[str, ...]
    default: Any  # as it is written in the file
    description: str
    structured: bool  # a mapping or a list: given in a variable as JSON

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        return "WINDLASS_" + "_".join(self.path).upper()


@lru_cache(maxsize=1)
def settings() -> tuple[Setting, ...]:
    return tuple(_settings())


def sections() -> dict[str, type[BaseModel]]:
    """The groups of settings, and the models they are of."""
    return {name: model for name, field in ServerConfig.model_fields.items() if (model := _section(field))}


def _settings() -> Iterator[Setting]:
    for name, field in ServerConfig.model_fields.items():
        if (model := _section(field)) is None:
            yield _setting((name,), field)
        else:
            for inner, inner_field in model.model_fields.items():
                yield _setting((name, inner), inner_field)


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _setting(path: tuple[str, ...], field: FieldInfo) -> Setting:
    return Setting(
        path=path,
        default=_plain(field.get_default(call_default_factory=True)),
        description=field.description or "",
        structured=get_origin(field.annotation) in (dict, list, tuple),
    )


def _plain(value: Any) -> Any:
    """As YAML and JSON have it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return list(value) if isinstance(value, tuple) else value


# ---- the file --------------------------------------------------------------------------------------------------------


def render_file() -> str:
    """The commented config file: as it is written, and with every `#` before a key removed, it gives the defaults."""
    parts = [_HEADER]
    groups = sections()
    for name in ServerConfig.model_fields:
        if name in groups:
            about = _remark(" ".join((groups[name].__doc__ or "").split()))
            inner = [setting for setting in settings() if setting.path[0] == name]
            parts.append(f"{about}{name}:\n" + "\n".join(_indented(_entry(setting)) for setting in inner))
        else:
            parts.append(_entry(next(setting for setting in settings() if setting.path == (name,))))
        if name == "engines":
            parts.append(_engine_types())
    return "\n".join(parts)


def _entry(setting: Setting) -> str:
    return f"{_remark(f'{setting.description} [{setting.variable}]')}{_off(setting.path[-1], setting.default)}"


def _off(key: str, value: Any) -> str:
    """A key and its default, behind a `#` without a space: what can be switched on."""
    if isinstance(value, dict) and value:
        return f"#{key}:\n" + "".join(f"#  {line}\n" for line in _block(value))
    return f"#{key}: {json.dumps(value, ensure_ascii=False)}\n"


def _block(value: dict[str, Any]) -> Iterator[str]:
    for key, item in value.items():
        if isinstance(item, dict) and item:
            yield f"{key}:"
            yield from (f"  {line}" for line in _block(item))
        else:
            yield f"{key}: {json.dumps(item, ensure_ascii=False)}"


def _engine_types() -> str:
    lines = ["# What each type of engine takes:\n"]
    for model in ENGINE_MODELS:
        (tag,) = get_args(model.model_fields["type"].annotation)
        lines.append(f"#   type: {tag}\n")
        for name, field in model.model_fields.items():
            if name != "type":
                default = field.get_default(call_default_factory=True)
                shown = "needed" if default is PydanticUndefined else json.dumps(_plain(default), default=str)
                text = f"{name} ({shown})" + (f": {field.description}" if field.description else "")
                lines.append(textwrap.fill(text, _WIDTH, initial_indent="#     ", subsequent_indent="#       ") + "\n")
    return "".join(lines)


def _remark(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False) + "\n"


def _indented(text: str) -> str:
    return textwrap.indent(text, "  ")


# ---- the page --------------------------------------------------------------------------------------------------------


def render_table() -> str:
    """The table of docs/config.md."""
    rows = ["| setting | variable | default | what it is for |", "|---|---|---|---|"]
    for setting in settings():
        default = "" if setting.default is None else f"`{json.dumps(setting.default, ensure_ascii=False)}`"
        text = setting.description.replace("|", "\\|")
        rows.append(f"| `{setting.name}` | `{setting.variable}` | {default} | {text} |")
    return "\n".join(rows) + "\n"
