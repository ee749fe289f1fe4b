"""Which plan to train with: memory and speed of every plan, reckoned beforehand. Pure; the standard library alone."""

from windlass.planning.choice import choose_plan
from windlass.planning.facts import ClusterFacts, ModelFacts

__all__ = ["ClusterFacts", "ModelFacts", "choose_plan"]
