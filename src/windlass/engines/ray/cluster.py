"""Every call that is made to Ray, for the driver process alone: connecting, looking, creating, removing.

Calls block for as long as Ray's head is away, and the library may end the process that made them; that is why they
are not made in the server. What has no public name in Ray is read through `ray._private.state`, in `looking` alone.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray import cloudpickle
from ray.util.placement_group import PlacementGroup, get_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from windlass.engines.ray import carrier, keeper, looking
from windlass.engines.ray.requests import ActorRequest, GroupRequest
from windlass.engines.ray.tables import Tables, node_names

_NODE_ID = "ray.io/node-id"


class NodeIsGone(Exception):
    """A node that was chosen is not part of the cluster any more."""


class Cluster:
    def __init__(self, address: str, namespace: str, *, prefix: str) -> None:
        """Connects. `prefix` is what the names of this engine's groups and actors begin with."""
        self._namespace = namespace
        self._prefix = prefix
        for module in (carrier, looking):  # nothing of Windlass is installed on Ray's nodes
            cloudpickle.register_pickle_by_value(module)
        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level=logging.WARNING)
        self._read = self._reader(remote=address.startswith("ray://"))
        self._carrier = ray.remote(carrier.Carrier)

    def look(self, followed: Sequence[str] = ()) -> Tables:
        return Tables.from_json(self._read(list(followed)))

    def launch(self, request: GroupRequest) -> None:
        """Idempotent by name. Returns before anything is placed. Raises NodeIsGone."""
        ids = {name: id for id, name in node_names(self.look()).items()}
        missing = [actor.node for actor in request.actors if actor.node not in ids]
        if missing:
            raise NodeIsGone(f"node {missing[0]} is not part of the Ray cluster any more")
        group = self._find_group(request.name) or placement_group(
            [dict(actor.bundle) for actor in request.actors],
            strategy="STRICT_SPREAD" if len(request.actors) > 1 else "PACK",
            name=request.name,
            lifetime="detached",
            bundle_label_selector=[{_NODE_ID: ids[actor.node]} for actor in request.actors],
        )
        for rank, actor in enumerate(request.actors):
            self._start(request, actor, group, rank)

    def remove(self, group: str) -> None:
        """Kill the actors and give back what the group holds. Nothing happens if there is none."""
        found = self._find_group(group)
        if found is not None:
            remove_placement_group(found)  # Ray kills the actors in it
            self._await_removal(group)

    def _reader(self, *, remote: bool) -> Callable[[list[str]], Mapping[str, Any]]:
        """Ray's tables are read where there is a node: through a client, that is an actor of the cluster's own."""
        if not remote:
            watcher = looking.Watcher(self._namespace, self._prefix)
            return watcher.read
        actor = ray.remote(looking.Watcher).options(num_cpus=0).remote(self._namespace, self._prefix)
        return lambda followed: dict(ray.get(actor.read.remote(followed)))

    def _find_group(self, name: str) -> PlacementGroup | None:
        try:
            found: PlacementGroup = get_placement_group(name)
            return found
        except ValueError:  # Ray's way to say that there is none
            return None

    def _start(self, request: GroupRequest, actor: ActorRequest, group: PlacementGroup, rank: int) -> None:
        amounts = dict(actor.bundle)
        kept = list((request.runtime_env or {}).get("env_vars", {}))
        self._carrier.options(
            name=actor.name,
            namespace=self._namespace,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=0,
            num_cpus=amounts.pop("CPU", 0),
            num_gpus=amounts.pop("GPU", 0),
            memory=amounts.pop("memory", None),
            resources=amounts,
            runtime_env=dict(request.runtime_env) if request.runtime_env else None,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=rank
            ),
        ).remote(inspect.getsource(keeper), request.program, dict(actor.environ), kept)

    def _await_removal(self, group: str) -> None:
        """Removal is asynchronous; what is gone for us must be gone for the next look too."""
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline and self._find_group(group) is not None:
            time.sleep(0.005)
