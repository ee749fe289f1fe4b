"""When a node that reports over HTTP counts as silent: after several reports that did not come, never after one. Pure.

Silence alone is no end, of course: only together with what the node's cluster says of it.
"""

from __future__ import annotations

from windlass.engines.contract import NodeReport

MISSED = 3  # reports in a row. With many nodes each reports rarely, so that the time is not the same everywhere


def patience_s(report: NodeReport, least_s: float) -> float:
    """How long nothing need have been heard of a node that is well."""
    return max(least_s, MISSED * report.beat_s)
