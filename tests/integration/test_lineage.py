"""From data to a registered version, as clients of MLflow log it, in one graph."""

from __future__ import annotations

from typing import Any

from httpx import Client

from tests.integration.api_calls import error_of, submit


def call(api: Client, path: str, method: str = "POST", **body: Any) -> Any:
    answer = api.request(method, f"/api/2.0/mlflow/{path}", json=body)
    assert answer.is_success, answer.text
    return answer.json()


def links(api: Client, of: str) -> set[tuple[str, str, str]]:
    answer = api.get("/api/lineage", params={"of": of})
    assert answer.status_code == 200, answer.text
    data = answer.json()
    titles = {thing["key"]: f"{thing['kind']} {thing['title']}" for thing in data["things"]}
    return {(titles[link["source"]], link["how"], titles[link["target"]]) for link in data["links"]}


def test_data_run_model_and_version_are_linked(api: Client) -> None:
    run_id = submit(api, name="train")["id"]
    dataset = {"name": "faces", "digest": "d1", "source_type": "local", "source": "{}"}
    call(api, "runs/log-inputs", run_id=run_id, datasets=[{"dataset": dataset, "tags": []}])
    model = call(api, "logged-models", experiment_id="0", name="net", source_run_id=run_id)["model"]["info"]["model_id"]
    call(api, "registered-models/create", name="face-net")
    made = call(
        api, "model-versions/create", name="face-net", source=f"models:/{model}", run_id=run_id, model_id=model
    )["model_version"]
    copy = api.post(f"/api/runs/{run_id}/clone", json={"name": "again"}).json()["id"]
    expected = {
        ("dataset faces@d1", "read by", "run train"),
        ("run train", "logged", "model net"),
        ("model net", "registered as", f"version face-net/{made['version']}"),
        ("run train", "copied as", "run again"),
    }
    assert links(api, "train") == expected
    assert links(api, "dataset:faces@d1") == expected
    assert links(api, "dataset:faces") == expected
    (key,) = [one["key"] for one in api.get("/api/lineage?of=train").json()["things"] if one["kind"] == "dataset"]
    assert links(api, key) == expected
    upward = expected - {("run train", "copied as", "run again")}
    assert links(api, f"models:/face-net/{made['version']}") == upward
    call(api, "registered-models/alias", name="face-net", alias="champion", version=str(made["version"]))
    assert links(api, "models:/face-net@champion") == upward
    assert links(api, model) == upward
    assert ("run train", "copied as", "run again") in links(api, copy)


def test_a_dataset_is_the_same_in_all_experiments(api: Client) -> None:
    for number, digest in ((1, "d1"), (2, "d1"), (3, "d2")):
        experiment = call(api, "experiments/create", name=f"e{number}")["experiment_id"]
        made = call(api, "runs/create", experiment_id=experiment, run_name=f"r{number}")["run"]["info"]["run_id"]
        dataset = {"name": "to@day", "digest": digest, "source_type": "local", "source": "{}"}
        call(api, "runs/log-inputs", run_id=made, datasets=[{"dataset": dataset, "tags": []}])
    both = {("dataset to@day@d1", "read by", f"run r{number}") for number in (1, 2)}
    assert links(api, "dataset:to@day@d1") == both
    assert links(api, "r2") == {("dataset to@day@d1", "read by", "run r2")}
    assert links(api, "dataset:to@day@d2") == {("dataset to@day@d2", "read by", "run r3")}


def test_a_model_that_its_own_run_measures_is_no_source_of_it(api: Client) -> None:
    """MLflow's client logs it as the run's input with the first metric of it."""
    made = call(api, "runs/create", experiment_id="0", run_name="train")["run"]["info"]["run_id"]
    model = call(api, "logged-models", experiment_id="0", name="net", source_run_id=made)["model"]["info"]["model_id"]
    other = call(api, "runs/create", experiment_id="0", run_name="evaluate")["run"]["info"]["run_id"]
    for run_id in (made, other):
        call(api, "runs/log-inputs", run_id=run_id, models=[{"model_id": model}])
    expected = {("run train", "logged", "model net"), ("model net", "read by", "run evaluate")}
    for of in (made, model, other):
        assert links(api, of) == expected


def test_what_is_not_there_is_said(api: Client) -> None:
    for of in (
        "models:/none/1",
        f"models:/none/{10**25}",
        "models:/none@x",
        "dataset:none",
        "checkpoint:none",
        "m-none",
        "nosuchrun",
    ):
        error_of(api.get("/api/lineage", params={"of": of}), 404, "not_found")


def test_of_several_the_options_are_told(api: Client) -> None:
    run_id = submit(api, name="train")["id"]
    for digest in ("d1", "d2"):
        dataset = {"name": "faces", "digest": digest, "source_type": "local", "source": "{}"}
        call(api, "runs/log-inputs", run_id=run_id, datasets=[{"dataset": dataset, "tags": []}])
    call(api, "registered-models/create", name="net")
    call(api, "registered-models/create", name="bare")
    for _ in range(2):
        call(api, "model-versions/create", name="net", source=f"runs:/{run_id}/model", run_id=run_id)
    call(api, "registered-models/alias", name="net", alias="best", version="2")
    for of, status, code, told in (
        ("dataset:faces", 422, "invalid_input", "d1, d2"),
        ("dataset:faces@d3", 404, "not_found", "d1, d2"),
        ("dataset:fcaes", 404, "not_found", "did you mean 'faces'"),
        ("models:/net", 422, "invalid_input", "1, 2, @best"),
        ("models:/net/3", 404, "not_found", "1, 2, @best"),
        ("models:/net@bets", 404, "not_found", "1, 2, @best"),
        ("models:/nett/1", 404, "not_found", "did you mean 'net'"),
        ("models:/bare", 404, "not_found", "has no versions"),
        ("net", 404, "not_found", "write models:/net/2"),
        ("faces", 404, "not_found", "write dataset:faces"),
    ):
        error = error_of(api.get("/api/lineage", params={"of": of}), status, code)
        assert told in f"{error['message']} {error['hint']}", of


def test_beginnings_of_ids_and_runs_of_mlflows_clients_do(api: Client) -> None:
    made = call(api, "runs/create", experiment_id="0", run_name="theirs")["run"]["info"]["run_id"]
    call(api, "runs/update", run_id=made, status="FINISHED")
    model = call(api, "logged-models", experiment_id="0", name="net", source_run_id=made)["model"]["info"]["model_id"]
    for of in (made, made[:8], "theirs", f"run:{made[:8]}", model, model[:8], f"model:{model}"):
        assert links(api, of) == {("run theirs", "logged", "model net")}
    things = api.get("/api/lineage", params={"of": "theirs"}).json()["things"]
    assert things[0]["detail"] == "succeeded"
