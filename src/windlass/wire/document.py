"""YAML that people write: values as they expect them, and the line of every key, so that problems can be pointed at."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from windlass.core.errors import InvalidDocument, InvalidInput

KeyPath = tuple[str | int, ...]
_DEEPEST = 30


class _Loader(yaml.SafeLoader):
    """YAML as people expect it: `3e-4` is a number, a date stays text, and a key may not be given twice."""


# Per class, or every user of PyYAML in this process would get our numbers.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":float", ":timestamp"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+.0123456789"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What sort of file it is, for the words of its errors."""

    noun: str  # "spec": a spec file
    error: type[InvalidDocument]
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Parsed but not yet validated: `data`, and where each key stands."""

    name: str
    data: Any
    lines: dict[KeyPath, int]

    def line_of(self, path: Sequence[str | int]) -> str:
        """`train.yaml:7: ` for the key at `path`, or for the nearest key above it."""
        keys = tuple(path)
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return f"{self.name}:{self.lines.get(keys, 1)}: "


def read_document(path: Path, kind: Kind) -> Document:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise InvalidInput(f"the {kind.noun} file {path} cannot be read: {error.strerror}") from error
    return parse_document(text, kind, name=path.name)


def parse_document(text: str, kind: Kind, *, name: str) -> Document:
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise kind.error([f"{name}:{line}: not YAML: character {error.character!r} is not allowed"]) from None
    try:
        node = loader.get_single_node()
        lines: dict[KeyPath, int] = {}
        if node is None:
            raise kind.error([f"{name}:1: the file is empty"], hint=kind.hint)
        _note_lines(node, (), lines, name, kind)
        return Document(name=name, data=loader.construct_document(node), lines=lines)
    except yaml.MarkedYAMLError as error:
        raise kind.error([_yaml_problem(name, error, kind)]) from None
    finally:
        loader.dispose()


def parse_value(text: str) -> Any:
    """A value given on the command line, typed as in a file: `3e-4`, `true`, `[1, 2]`, `text`."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError:
        return text  # not YAML, for example `a: b: c`: then it is the text itself


def _note_lines(node: yaml.Node, path: KeyPath, lines: dict[KeyPath, int], name: str, kind: Kind) -> None:
    if len(path) > _DEEPEST:  # an alias may refer to what it is in
        raise kind.error([f"{name}:{node.start_mark.line + 1}: nested more than {_DEEPEST} levels deep"])
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # construction refuses it
            line = key.start_mark.line + 1
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise kind.error([f"{name}:{line}: key `{key.value}` is given twice; first on line {seen[key.value]}"])
            seen[key.value] = lines[*path, key.value] = line
            _note_lines(value, (*path, key.value), lines, name, kind)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[*path, index] = value.start_mark.line + 1
            _note_lines(value, (*path, index), lines, name, kind)


def _yaml_problem(name: str, error: yaml.MarkedYAMLError, kind: Kind) -> str:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    if error.context == "expected a single document in the stream":
        return f"{name}:{line}: a {kind.noun} file holds one document, but here begins another"
    return f"{name}:{line}: not YAML: {error.problem or error.context}"
