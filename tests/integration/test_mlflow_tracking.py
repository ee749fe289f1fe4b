"""The unmodified client of MLflow against our API, on both databases."""

from __future__ import annotations

import json

import httpx
import pytest

from tests.mlflow_programs import Program
from windlass.experiments import history
from windlass.server.compose import Parts

pytestmark = pytest.mark.timeout(180)


def test_a_run_of_the_client_is_kept_whole(program: Program) -> None:
    result = program("""
from mlflow.entities import Metric, Param, RunTag
mlflow.set_experiment("vision")
with mlflow.start_run(run_name="first", tags={"team": "a"}) as run:
    mlflow.log_params({"lr": 0.1, "depth": 3})
    for step in range(5):
        mlflow.log_metric("loss", 1 / (step + 1), step=step)
    client.log_batch(run.info.run_id, [Metric("acc", 0.5, 1000, 0), Metric("acc", float("nan"), 2000, 1)],
                     [Param("more", "x")], [RunTag("phase", "train")])
    mlflow.set_tag("note", "good")
found = client.get_run(run.info.run_id)
history = client.get_metric_history(run.info.run_id, "loss")
result |= {
    "status": found.info.status, "name": found.info.run_name, "params": found.data.params,
    "loss": found.data.metrics["loss"], "acc": str(found.data.metrics["acc"]),
    "tags": {key: value for key, value in found.data.tags.items() if not key.startswith("mlflow.")},
    "history": [[point.step, point.value] for point in history],
    "experiment": client.get_experiment(found.info.experiment_id).name,
    "artifacts": found.info.artifact_uri.split(run.info.run_id)[1],
}
""")
    assert result == {
        "status": "FINISHED",
        "name": "first",
        "params": {"lr": "0.1", "depth": "3", "more": "x"},
        "loss": 0.2,
        "acc": "nan",
        "tags": {"team": "a", "phase": "train", "note": "good"},
        "history": [[0, 1.0], [1, 0.5], [2, 1 / 3], [3, 0.25], [4, 0.2]],
        "experiment": "vision",
        "artifacts": "/artifacts",
    }


def test_runs_are_found_by_what_they_logged(program: Program) -> None:
    result = program("""
number = client.create_experiment("search", tags={"owner": "me"})
ids = {}
for name, lr, loss in (("a", "0.1", 0.5), ("b", "0.2", float("nan")), ("c", "0.1", 0.25), ("d", "0.3", None)):
    run = client.create_run(number, run_name=name, start_time=len(ids) + 1)
    ids[run.info.run_id] = name
    client.log_param(run.info.run_id, "lr", lr)
    if loss is not None:
        client.log_metric(run.info.run_id, "loss", loss)
def names(**asked):
    return [ids[run.info.run_id] for run in client.search_runs([number], **asked)]
result |= {
    "newest first": names(),
    "by param": names(filter_string="params.lr = '0.1'"),
    "by metric": names(filter_string="metrics.loss < 0.4 AND attributes.status = 'RUNNING'"),
    "not equal": names(filter_string="metrics.loss != 0.25", order_by=["attributes.start_time"]),
    "like": names(filter_string="attributes.run_name ILIKE 'A'"),
    "absent": names(filter_string="tags.nothing IS NULL", order_by=["start_time ASC"]),
    "ordered": names(order_by=["metrics.loss ASC"]),
    "reversed": names(order_by=["metrics.loss DESC"]),
    "page": names(max_results=3),
    "experiments": [one.name for one in client.search_experiments(filter_string="tags.owner = 'me'")],
}
first = client.search_runs([number], max_results=3)
result["next page"] = names(max_results=3, page_token=first.token)
""")
    assert result == {
        "newest first": ["d", "c", "b", "a"],
        "by param": ["c", "a"],
        "by metric": ["c"],
        "not equal": ["a", "b"],
        "like": ["a"],
        "absent": ["a", "b", "c", "d"],
        "ordered": ["c", "a", "b", "d"],
        "reversed": ["a", "c", "b", "d"],
        "page": ["d", "c", "b"],
        "next page": ["a"],
        "experiments": ["search"],
    }


def test_refusals_have_codes_and_words_of_mlflow(program: Program) -> None:
    result = program("""
from mlflow.exceptions import MlflowException
def refused(deed):
    try:
        deed()
    except MlflowException as error:
        return [error.error_code, error.message.split(": ", 1)[-1][:60]]
    return None
number = client.create_experiment("refusals")
run_id = client.create_run(number).info.run_id
client.log_param(run_id, "p", "1")
result |= {
    "twice": refused(lambda: client.create_experiment("refusals")),
    "absent": refused(lambda: client.get_run("0" * 32)),
    "param": refused(lambda: client.log_param(run_id, "p", "2")),
    "filter": refused(lambda: client.search_runs([number], filter_string="params.p > 1")),
    "tag": refused(lambda: client.delete_tag(run_id, "none")),
}
client.delete_run(run_id)
result["deleted"] = refused(lambda: client.log_metric(run_id, "m", 1.0))
client.restore_run(run_id)
result["restored"] = refused(lambda: client.log_metric(run_id, "m", 1.0))
""")
    assert {name: found and found[0] for name, found in result.items()} == {
        "twice": "RESOURCE_ALREADY_EXISTS",
        "absent": "RESOURCE_DOES_NOT_EXIST",
        "param": "INVALID_PARAMETER_VALUE",
        "filter": "INVALID_PARAMETER_VALUE",
        "tag": "RESOURCE_DOES_NOT_EXIST",
        "deleted": "INVALID_PARAMETER_VALUE",
        "restored": None,
    }
    assert result["param"][1].startswith("Changing param values is not allowed")


def test_models_and_data_of_runs_are_kept(program: Program) -> None:
    result = program("""
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelInput, LoggedModelOutput
number = client.create_experiment("models")
run_id = client.create_run(number).info.run_id
model = client.create_logged_model(number, name="net", params={"depth": "2"}, tags={"a": "b"}, source_run_id=run_id)
client.finalize_logged_model(model.model_id, "READY")
client.log_metric(run_id, "f1", 0.75, step=2, model_id=model.model_id, dataset_name="d", dataset_digest="1")
data = Dataset(name="d", digest="1", source_type="local", source="{}", schema="{}")
tags = [InputTag("mlflow.data.context", "training")]
client.log_inputs(run_id, [DatasetInput(data, tags)], [LoggedModelInput(model.model_id)])
client.log_outputs(run_id, [LoggedModelOutput(model.model_id, 2)])
found, run = client.get_logged_model(model.model_id), client.get_run(run_id)
search = lambda text: [one.name for one in client.search_logged_models([number], filter_string=text)]
result |= {
    "model": [found.name, str(found.status), found.params, found.tags, [[one.key, one.value] for one in found.metrics]],
    "inputs": [[one.dataset.name, {tag.key: tag.value for tag in one.tags}] for one in run.inputs.dataset_inputs],
    "models": [len(run.inputs.model_inputs), [one.step for one in run.outputs.model_outputs]],
    "found": [search("metrics.f1 > 0.5 AND params.depth = '2'"), search("metrics.f1 > 0.8")],
    "runs": len(client.search_runs([number], filter_string="datasets.context = 'training'")),
}
""")
    assert result == {
        "model": ["net", "READY", {"depth": "2"}, {"a": "b"}, [["f1", 0.75]]],
        "inputs": [["d", {"mlflow.data.context": "training"}]],
        "models": [1, [2]],
        "found": [["net"], []],
        "runs": 1,
    }


def test_a_run_of_ours_is_a_run_of_mlflow(program: Program, api: httpx.Client) -> None:
    spec = {"command": "true", "code": None, "project": "speech", "params": {"lr": 0.5, "net": {"depth": 2}}}
    submitted = api.post("/api/runs", json={"spec": {**spec, "name": "mine", "tags": {"team": "x"}}})
    run_id = submitted.json()["id"]
    result = program(f"""
run = client.get_run({run_id!r})
client.set_tag({run_id!r}, "grade", "A")
client.set_tag({run_id!r}, "mlflow.note.content", "for pages only")
client.delete_tag({run_id!r}, "team")
client.log_metric({run_id!r}, "loss", 0.25, step=7)
client.set_terminated({run_id!r})
result |= {{
    "experiment": client.get_experiment(run.info.experiment_id).name,
    "name": run.info.run_name,
    "params": run.data.params,
    "status": client.get_run({run_id!r}).info.status,
    "found": [one.info.run_id for one in client.search_runs(
        [run.info.experiment_id], filter_string="params.lr = '0.5' AND tags.grade = 'A'")],
}}
""")
    assert result == {
        "experiment": "speech",
        "name": "mine",
        "params": {"lr": "0.5", "net.depth": "2"},
        "status": "SCHEDULED",  # it waits: what a client says of its end is not heard
        "found": [run_id],
    }
    shown = api.get(f"/api/runs/{run_id}").json()
    assert shown["tags"] == {"grade": "A"}
    assert json.dumps(shown).count("loss") >= 1


def test_only_whoever_has_a_token_is_heard(parts: Parts, api: httpx.Client) -> None:
    submitted = api.post("/api/runs", json={"spec": {"command": "true", "code": None}})
    run_id = submitted.json()["id"]
    asked = {
        "params": {"run_id": run_id},
        "headers": {"Authorization": "Bearer " + parts.services.run_tokens.token(run_id)},
    }
    assert api.get("/api/2.0/mlflow/runs/get", **asked).status_code == 200
    assert api.get(f"/api/runs/{run_id}", headers=asked["headers"]).status_code == 401, "it is MLflow's API alone"
    for wrong in ("r-bbbbbbbbbb." + "0" * 64, run_id, run_id + ".", "nonsense"):
        answer = api.get(
            "/api/2.0/mlflow/runs/get", params={"run_id": run_id}, headers={"Authorization": f"Bearer {wrong}"}
        )
        assert (answer.status_code, answer.json()["error_code"]) == (401, "UNAUTHENTICATED"), wrong


def test_who_asks_for_a_whole_history_gets_it(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "PAGE", 100)
    monkeypatch.setattr(history, "MOST_IN_PAGE", 300)
    result = program("""
from mlflow.entities import Metric
with mlflow.start_run() as run:
    client.log_batch(run.info.run_id, [Metric("loss", float(step), 1_000 + step, step) for step in range(950)])
store = client._tracking_client.store
whole = store.get_metric_history(run.info.run_id, "loss")
result["whole"] = [one.step for one in whole]
page = store.get_metric_history(run.info.run_id, "loss", max_results=500)
result["page"] = [len(page), page.token is not None]
rest = store.get_metric_history(run.info.run_id, "loss", page_token=page.token)
result["rest"] = [one.step for one in rest]
result["none"] = list(store.get_metric_history(run.info.run_id, "accuracy"))
""")
    assert result["whole"] == list(range(950))
    assert result["page"] == [300, True]
    assert result["rest"] == list(range(300, 950))
    assert result["none"] == []
