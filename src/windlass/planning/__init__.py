"""Which plan to train with: memory and speed of every plan, reckoned beforehand. Pure; the standard library alone."""

from windlass.planning.choice import choose_plan, rank_plans
from windlass.planning.facts import ClusterFacts, ModelFacts
from windlass.planning.search import Candidate

__all__ = ["Candidate", "ClusterFacts", "ModelFacts", "choose_plan", "rank_plans"]
