"""What can be said about Slurm: the `slurm` section of a spec, and an engine in the server's config."""

from __future__ import annotations

from typing import Literal

from windlass.wire.strict import StrictModel


class SlurmOptions(StrictModel):
    """The spec's `slurm:` section; what is given here wins over the engine's defaults."""


class SlurmConfig(StrictModel):
    """An engine of this type under `engines:` in the server's config."""

    type: Literal["slurm"]
    defaults: SlurmOptions = SlurmOptions()
