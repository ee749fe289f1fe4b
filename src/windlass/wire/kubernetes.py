"""What can be said about Kubernetes: the `kubernetes` section of a spec, and an engine in the server's config."""

from __future__ import annotations

from typing import Literal

from windlass.wire.strict import StrictModel


class KubernetesOptions(StrictModel):
    """The spec's `kubernetes:` section; what is given here wins over the engine's defaults."""


class KubernetesConfig(StrictModel):
    """An engine of this type under `engines:` in the server's config."""

    type: Literal["kubernetes"]
    defaults: KubernetesOptions = KubernetesOptions()
