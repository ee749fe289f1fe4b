"""Reading Slurm's listings, and what they mean for attempts and for the offer of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from windlass.agent.outcome import summary
from windlass.agent.remedy import NODE
from windlass.agent.watch import FROM_OUTSIDE
from windlass.core.exits import ExitReason
from windlass.engines.outcomes import exit_of
from windlass.engines.slurm.inventory import Holding, decide_inventory
from windlass.engines.slurm.observing import (
    Standing,
    explain_end,
    is_past_life,
    needs_explanation,
    view_jobs,
)
from windlass.engines.slurm.tables import (
    JOB_COLUMNS,
    NODE_COLUMNS,
    JobLife,
    JobRow,
    NodeRow,
    PastJob,
    count_gpus,
    parse_graces,
    parse_jobs,
    parse_nodes,
    parse_past_jobs,
)

NAMES = ("n1", "n2")


def listing(columns: Sequence[tuple[str, int]], *rows: Sequence[str]) -> bytes:
    lines = ["".join(value.ljust(width) for value, (_, width) in zip(row, columns, strict=True)) for row in rows]
    return ("\n".join(lines) + "\n").encode()


def node(name: str = "n1", *states: str, **facts: int) -> NodeRow:
    settings = {"cpus": 8, "cpus_used": 0, "memory_mb": 1000, "memory_used_mb": 0, **facts}
    return NodeRow(name=name, states=frozenset(states or ("idle",)), **settings)  # type: ignore[arg-type]


def view(*rows: JobRow, past: PastJob | None = None, submitted_as: str | None = "7", nodes: Sequence[NodeRow] = ()):  # type: ignore[no-untyped-def]
    return view_jobs(rows, past=past, submitted_as=submitted_as, nodes=nodes)


class TestListings:
    def test_jobs(self) -> None:
        rows = parse_jobs(
            listing(
                JOB_COLUMNS,
                ("7", "RUNNING", "None", "0", "windlass:0123:r-x.1", "n[1-2]"),
                ("8", "PENDING", "Resources", "2", "other | comment", "(null)"),
            )
        )
        assert rows[0] == JobRow(job_id="7", state="RUNNING", comment="windlass:0123:r-x.1", nodes="n[1-2]")
        assert (rows[1].reason, rows[1].restarts, rows[1].comment) == ("Resources", 2, "other | comment")

    def test_nodes_are_listed_once_per_partition_and_counted_once(self) -> None:
        gres = ("gpu:a100:4(S:0-1)", "gpu:a100:2(IDX:0,2)")
        row = ("n1", "mixed+planned", "3/4/1/8", "4000", "1000", *gres, "nvlink,rack=r1")
        found = parse_nodes(listing(NODE_COLUMNS, row, row))
        assert found == [
            NodeRow(
                name="n1",
                states=frozenset(("mixed", "planned")),
                cpus=7,
                cpus_used=3,
                memory_mb=4000,
                memory_used_mb=1000,
                gpus=4,
                gpus_used=2,
                gpu_type="a100",
                features=("nvlink", "rack=r1"),
            )
        ]

    def test_features_are_labels_and_may_say_where_a_node_stands(self) -> None:
        rows = [
            replace(node("n1"), features=("nvlink", "rack=r1", "row=a")),
            replace(node("n2"), features=("spot", "row=a")),
            node("n3"),
        ]
        found = decide_inventory("hpc", rows, [], may_use_reserved=False, topology_features=("row", "rack"))
        assert [(each.labels, each.topology, each.spot) for each in found] == [
            ({"nvlink=true", "rack=r1", "row=a"}, ("a", "r1"), False),
            ({"spot=true", "row=a"}, ("a",), True),
            (frozenset(), (), False),
        ]

    def test_switches_say_where_a_node_stands_unless_features_do(self) -> None:
        rows = [replace(node("n1"), features=("rack=r1",)), node("n2"), node("n3")]
        switches = {"n1": ("spine", "leaf1"), "n2": ("spine", "leaf2")}
        found = decide_inventory("hpc", rows, [], may_use_reserved=False, switches=switches)
        assert [each.topology for each in found] == [("spine", "leaf1"), ("spine", "leaf2"), ()]
        found = decide_inventory(
            "hpc", rows, [], may_use_reserved=False, topology_features=("rack",), switches=switches
        )
        assert found[0].topology == ("r1",)

    def test_prices_and_spot_are_by_features_and_names(self) -> None:
        rows = [
            replace(node("gpu-1"), features=("h100", "instance=p5")),
            replace(node("gpu-2"), features=("instance=p4",)),
            node("gpu-3"),
            replace(node("cpu-1"), features=("spot",)),
            node("cpu-2"),
        ]
        found = decide_inventory(
            "hpc",
            rows,
            [],
            may_use_reserved=False,
            prices={"h100": 31.2, "instance=p4": 11.0, "gpu-*": 4.0, "*-1": 0.5},
            spot_nodes=("instance=p4", "cpu-2"),
        )
        assert [each.price_per_hour for each in found] == [31.2, 11.0, 4.0, 0.5, 0.0]
        assert [each.name for each in found if each.spot] == ["gpu-2", "cpu-1", "cpu-2"]

    @pytest.mark.parametrize(
        ("gres", "expected"),
        [
            ("(null)", (0, None)),
            ("gpu:4", (4, None)),
            ("gpu:a100:8(S:0-1)", (8, "a100")),
            ("gpu:4090:2", (2, "4090")),
            ("nic:2,gpu:h100:4,gpu:v100:1(IDX:0,3),shard:7", (5, "h100")),
            ("gpu:fake:0(IDX:N/A)", (0, "fake")),
        ],
    )
    def test_gpus(self, gres: str, expected: tuple[int, str | None]) -> None:
        assert count_gpus(gres) == expected

    def test_grace_times_of_partitions(self) -> None:
        text = b"PartitionName=low Default=YES GraceTime=60 State=UP\nPartitionName=high Default=NO GraceTime=0\n"
        assert parse_graces(text) == {"low": 60, "": 60, "high": 0}

    def test_the_accounting(self) -> None:
        found = parse_past_jobs(b"7|CANCELLED by 1000|windlass-r-x.1\n8|NODE_FAIL|a|b\n")
        assert [(job.job_id, job.state, job.name) for job in found] == [
            ("7", "CANCELLED", "windlass-r-x.1"),
            ("8", "NODE_FAIL", "a|b"),
        ]


class TestJobs:
    def test_a_state_that_nobody_knows_is_unknown(self) -> None:
        assert JobRow(job_id="7", state="DREAMING").life is JobLife.UNKNOWN
        assert view(JobRow(job_id="7", state="DREAMING")).standing is Standing.UNKNOWN

    def test_waiting_says_for_what(self) -> None:
        seen = view(JobRow(job_id="7", state="PENDING", reason="Priority"))
        assert (seen.standing, seen.detail) == (Standing.WAITING, "pending in Slurm: Priority")

    def test_waiting_for_a_node_that_is_down_is_hopeless(self) -> None:
        pending = JobRow(job_id="7", state="PENDING", reason="ReqNodeNotAvail, UnavailableNodes:n2")
        seen = view(pending, nodes=[node("n1"), node("n2", "down")])
        assert (seen.standing, seen.is_hopeless, seen.down) == (Standing.WAITING, True, {"n2"})
        assert seen.message.startswith("node n2 went down before its job began")
        assert not view(pending, nodes=[node("n1"), node("n2")]).is_hopeless
        assert not view(JobRow(job_id="7", state="RUNNING"), nodes=[node("n2", "down")]).is_hopeless

    def test_of_two_jobs_the_living_one_counts(self) -> None:
        rows = (JobRow(job_id="7", state="FAILED"), JobRow(job_id="8", state="RUNNING"))
        assert view(*rows).standing is Standing.ALIVE

    @pytest.mark.parametrize(
        ("state", "reason"),
        [
            ("PREEMPTED", ExitReason.PREEMPTED),
            ("OUT_OF_MEMORY", ExitReason.OOM),
            ("TIMEOUT", ExitReason.TIMEOUT),
            ("DEADLINE", ExitReason.TIMEOUT),
            ("NODE_FAIL", ExitReason.LOST),
            ("BOOT_FAIL", ExitReason.LOST),
            ("CANCELLED", ExitReason.LOST),
            ("FAILED", ExitReason.LOST),
            ("COMPLETED", ExitReason.LOST),
        ],
    )
    def test_ends_are_translated(self, state: str, reason: ExitReason) -> None:
        seen = view(JobRow(job_id="7", state=state))
        assert (seen.standing, seen.reason) == (Standing.OVER, reason)
        assert state in seen.message
        past = view(past=PastJob(job_id="7", name="x", state=state))
        assert (past.standing, past.reason) == (Standing.OVER, reason)

    def test_the_failed_node_is_named(self) -> None:
        seen = view(JobRow(job_id="7", state="NODE_FAIL"), nodes=[node("n1"), node("n2", "down")])
        assert seen.message.startswith("node n2 failed")
        assert seen.down == {"n2"}
        unsure = view(JobRow(job_id="7", state="NODE_FAIL"), nodes=[node("n1"), node("n2")])
        assert "one of its nodes (n1, n2)" in unsure.message

    def test_what_slurm_has_forgotten_is_over_but_what_was_never_submitted_is_not(self) -> None:
        assert view().standing is Standing.OVER
        assert view(submitted_as=None).standing is Standing.UNSUBMITTED

    def test_a_job_started_again_is_another_life(self) -> None:
        status = {"job": {"job_id": "7", "restarts": 0}}
        assert is_past_life(status, view(JobRow(job_id="7", state="PENDING", restarts=1)))
        assert not is_past_life(status, view(JobRow(job_id="7", state="RUNNING", restarts=0)))
        assert not is_past_life(status, view(JobRow(job_id="8", state="RUNNING", restarts=3)))


class TestExplanations:
    ended = summary(reason="preempted", message=FROM_OUTSIDE, started_at=1.0, ended_at=2.0)

    def test_only_ends_that_nobody_asked_for_need_one(self) -> None:
        assert needs_explanation(self.ended, None)
        assert not needs_explanation(self.ended, {"kind": "preempted"})
        assert not needs_explanation({**self.ended, "reason": "completed"}, None)

    def test_a_rank_that_heeded_anothers_sigterm_needs_one_too(self) -> None:
        heeded = {**self.ended, "reason": "exit_code", "exit_code": 143, "message": "rank 2 exited with code 143"}
        assert needs_explanation(heeded, None)
        assert not needs_explanation(heeded, {"kind": "cancelled"})
        assert not needs_explanation({**heeded, "exit_code": 1}, None)
        failed = view(JobRow(job_id="7", state="NODE_FAIL"), nodes=[node("n1"), node("n2", "down")])
        told = explain_end(heeded, failed, NAMES)
        assert (told["reason"], told["trouble"]) == (ExitReason.LOST, NODE)
        assert told["message"].endswith("rank 2 exited with code 143")

    def test_slurm_knows_who_it_was(self) -> None:
        cancelled = explain_end(self.ended, view(JobRow(job_id="7", state="CANCELLED")), NAMES)
        assert cancelled["reason"] == ExitReason.LOST
        assert "by somebody else" in cancelled["message"]
        timeout = explain_end(self.ended, view(JobRow(job_id="7", state="TIMEOUT")), NAMES)
        assert timeout["reason"] == ExitReason.TIMEOUT
        assert explain_end(self.ended, view(JobRow(job_id="7", state="COMPLETED")), NAMES) == self.ended

    def test_the_node_that_is_down_is_to_blame_whoever_tells_of_it(self) -> None:
        failed = view(JobRow(job_id="7", state="NODE_FAIL"), nodes=[node("n1"), node("n2", "down")])
        told = explain_end(self.ended, failed, NAMES)
        found = exit_of([told, summary(reason="cancelled", message="", started_at=1.0, ended_at=2.0)])
        assert (found.reason, found.trouble, found.node_rank) == (ExitReason.LOST, NODE, 1)


class TestInventory:
    def test_what_others_hold_is_left_out_and_what_we_hold_is_not(self) -> None:
        row = node(cpus_used=5, memory_used_mb=600, gpus=4, gpus_used=3)
        held = [Holding(node="n1", cpus=2.0, memory_bytes=100 << 20, gpus=1)]
        (offer,) = decide_inventory("hpc", [row], held, may_use_reserved=False)
        assert (offer.cpus, offer.memory_bytes, offer.gpus) == (5.0, 500 << 20, 2)

    @pytest.mark.parametrize("state", ["down", "drain", "draining", "not_responding", "maint", "fail", "future"])
    def test_unfit_nodes_are_left_out(self, state: str) -> None:
        assert decide_inventory("hpc", [node("n1", "idle", state)], [], may_use_reserved=True) == []

    def test_reserved_nodes_are_for_those_with_a_reservation(self) -> None:
        rows = [node("n1", "idle", "reserved")]
        assert decide_inventory("hpc", rows, [], may_use_reserved=False) == []
        assert len(decide_inventory("hpc", rows, [], may_use_reserved=True)) == 1

    def test_nodes_full_of_others_jobs_are_left_out(self) -> None:
        assert decide_inventory("hpc", [node(cpus_used=8)], [], may_use_reserved=False) == []
