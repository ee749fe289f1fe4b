"""Data sets, scorers, issues and the gateway's book, on both databases."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from tests.contract.locks import until_it_waits
from windlass.core.errors import AlreadyExists, InvalidInput, InvalidTransition, NotFound
from windlass.db.database import Database
from windlass.evaluation.datasets import DatasetService
from windlass.evaluation.issues import IssueService
from windlass.evaluation.scorers import ScorerService
from windlass.experiments.catalogue import put_default, put_experiment
from windlass.experiments.runservice import TrackedRunService
from windlass.experiments.types import NewRun
from windlass.gateway.service import Choice, Fallback, GatewayService
from windlass.gateway.tables import secrets
from windlass.runs.sealing import Seal
from windlass.testing.clock import FakeClock
from windlass.traces.service import TraceService
from windlass.traces.types import Assessment, Trace


@pytest.fixture
def db(database: Database) -> Database:
    with database.write() as tx:
        put_default(tx, now_ms=0)
    return database


@pytest.fixture
def datasets(db: Database, clock: FakeClock) -> DatasetService:
    return DatasetService(db=db, clock=clock)


@pytest.fixture
def scorers(db: Database, clock: FakeClock) -> ScorerService:
    return ScorerService(db=db, clock=clock)


@pytest.fixture
def issues(db: Database, clock: FakeClock) -> IssueService:
    return IssueService(db=db, clock=clock)


@pytest.fixture
def gateway(db: Database, clock: FakeClock, tmp_path: Path) -> GatewayService:
    return GatewayService(db=db, clock=clock, seal=Seal(tmp_path / "key"))


def test_records_with_the_same_inputs_are_one(datasets: DatasetService, clock: FakeClock) -> None:
    made = datasets.create("d", tags={"mlflow.user": "ann"}, experiment_ids=["0"])
    first = {"inputs": {"q": 1}, "expectations": {"a": "x"}, "tags": {"t": "1"}}
    clock.advance(1)
    assert datasets.upsert(made.id, [first, {"inputs": {"q": 2}, "outputs": "text"}]) == (2, 0)
    again = {"inputs": {"q": 1}, "expectations": {"b": "y"}, "tags": {"t": "2", "mlflow.user": "bob"}}
    clock.advance(1)
    assert datasets.upsert(made.id, [again, again]) == (0, 2)
    found, token = datasets.records(made.id, limit=10, token=None)
    assert token is None
    by_question = {one.inputs["q"]: one for one in found}
    assert by_question[1].expectations == {"a": "x", "b": "y"}
    assert by_question[1].tags == {"t": "2", "mlflow.user": "bob"}
    assert by_question[2].outputs == "text"
    dataset = datasets.get(made.id)
    assert json.loads(dataset.profile or "") == {"num_records": 2}
    assert json.loads(dataset.schema or "")["inputs"] == {"q": "integer"}
    assert dataset.updated_by == "bob"
    assert dataset.digest != made.digest


def test_records_come_in_pages_and_go(datasets: DatasetService, clock: FakeClock) -> None:
    made = datasets.create("d", tags={}, experiment_ids=[])
    for number in range(5):
        clock.advance(number % 2)
        datasets.upsert(made.id, [{"inputs": {"n": number}}])
    seen, token = [], None
    while True:
        page, token = datasets.records(made.id, limit=2, token=token)
        seen += page
        if token is None:
            break
    assert sorted(one.inputs["n"] for one in seen) == [0, 1, 2, 3, 4]
    assert datasets.delete_records(made.id, [seen[0].id, "nobody"]) == 1
    assert json.loads(datasets.get(made.id).profile or "") == {"num_records": 4}
    with pytest.raises(InvalidInput, match="Invalid page token"):
        datasets.records(made.id, limit=2, token="???")


def test_a_source_of_a_record_has_a_known_kind(datasets: DatasetService) -> None:
    made = datasets.create("d", tags={}, experiment_ids=[])
    datasets.upsert(made.id, [{"inputs": {}, "source": {"source_type": "trace", "source_data": {"trace_id": "t"}}}])
    [record], _ = datasets.records(made.id, limit=1, token=None)
    assert (record.source_type, record.source_id) == ("TRACE", "t")
    with pytest.raises(InvalidInput, match="Invalid dataset record source type: DREAM"):
        datasets.upsert(made.id, [{"inputs": {"a": 1}, "source": {"source_type": "dream"}}])


def test_datasets_are_searched(datasets: DatasetService, clock: FakeClock) -> None:
    for name, env in (("Alpha", "prod"), ("beta", "dev"), ("gamma", "prod")):
        clock.advance(1)
        datasets.create(name, tags={"env": env}, experiment_ids=["0"] if env == "prod" else [])

    def names(**more: Any) -> list[str]:
        return [one.name for one in datasets.search(**more)[0]]

    assert names() == ["gamma", "beta", "Alpha"]
    assert names(filter="tags.env = 'prod'", order_by=["name ASC"]) == ["Alpha", "gamma"]
    assert names(filter="name LIKE 'a%'") == []
    assert names(filter="name ILIKE 'a%'") == ["Alpha"]
    assert names(experiment_ids=["0"]) == ["gamma", "Alpha"]
    page, token = datasets.search(limit=2)
    assert [one.name for one in datasets.search(limit=2, token=token)[0]] == ["Alpha"]
    assert len(page) == 2
    with pytest.raises(InvalidInput, match="Invalid attribute key 'size'"):
        names(filter="size > 3")


def test_datasets_belong_to_experiments_that_are_there(datasets: DatasetService) -> None:
    made = datasets.create("d", tags={}, experiment_ids=[])
    datasets.add_experiments(made.id, ["0"])
    assert datasets.experiment_ids(made.id) == ["0"]
    with pytest.raises(NotFound, match="No Experiment with id=99"):
        datasets.add_experiments(made.id, ["99"])
    datasets.remove_experiments(made.id, ["0", "7"])
    assert datasets.experiment_ids(made.id) == []
    datasets.set_tags(made.id, {"a": 1, "b": None})
    assert datasets.get(made.id).tags == {"a": "1"}
    datasets.delete(made.id)
    datasets.delete(made.id)
    with pytest.raises(NotFound, match="not found"):
        datasets.get(made.id)


def issue(issues: IssueService, name: str, **more: Any) -> str:
    fresh: dict[str, Any] = {
        "experiment_id": "0",
        "description": "d",
        "status": None,
        "severity": None,
        "root_causes": [],
        "categories": [],
        "source_run_id": None,
        "created_by": None,
    }
    return issues.create(name=name, **{**fresh, **more}).id


def search(issues: IssueService, **more: Any) -> list[str]:
    fresh: dict[str, Any] = {"experiment_id": None, "filter": None, "limit": None, "token": None, "count_traces": False}
    return [one.name for one in issues.search(**{**fresh, **more})[0]]


def test_issues_are_found_the_worst_first(issues: IssueService, db: Database, clock: FakeClock) -> None:
    run_id = TrackedRunService(db=db, clock=clock).create(NewRun(experiment_id="0", user="", start_ms=0)).info.id
    issue(issues, "old")
    clock.advance(1)
    issue(issues, "bad", severity="high", status="resolved", root_causes=["a"])
    clock.advance(1)
    low = issue(issues, "low", severity="low", source_run_id=run_id)
    assert search(issues) == ["bad", "low", "old"]
    assert search(issues, filter=f"status = 'pending' AND source_run_id = '{run_id}'") == ["low"]
    with pytest.raises(InvalidInput, match="there is no run 'r' to have found it"):
        issue(issues, "unfounded", source_run_id="r")
    issues.update(low, name=None, description=None, status="rejected", severity="high")
    assert search(issues, filter="status != 'pending'") == ["low", "bad"]
    with pytest.raises(InvalidInput, match="known: pending, rejected, resolved"):
        issue(issues, "x", status="lost")
    with pytest.raises(InvalidInput, match="Invalid filter field 'name'"):
        search(issues, filter="name = 'x'")
    with pytest.raises(NotFound, match="No Experiment with id=5"):
        issue(issues, "x", experiment_id="5")
    with pytest.raises(NotFound, match="Issue with ID 'x' not found"):
        issues.get("x")


def test_traces_of_issues_are_counted(issues: IssueService, db: Database, clock: FakeClock) -> None:
    traces = TraceService(db=db, clock=clock)
    many, few = issue(issues, "many"), issue(issues, "few")
    for trace_id, of in (("a", many), ("b", many), ("a", few)):
        traces.start(Trace(id=trace_id, experiment_id=0, request_ms=0, duration_ms=0, state="OK"), experiment_id="0")
        kept = dict.fromkeys(Assessment.__slots__)
        told = {"id": "", "trace_id": trace_id, "name": of, "kind": "issue", "value": {"issue_name": "n"}}
        times = {"created_ms": 0, "updated_ms": 0, "source_type": "CODE", "valid": True}
        traces.create_assessment(Assessment(**{**kept, **told, **times}))  # type: ignore[arg-type]
    found, _ = issues.search(experiment_id="0", filter=None, limit=None, token=None, count_traces=True)
    assert [(one.name, one.trace_count) for one in found] == [("many", 2), ("few", 1)]


def test_scorers_have_versions(scorers: ScorerService) -> None:
    assert scorers.register("0", "s", '{"a": 1}').version == 1
    assert scorers.register("0", "s", '{"a": 2}').version == 2
    assert [(one.name, one.version) for one in scorers.newest("0")] == [("s", 2)]
    assert scorers.get("0", "s", None).serialized == '{"a": 2}'
    scorers.delete("0", "s", 2)
    assert [one.version for one in scorers.versions("0", "s")] == [1]
    with pytest.raises(NotFound, match="version 2 not found"):
        scorers.get("0", "s", 2)
    scorers.delete("0", "s", None)
    with pytest.raises(NotFound, match="Scorer with name 's' not found"):
        scorers.versions("0", "s")
    with pytest.raises(InvalidInput, match="cannot be empty"):
        scorers.register("0", " ", "{}")
    with pytest.raises(InvalidInput, match="valid JSON"):
        scorers.register("0", "s", "{")


def endpoint(gateway: GatewayService, name: str = "e", **more: Any) -> str:
    secret = gateway.create_secret(f"key-{name}", {"api_key": "sk-12345678"}, provider="p", auth_config={}, user=None)
    model = gateway.create_model(f"m-{name}", secret_id=secret.id, provider="p", model_name="m", user=None)
    fresh: dict[str, Any] = {
        "routing": None,
        "fallback": None,
        "experiment_id": None,
        "usage_tracking": False,
        "user": None,
    }
    return gateway.create_endpoint(name, [Choice(model_id=model.id)], **{**fresh, **more}).id


def test_a_scorer_names_its_endpoint_whatever_it_is_called(
    scorers: ScorerService, gateway: GatewayService, db: Database
) -> None:
    judge = {"instructions_judge_pydantic_data": {"model": "gateway:/e", "instructions": "good?"}}
    with pytest.raises(NotFound, match="GatewayEndpoint not found"):
        scorers.register("0", "s", json.dumps(judge))
    id = endpoint(gateway)
    made = scorers.register("0", "s", json.dumps(judge))
    assert [row.display_name for row in gateway.list_bindings(resource_id=made.id)] == ["s"]
    same: dict[str, Any] = {
        "routing": None,
        "fallback": None,
        "experiment_id": None,
        "usage_tracking": None,
        "user": None,
    }
    gateway.update_endpoint(id, name="other", choices=[], **same)
    assert json.loads(scorers.get("0", "s", None).serialized) == {
        "instructions_judge_pydantic_data": {"model": "gateway:/other", "instructions": "good?"}
    }
    sampling = scorers.sample("0", "s", sample_rate=0.5, filter="status = 'OK'")
    assert scorers.samplings([made.id]) == [sampling]
    gateway.delete_endpoint(id)
    shown = json.loads(scorers.get("0", "s", None).serialized)
    assert shown["instructions_judge_pydantic_data"]["model"] is None


def test_samplings_are_checked(scorers: ScorerService) -> None:
    scorers.register("0", "plain", "{}")
    scorers.sample("0", "plain", sample_rate=0, filter=None)
    with pytest.raises(InvalidInput, match="does not use a gateway model"):
        scorers.sample("0", "plain", sample_rate=0.5, filter=None)
    with pytest.raises(InvalidInput, match="between"):
        scorers.sample("0", "plain", sample_rate=2, filter=None)
    with pytest.raises(InvalidInput, match="Invalid"):
        scorers.sample("0", "plain", sample_rate=0, filter="nonsense")


def test_secrets_are_sealed_and_shown_masked(gateway: GatewayService, db: Database, tmp_path: Path) -> None:
    made = gateway.create_secret(
        "k", {"api_key": "sk-very-secret-1234", "short": "abc"}, provider="p", auth_config={"mode": "x"}, user="ann"
    )
    assert made.masked == {"api_key": "sk-...1234", "short": "***"}
    with db.read() as tx:
        sealed = tx.execute(select(secrets.c.sealed)).scalar_one()
    assert b"secret" not in sealed
    assert Seal(tmp_path / "key").unwrap(sealed)["api_key"] == "sk-very-secret-1234"
    with pytest.raises(AlreadyExists, match="Secret with name 'k' already exists"):
        gateway.create_secret("k", {}, provider=None, auth_config={}, user=None)
    changed = gateway.update_secret(made.id, values={"api_key": "sk-another-5678"}, auth_config={}, user="bob")
    assert (changed.masked, changed.auth_config, changed.updated_by) == (
        {"api_key": "sk-...5678"},
        {"mode": "x"},
        "bob",
    )
    assert gateway.list_secrets("nobody") == []
    with pytest.raises(InvalidInput, match="Exactly one of secret_id or secret_name"):
        gateway.get_secret()


def test_endpoints_have_models(gateway: GatewayService) -> None:
    id = endpoint(gateway, usage_tracking=True)
    made = gateway.get_endpoint(id=id)
    assert made.experiment_id is not None
    [mapped] = made.mapped
    secret = gateway.get_secret(name="key-e")
    other = gateway.create_model("other", secret_id=secret.id, provider="q", model_name="n", user=None)
    gateway.attach(id, Choice(model_id=other.id, linkage="FALLBACK", fallback_order=1), user=None)
    with pytest.raises(AlreadyExists, match="already attached"):
        gateway.attach(id, Choice(model_id=other.id, linkage="FALLBACK"), user=None)
    with pytest.raises(InvalidTransition, match="in use by endpoints"):
        gateway.delete_model(other.id)
    assert [one.id for one in gateway.list_endpoints(provider="q")] == [id]
    gateway.detach(id, other.id)
    with pytest.raises(NotFound, match="is not attached"):
        gateway.detach(id, other.id)
    gateway.delete_model(other.id)
    gateway.delete_secret(secret.id)
    assert gateway.get_model(mapped.model.id).secret_id is None
    with pytest.raises(InvalidInput, match="Invalid endpoint name"):
        gateway.create_endpoint(
            "a b", [], routing=None, fallback=None, experiment_id=None, usage_tracking=False, user=None
        )


def test_an_experiment_that_another_server_makes_meanwhile_is_used(gateway: GatewayService, db: Database) -> None:
    with ThreadPoolExecutor(1) as threads:
        with db.write() as tx:
            number = put_experiment(tx, "gateway/e", None, (), now_ms=0)
            made = threads.submit(endpoint, gateway, usage_tracking=True)
            until_it_waits(db, made)
        assert gateway.get_endpoint(id=made.result(20)).experiment_id == number


def test_endpoints_change_tags_and_go(gateway: GatewayService) -> None:
    id = endpoint(gateway)
    gateway.set_tag(id, "k", "v")
    gateway.set_tag(id, "k", "w")
    changed = gateway.update_endpoint(
        id,
        name="new",
        choices=[],
        routing="REQUEST_BASED_TRAFFIC_SPLIT",
        fallback=Fallback(strategy="SEQUENTIAL", max_attempts=2),
        experiment_id=None,
        usage_tracking=None,
        user="ann",
    )
    assert (changed.name, changed.tags, changed.updated_by) == ("new", {"k": "w"}, "ann")
    assert changed.fallback == {"strategy": "SEQUENTIAL", "max_attempts": 2, "model_definition_ids": []}
    gateway.bind(id, "scorer", "x", user=None)
    with pytest.raises(AlreadyExists):
        gateway.bind(id, "scorer", "x", user=None)
    gateway.unbind(id, "scorer", "x")
    with pytest.raises(NotFound, match="GatewayEndpointBinding not found"):
        gateway.unbind(id, "scorer", "x")
    gateway.delete_endpoint(id)
    with pytest.raises(NotFound, match="GatewayEndpoint not found"):
        gateway.get_endpoint(id=id)
