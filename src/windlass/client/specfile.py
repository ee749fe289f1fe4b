"""Spec files: YAML that is a run's spec, with problems pointed at by line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.core.errors import InvalidSpec
from windlass.wire.document import Document, Kind, parse_document, parse_value, read_document

if TYPE_CHECKING:
    from windlass.wire.spec import RunSpec

__all__ = ["SpecFile", "parse_spec_text", "parse_value", "read_spec_file"]

_SPEC = Kind(noun="spec", error=InvalidSpec, hint="docs/spec.md shows what a spec looks like")


@dataclass(frozen=True, slots=True)
class SpecFile:
    """A parsed but not yet validated file."""

    document: Document

    @property
    def data(self) -> Any:
        return self.document.data

    def line_of(self, path: Sequence[str | int]) -> str:
        return self.document.line_of(path)

    def validate(self) -> RunSpec:
        from windlass.wire.spec import parse_spec

        return parse_spec(self.data, line_of=self.line_of)


def read_spec_file(path: Path) -> SpecFile:
    return SpecFile(read_document(path, _SPEC))


def parse_spec_text(text: str, *, name: str = "spec") -> SpecFile:
    return SpecFile(parse_document(text, _SPEC, name=name))
