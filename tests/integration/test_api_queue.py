"""The cluster and its queue over HTTP, on each kind of database."""

from __future__ import annotations

import time

from httpx import Client

from tests.integration.api_calls import SPEC, error_of, submit
from windlass.core.resources import Node, NodeShare, Placement
from windlass.db.database import Database
from windlass.runs.store import insert_attempts, load_runs, load_runs_in
from windlass.runs.tables import runs
from windlass.runs.types import RunState
from windlass.scheduling.nodes import commit_nodes


def test_a_run_that_cannot_fit_is_refused_with_what_there_is(api: Client, database_url: str) -> None:
    db = Database(database_url)
    with db.write() as tx:
        commit_nodes(tx, "fake", [Node(engine="fake", name="n", cpus=4, memory_bytes=10**9)], now=1.0)
    db.close()
    answer = api.post("/api/runs", json={"spec": {**SPEC, "resources": {"gpus": 8}}})
    assert "the largest node (n) has 4 CPU" in error_of(answer, 422, "cannot_fit")["message"]
    [node] = api.get("/api/cluster").json()["nodes"]
    assert (node["name"], node["cpus_used"], node["runs"]) == ("n", 0, [])


def test_a_node_is_set_aside_and_given_back(api: Client, database_url: str) -> None:
    db = Database(database_url)
    with db.write() as tx:
        for engine in ("x", "y"):
            commit_nodes(tx, engine, [Node(engine=engine, name="n", cpus=4, memory_bytes=10**9)], now=1.0)
    db.close()
    assert (
        "several engines: x, y"
        in error_of(api.post("/api/cluster/set-aside", json={"node": "n"}), 409, "ambiguous")["message"]
    )
    error_of(api.post("/api/cluster/set-aside", json={"node": "m", "engine": "x"}), 404, "not_found")
    wanted = {"node": "n", "engine": "x", "for_s": 3600, "reason": "a new fan"}
    done = api.post("/api/cluster/set-aside", json=wanted).json()
    assert (done["reason"], done["until"] - done["since"], done["by_hand"]) == ("a new fan", 3600, True)
    assert api.get("/api/cluster").json()["set_aside"] == [done]
    back = api.post("/api/cluster/give-back", json={"node": "n", "engine": "x"}).json()
    assert back == done
    assert api.get("/api/cluster").json()["set_aside"] == []
    error_of(api.post("/api/cluster/give-back", json={"node": "n", "engine": "x"}), 409, "conflict")


def test_the_queue_is_shown_in_its_order_with_reasons(api: Client, database_url: str) -> None:
    assert api.get("/api/queue").json() == {"total": 0, "entries": [], "projects": []}
    db = Database(database_url)
    with db.write() as tx:
        commit_nodes(tx, "fake", [Node(engine="fake", name="n", cpus=4, memory_bytes=10**9)], now=1.0)
    large = submit(api, resources={"cpus": 4})
    with db.write() as tx:
        insert_attempts(tx, [(run, _on_n(cpus=3)) for run in load_runs_in(tx, [RunState.QUEUED])], now=time.time())
        tx.execute(runs.update().values(state="running", attempt_count=1))
    db.close()
    waits = submit(api, resources={"cpus": 4}, name="waits", project="vision")
    urgent = submit(api, resources={"cpus": 2}, name="urgent", project="nlp", priority="high")
    view = api.get("/api/queue").json()
    assert [(entry["position"], entry["run_id"]) for entry in view["entries"]] == [(1, urgent["id"]), (2, waits["id"])]
    assert [entry["wants"] for entry in view["entries"]] == ["2 CPU", "4 CPU"]
    assert view["entries"][0]["reason"] == "next in line for 2 CPU"
    assert [share["name"] for share in view["projects"]] == ["default", "nlp", "vision"]
    assert [share["share"] for share in view["projects"]] == [0.75, 0, 0]
    assert [each["name"] for each in api.get("/api/queue?project=vision").json()["entries"]] == ["waits"]
    why = api.get(f"/api/runs/{waits['id']}/why").json()
    assert (why["position"], why["queued"], why["start"]) == (2, 2, None)  # of how long runs last nothing is known
    assert why["summary"].startswith(
        f"waits for 4 CPU: project default holds 3 CPU, its run gpt-small ({large['id']}) "
    )
    assert why["summary"].endswith("; 1 run is ahead of it")


def test_a_start_is_estimated_from_how_long_runs_lasted(api: Client, database_url: str) -> None:
    db = Database(database_url)
    for _ in range(6):
        submit(api)
    with db.write() as tx:
        commit_nodes(tx, "fake", [Node(engine="fake", name="n", cpus=4, memory_bytes=10**9)], now=1.0)
        tx.execute(runs.update().values(state="succeeded", cpu_hours=1.0, ran_s=3600.0))
        row = tx.execute(runs.select().limit(1)).one()
        [busy] = load_runs(tx, [row.id])
        insert_attempts(tx, [(busy, _on_n(cpus=3))], now=time.time())
        tx.execute(runs.update().where(runs.c.id == row.id).values(state="running", attempt_count=1))
    waits = submit(api, resources={"cpus": 4}, name="waits")
    start = api.get(f"/api/runs/{waits['id']}/why").json()["start"]
    assert time.time() - 60 < start["earliest"] <= start["likely"]
    [entry] = api.get("/api/queue").json()["entries"]
    assert entry["start"]["likely"] is not None
    again = {"state": "recovering", "retry_at": time.time() + 600, "attempt_count": 1, "version": 7}
    with db.write() as tx:
        tx.execute(runs.update().where(runs.c.id == waits["id"]).values(again))
    db.close()
    [entry] = api.get("/api/queue").json()["entries"]
    assert (entry["position"], entry["obstacle"], entry["start"]) == (None, "retry", None)
    assert entry["reason"].startswith("attempt 2 in ")


def _on_n(*, cpus: float) -> Placement:
    return Placement(engine="fake", shares=(NodeShare(node="n", cpus=cpus, memory_bytes=0),))
