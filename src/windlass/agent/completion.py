"""What a node adds to the plan that it was given: its folders, addresses, devices and environment. Pure."""

from __future__ import annotations

import os
from typing import Any, Mapping, NamedTuple, Sequence

from .environ import allotted_devices, inherited_environment
from .fetch import blob_path


class Folders(NamedTuple):
    """Where an attempt's node works. With a home that stays, a run's working folder outlives its attempts."""

    home: str
    run: str
    node: str

    @property
    def blobs(self) -> str:
        return os.path.join(self.home, "blobs")


def folders_in(home: str, plan: Mapping[str, Any]) -> Folders:
    run = os.path.join(home, "runs", str(plan["run_id"]))
    return Folders(home, run, os.path.join(run, "attempts", str(plan["attempt"]), "node-%d" % plan["node_rank"]))


def complete_plan(
    welcome: Mapping[str, Any],
    folders: Folders,
    *,
    environ: Mapping[str, str],
    devices: Sequence[Mapping[str, Any]],
    notify_socket: str | None,
) -> dict[str, Any]:
    """The plan as a supervisor wants it. `devices` are those that the driver shows on this node."""
    plan = dict(welcome["plan"])
    digest = plan.pop("code_digest", None)
    allotted = allotted_devices(environ, int(plan["gpus"]))
    plan.update(
        env={**inherited_environment(environ), **plan["env"]},
        node_dir=folders.node,
        run_dir=folders.run,
        workdir=plan["workdir"] or os.path.join(folders.run, "work"),
        code={"manifest": blob_path(folders.blobs, digest), "blobs": folders.blobs} if digest else None,
        cache_dir=os.path.join(folders.home, "cache"),
        master_addr=welcome["master_addr"],
        master_port=int(welcome["master_port"]),
        node_addrs=list(welcome["node_addrs"]),
        gpu_count=int(plan["gpus"]),
        gpus=[dict(device) for device in devices if device["index"] in allotted["gpu_indices"]],
        node_gpus=len(devices),
        notify_socket=notify_socket,
        **allotted,
    )
    return plan
