"""Orders to compare with, on one pool of GPUs without nodes: first come first served, strictly and with those behind
going ahead if they fit; and the shortest remaining GPU time first, for whoever knows it, with free preemption, which no
order that must learn can be expected to beat.

They do not go through the scheduler: they are the yardsticks.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from windlass.simulation.trace import Trace


def clairvoyant(trace: Trace, gpus: int) -> list[float]:
    """When each job ends, in the order of the trace."""
    jobs = trace.jobs
    size = [job.gpus for job in jobs]
    left = [job.gpu_seconds for job in jobs]  # GPU time, as of `since`
    ends = [0.0] * len(jobs)
    active: list[int] = []
    running: set[int] = set()
    since, coming, done = 0.0, 0, 0
    while done < len(jobs):
        soonest = min((since + left[job] / size[job] for job in running), default=float("inf"))
        now = min(soonest, jobs[coming].at) if coming < len(jobs) else soonest
        passed = now - since
        since = now
        for job in running:
            left[job] -= passed * size[job]
        for job in [job for job in running if left[job] <= 1e-6 * size[job]]:
            ends[job] = now
            running.discard(job)
            active.remove(job)
            done += 1
        while coming < len(jobs) and jobs[coming].at <= now:
            active.append(coming)
            coming += 1
        active.sort(key=left.__getitem__)
        free = gpus
        running.clear()
        for job in active:
            if size[job] <= free:
                free -= size[job]
                running.add(job)
                if not free:
                    break
    return ends


def first_come(trace: Trace, gpus: int, *, backfill: bool) -> list[float]:
    """When each job ends. With `backfill` whatever fits starts, the oldest first, and nobody's room is kept."""
    jobs = trace.jobs
    ends = [0.0] * len(jobs)
    queues: dict[int, deque[int]] = {}  # by size if they may overtake, else all in one
    going: list[tuple[float, int]] = []
    free, coming = gpus, 0
    while coming < len(jobs) or going:
        now = min(going[0][0] if going else float("inf"), jobs[coming].at if coming < len(jobs) else float("inf"))
        while going and going[0][0] <= now:
            free += jobs[heappop(going)[1]].gpus
        while coming < len(jobs) and jobs[coming].at <= now:
            queues.setdefault(jobs[coming].gpus if backfill else 0, deque()).append(coming)
            coming += 1
        while True:
            heads = [queue[0] for queue in queues.values() if queue and jobs[queue[0]].gpus <= free]
            if not heads:
                break
            job = min(heads)
            queues[jobs[job].gpus if backfill else 0].popleft()
            free -= jobs[job].gpus
            ends[job] = now + jobs[job].seconds
            heappush(going, (ends[job], job))
    return ends
