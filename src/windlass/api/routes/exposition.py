"""The route that Prometheus reads."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

from fastapi import APIRouter, Response

import windlass
from windlass.api.context import Context, Services
from windlass.core.exposition import CONTENT_TYPE, Family, Sample, counter, gauge, render

router = APIRouter(tags=["server"])


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def metrics(services: Context) -> Response:
    """Runs, nodes, live runs' figures and the server itself, in Prometheus's text format."""
    return Response(render([*_server(services), *services.overview.gauges()]), media_type=CONTENT_TYPE)


def _server(services: Services) -> Iterator[Family]:
    yield gauge("windlass_info", "1, with the version as a label.", [Sample(1, {"version": windlass.__version__})])
    yield gauge("windlass_start_time_seconds", "When the server started.", [Sample(round(services.started_at, 3))])
    states = [Sample(1, {"state": services.controller_state()})]
    yield gauge("windlass_controller", "1, with the state of the controllers as a label.", states)
    if passes := services.pass_times_s():
        yield gauge("windlass_controller_pass_seconds", "How long the newest pass took.", [Sample(passes[-1])])
        yield gauge("windlass_controller_slowest_pass_seconds", "The slowest of late.", [Sample(max(passes))])
    used = resource.getrusage(resource.RUSAGE_SELF)
    yield counter("process_cpu_seconds_total", "CPU time of the server.", [Sample(used.ru_utime + used.ru_stime)])
    with open("/proc/self/statm", encoding="ascii") as statm:
        resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    yield gauge("process_resident_memory_bytes", "Resident memory of the server.", [Sample(resident)])
    yield gauge("process_open_fds", "Open files of the server.", [Sample(len(os.listdir("/proc/self/fd")))])
