"""The Kubernetes engine: one pod per node of an attempt, watched, never polled for."""

from windlass.engines.contract import EngineContext
from windlass.engines.kubernetes.engine import KubernetesEngine
from windlass.wire.kubernetes import KubernetesConfig

__all__ = ["KubernetesEngine", "open_engine"]


def open_engine(config: KubernetesConfig, context: EngineContext) -> KubernetesEngine:
    from windlass.engines.kubernetes.api import open_api

    api = open_api(kubeconfig=config.kubeconfig, context=config.context)
    return KubernetesEngine(api, config, context)
