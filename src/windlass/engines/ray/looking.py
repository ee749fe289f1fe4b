"""Reading Ray's tables, in the driver or, for a driver that is only a client, in an actor of the cluster.

Sent by value like `carrier`: standard library and Ray only. Ray remembers dead actors by the ten thousand, so all of
them are read once, and from then on only those that live and those that have just stopped living.
"""

from __future__ import annotations

from typing import Any

_NOT_DEAD = ("DEPENDENCIES_UNREADY", "PENDING_CREATION", "ALIVE", "RESTARTING")
_LONGEST_DEATH = 500


class Watcher:
    def __init__(self, namespace: str, prefix: str) -> None:
        self._namespace = namespace
        self._prefix = prefix
        self._dead: dict[str, dict[str, Any]] | None = None  # by name
        self._living: set[str] = set()  # actor ids, at the last look

    def read(self, followed: list[str]) -> dict[str, Any]:
        """The JSON of `tables.Tables`; of dead actors, only those of the followed groups."""
        groups = self._groups()
        wanted = set(followed)
        actors = {
            name: actor
            for name, actor in self._actors().items()
            if actor["state"] != "DEAD" or name.rpartition(":")[0] in wanted
        }
        nodes = self._nodes({actor["node_id"] for actor in actors.values()})
        return {"nodes": nodes, "groups": groups, "actors": actors, "followed": followed}

    def _actors(self) -> dict[str, dict[str, Any]]:
        from ray._private import state

        if self._dead is None:
            self._dead = {}
            for found in state.actors(None, None, "DEAD").values():
                self._bury(found)
        living = {}
        for name in _NOT_DEAD:
            living.update(state.actors(None, None, name))
        ours = {id: found for id, found in living.items() if found["Name"].startswith(self._prefix)}
        for id in self._living - ours.keys():
            if found := state.actors(id):
                self._bury(found)
        self._living = set(ours)
        return {**self._dead, **{found["Name"]: _actor(found) for found in ours.values()}}

    def _bury(self, found: dict[str, Any]) -> None:
        assert self._dead is not None
        name = found["Name"]
        if name.startswith(self._prefix):
            earlier = self._dead.get(name)
            actor = _actor(found)
            if earlier is None or (earlier["ended_at"] or 0) <= (actor["ended_at"] or 0):
                self._dead[name] = actor

    def _groups(self) -> dict[str, dict[str, Any]]:
        from ray.util.placement_group import placement_group_table

        return {
            found["name"]: {
                "name": found["name"],
                "state": found["state"],
                "bundles": [
                    [found["bundles_to_node_id"].get(index, ""), amounts]
                    for index, amounts in sorted(found["bundles"].items())
                ],
            }
            for found in placement_group_table().values()
            if found["name"].startswith(self._prefix) and found["state"] != "REMOVED"
        }

    def _nodes(self, used: set[str]) -> list[dict[str, Any]]:
        import ray
        from ray._private import state

        draining = state.state.get_draining_nodes()
        available = state.available_resources_per_node()
        return [
            {
                "id": node["NodeID"],
                "name": node.get("NodeName") or node["NodeManagerAddress"],
                "total": node["Resources"],
                "available": available.get(node["NodeID"], {}),
                "labels": node.get("Labels") or {},
                "alive": node["Alive"],
                "draining": node["NodeID"] in draining,
                "drain_deadline": (draining.get(node["NodeID"]) or 0) / 1000 or None,
            }
            for node in ray.nodes()
            if node["Alive"] or node["NodeID"] in used
        ]


def _actor(found: dict[str, Any]) -> dict[str, Any]:
    node_id = found["Address"]["NodeID"]
    cause, death = _death(found["DeathCause"])
    return {
        "name": found["Name"],
        "state": found["State"],
        "node_id": node_id if node_id.strip("f") else "",  # not placed yet
        "ended_at": found["EndTime"] / 1000 or None,
        "cause": cause,
        "death": death[:_LONGEST_DEATH],
    }


def _death(found: Any) -> tuple[str, str]:
    """Which kind of death, and Ray's sentence about it."""
    kind = found.WhichOneof("context")
    if kind is None:
        return "", ""
    context = getattr(found, kind)
    text = getattr(context, "error_message", "") or getattr(context, "formatted_exception_string", "") or kind
    cause = kind.removesuffix("_context")
    if kind == "actor_died_error_context" and context.HasField("node_death_info"):
        information = context.node_death_info
        cause = type(information).Reason.Name(information.reason).lower()
        text = information.reason_message or text
    return cause, " ".join(str(text).split())
