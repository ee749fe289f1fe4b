"""What can be said about Ray: the `ray` section of a spec, and an engine in the server's config."""

from __future__ import annotations

from typing import Literal

from windlass.wire.strict import StrictModel


class RayOptions(StrictModel):
    """The spec's `ray:` section; what is given here wins over the engine's defaults."""


class RayConfig(StrictModel):
    """An engine of this type under `engines:` in the server's config."""

    type: Literal["ray"]
    defaults: RayOptions = RayOptions()
