"""What `doctor` finds, one line each, with a code that stays the same from version to version."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from windlass.wire.runs import Wire

Status = Literal["ok", "warn", "fail"]


class CheckView(Wire):
    code: str = Field(description="what was looked at, e.g. `blobs.write`; stays the same")
    name: str = Field(description="the same for people, e.g. `engine cluster`")
    status: Status
    found: str
    advice: str = ""
