"""What is said of attempts that ended, and of one that is being stopped for another."""

from __future__ import annotations

from windlass.core.exits import Exit, ExitReason
from windlass.core.resources import NodeShare, Placement
from windlass.runs.records import AttemptRecord, GivingWay
from windlass.runs.types import AttemptState
from windlass.runs.why import describe_attempts

WHY = "it makes room for run r-2, which has a higher priority"


def attempt(number: int, exit: Exit | None, giving_way: GivingWay | None = None, *, gpus: int = 8) -> AttemptRecord:
    share = NodeShare(node="a", cpus=1, memory_bytes=0, gpu_indices=tuple(range(gpus)))
    return AttemptRecord(
        id=f"r-1.{number}",
        run_id="r-1",
        number=number,
        state=AttemptState.ENDED,
        engine="x",
        placement=Placement(engine="x", shares=(share,)),
        created_at=0,
        started_at=0,
        ended_at=1,
        released_at=None,
        exit=exit,
        log_dirs=(),
        environment_digest=None,
        usage=None,
        giving_way=giving_way,
    )


def test_for_whom_it_was_stopped_and_what_that_cost() -> None:
    stopped = Exit(reason=ExitReason.PREEMPTED, message=WHY)
    way = GivingWay(why=WHY, at=0, cause="priority", by="r-2", lost_gpu_s=960)
    assert describe_attempts([attempt(1, stopped, way), attempt(2, None)]) == [
        f"attempt 1 ended: preempted: {WHY} (costs about 16 min of GPU time)"
    ]
    assert describe_attempts([attempt(1, stopped, way, gpus=0)]) == [f"attempt 1 ended: preempted: {WHY}"]


def test_one_that_failed_while_it_was_being_stopped_lost_nothing_by_that() -> None:
    way = GivingWay(why=WHY, at=0, cause="priority", by="r-2", lost_gpu_s=960)
    failed = Exit(reason=ExitReason.EXIT_CODE, message="exit code 1")
    assert describe_attempts([attempt(1, failed, way)]) == ["attempt 1 ended: exit_code: exit code 1"]
