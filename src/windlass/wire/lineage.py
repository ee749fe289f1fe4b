"""What came from what."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from windlass.wire.runs import Wire


class ThingKind(StrEnum):
    DATASET = "dataset"
    RUN = "run"
    CHECKPOINT = "checkpoint"
    MODEL = "model"  # as a run logged it
    VERSION = "version"  # of a registered model


class Thing(Wire):
    key: str = Field(description="what `lineage` can be asked for")
    kind: ThingKind
    title: str
    detail: str = ""


class Link(Wire):
    """`target` came from `source`."""

    source: str
    target: str
    how: str = Field(description="read by, saved, logged, registered as, copied as")


class Lineage(Wire):
    root: str
    things: list[Thing]
    links: list[Link]
    truncated: bool = Field(False, description="there is more than is shown")
