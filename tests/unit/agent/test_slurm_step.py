"""What a supervisor makes of the environment that Slurm gives it."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from windlass.agent import rendezvous, step
from windlass.agent.command import CannotStart
from windlass.agent.environ import allotted_devices
from windlass.agent.files import write_json


def test_a_task_finds_its_node_by_name(tmp_path: Path) -> None:
    assert step.node_dir(str(tmp_path), {"SLURMD_NODENAME": "n1"}) is None  # released, or never written
    (tmp_path / "node-0").mkdir()
    write_json(str(tmp_path / "node-0" / "plan.json"), {"node_names": ["n7", "n3"]})
    assert step.node_dir(str(tmp_path), {"SLURMD_NODENAME": "n3"}) == str(tmp_path / "node-1")
    assert step.node_dir(str(tmp_path), {"SLURMD_NODENAME": "n4"}) is None


def test_secrets_are_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(step.SECRETS, json.dumps({"KEY": "a\nb"}))
    assert step.take_secrets(os.environ) == {"KEY": "a\nb"}
    assert step.take_secrets(os.environ) == {}


def test_lives_of_a_job_are_counted() -> None:
    assert step.job_life({"SLURM_JOB_ID": "7"}) == {"job_id": "7", "restarts": 0}
    assert step.job_life({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"}) == {"job_id": "7", "restarts": 2}


@pytest.mark.parametrize(
    ("environ", "count", "indices", "visible"),
    [
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, 2, [2, 3], "2,3"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-5ebe,GPU-77aa"}, 2, [], "GPU-5ebe,GPU-77aa"),
        ({}, 2, [0, 1], None),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2"}, 0, [], ""),
    ],
)
def test_devices_are_the_clusters_choice(
    environ: dict[str, str], count: int, indices: list[int], visible: str | None
) -> None:
    found = allotted_devices(environ, count)
    assert found["gpu_indices"] == indices
    assert found["device_env"].get("CUDA_VISIBLE_DEVICES") == visible


def test_the_address_is_the_side_that_faces_the_first_node() -> None:
    assert rendezvous.own_address({"WINDLASS_NODE_ADDR": "10.0.0.7"}) == "10.0.0.7"
    assert rendezvous.own_address({"SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}) == "127.0.0.1"
    assert rendezvous.own_address({})


class TestMeeting:
    def plan(self, folder: Path, rank: int, patience_s: float = 20.0) -> dict[str, object]:
        node_dir = folder / f"node-{rank}"
        node_dir.mkdir(exist_ok=True)
        return {
            "rendezvous": {"folder": str(folder / "rendezvous"), "patience_s": patience_s},
            "node_rank": rank,
            "nnodes": 3,
            "node_names": ["a", "b", "c"],
            "node_dir": str(node_dir),
        }

    def test_all_learn_the_same(self, tmp_path: Path) -> None:
        read, write = os.pipe()
        plans = [self.plan(tmp_path, rank) for rank in range(3)]
        threads = [
            threading.Thread(target=rendezvous.meet, args=(plan, 5000 + rank, read)) for rank, plan in enumerate(plans)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [plan["master_port"] for plan in plans] == [5000, 5000, 5000]
        assert all(plan["node_addrs"] == plans[0]["node_addrs"] for plan in plans)
        os.close(read)
        os.close(write)

    def test_those_who_do_not_come_are_named(self, tmp_path: Path) -> None:
        read, write = os.pipe()
        with pytest.raises(CannotStart, match="no sign of b, c"):
            rendezvous.meet(self.plan(tmp_path, 0, patience_s=0.2), 5000, read)
        os.close(read)
        os.close(write)

    def test_a_wish_to_stop_ends_the_waiting(self, tmp_path: Path) -> None:
        read, write = os.pipe()
        plan = self.plan(tmp_path, 0)
        (tmp_path / "node-0" / "stop.json").write_text("{}")
        assert not rendezvous.meet(plan, 5000, read)
        os.close(read)
        os.close(write)
