"""Coming over from MLflow: from a server that speaks its API, and from a folder that MLflow itself has written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.mlflow_programs import environment, run_program
from windlass.client import Client
from windlass.core.errors import InvalidInput, ServerUnreachable, Unauthorized
from windlass.db.database import sqlite_url
from windlass.imports.copying import Copier, Summary, Wishes
from windlass.imports.destination import Destination
from windlass.imports.opening import open_source
from windlass.imports.records import Experiment, Owner, Point, Run, Source
from windlass.imports.rest import RestSource
from windlass.server.compose import Parts, compose
from windlass.server.homefolder import prepare
from windlass.server.settings import Role, Settings
from windlass.testing.servers import serving

pytestmark = pytest.mark.timeout(300)

WRITES = """
import math, warnings
warnings.simplefilter("ignore")
from mlflow.data.http_dataset_source import HTTPDatasetSource
from mlflow.data.meta_dataset import MetaDataset

experiment = mlflow.set_experiment("vision")
client.set_experiment_tag(experiment.experiment_id, "team", "eyes")
with mlflow.start_run(run_name="first", description="a note") as run:
    mlflow.log_params({"lr": 0.1, "opt/name": "adam"})
    losses = [mlflow.entities.Metric("train/loss", 1 / (n + 1), 1_700_000_000_000 + n, n) for n in range(1500)]
    for start in (0, 750):
        client.log_batch(run.info.run_id, losses[start : start + 750])
    mlflow.log_metric("odd", math.nan, step=1)
    mlflow.log_metric("odd", -math.inf, step=2)
    mlflow.log_text("hello", "notes/hello ü.txt")
    mlflow.log_text("", "empty.txt")
    mlflow.log_input(MetaDataset(HTTPDatasetSource("http://x/data.csv"), name="d"), context="training")
    model = mlflow.initialize_logged_model(name="net", source_run_id=run.info.run_id, params={"depth": "3"})
    mlflow.log_metric("acc", 0.9, step=3, model_id=model.model_id)
    with mlflow.start_run(nested=True, run_name="inner"):
        mlflow.log_metric("inner", 3)
mlflow.finalize_logged_model(model.model_id, "READY")
client.log_outputs(run.info.run_id, [mlflow.entities.LoggedModelOutput(model.model_id, 3)])
client.create_registered_model("m", {"t": "v"}, "about m")
client.create_model_version("m", f"{run.info.artifact_uri}/notes", run.info.run_id, tags={"ok": "yes"})
client.create_model_version("m", f"runs:/{run.info.run_id}/notes", run.info.run_id)
client.create_model_version("m", f"models:/{model.model_id}", run.info.run_id, model_id=model.model_id)
client.delete_model_version("m", "2")
client.set_registered_model_alias("m", "champion", "3")
client.transition_model_version_stage("m", "1", "Production")
with mlflow.start_run(run_name="gone") as gone:
    mlflow.log_metric("loss", 1)
client.delete_run(gone.info.run_id)
other = client.create_experiment("other")
client.set_terminated(client.create_run(other).info.run_id, "FAILED")
result |= {"run": run.info.run_id, "model": model.model_id, "gone": gone.info.run_id}
"""

READS = """
import warnings
warnings.simplefilter("ignore")

def own(tags):
    return {key: value for key, value in tags.items() if not key.startswith("windlass.import.")}

def files(list_files, path=None):
    found = []
    for one in list_files(path):
        found += files(list_files, one.path) if one.is_dir else [[one.path, one.file_size]]
    return sorted(found)

for experiment in client.search_experiments():
    runs = {}
    for run in client.search_runs([experiment.experiment_id]):
        run_id = run.info.run_id
        runs[run_id] = {
            "info": [run.info.run_name, run.info.status, run.info.start_time, run.info.end_time, run.info.user_id],
            "params": run.data.params,
            "tags": own(run.data.tags),
            "metrics": {
                key: sorted([str(p.value).replace("-inf", "-1.7976931348623157e+308"), p.step, p.timestamp]
                            for p in client.get_metric_history(run_id, key))
                for key in run.data.metrics
            },
            "inputs": [[d.dataset.name, d.dataset.digest, d.dataset.source, {t.key: t.value for t in d.tags}]
                       for d in run.inputs.dataset_inputs],
            "read": [m.model_id for m in client.get_run(run_id).inputs.model_inputs],
            "outputs": [[m.model_id, m.step] for m in run.outputs.model_outputs] if run.outputs else [],
            "files": files(lambda path: client.list_artifacts(run_id, path)),
        }
    models = {
        model.model_id: [model.name, model.status, model.source_run_id, model.creation_timestamp, model.params,
                         own(model.tags), [[m.key, m.value, m.step, m.timestamp] for m in model.metrics or []]]
        for model in client.search_logged_models([experiment.experiment_id])
    }
    result[experiment.name] = {"tags": own(experiment.tags), "runs": runs, "models": models}
result["registered"] = {
    model.name: [model.description, own(model.tags), {key: int(value) for key, value in model.aliases.items()}]
    for model in client.search_registered_models()
}
result["versions"] = {
    f"{v.name}/{v.version}": [v.current_stage, v.run_id, own(v.tags), v.creation_timestamp, v.description or "",
                              v.source.split("/artifacts")[-1]]
    for v in client.search_model_versions()
}
"""

WRITES_MANY = """
import math
mlflow.set_experiment("wide")
with mlflow.start_run() as run:
    names = [f"layer{n}/norm" for n in range(2500)]
    for step in range(3):
        points = [mlflow.entities.Metric(name, step + 0.5, 1_700_000_000_000 + step, step) for name in names]
        for start in range(0, 2500, 500):
            client.log_batch(run.info.run_id, points[start : start + 500])
    mlflow.log_metric(names[-1], math.inf, step=9)
"""

READS_FEW = """
[run] = client.search_runs([client.get_experiment_by_name("wide").experiment_id])
result["latest"] = {key: str(value) for key, value in run.data.metrics.items()}
for key in ("layer0/norm", "layer77/norm", "layer2499/norm"):
    result[key] = [[str(p.value), p.step, p.timestamp] for p in client.get_metric_history(run.info.run_id, key)]
"""


class Quiet:
    def found(self, runs: int) -> None: ...

    def ended(self, run: str) -> None: ...

    def sent(self, size: int) -> None: ...

    def logged(self, points: int) -> None: ...


class Place:
    """A server or a folder, and programs that use MLflow with it."""

    def __init__(self, uri: str, folder: Path, token: str | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.uri, self._folder, self.token = uri, folder, token

    def program(self, text: str) -> dict[str, Any]:
        return run_program(text, environment(self.uri, self.token) | {"MLFLOW_ALLOW_FILE_STORE": "true"}, self._folder)

    @property
    def environ(self) -> dict[str, str]:
        return {"MLFLOW_TRACKING_TOKEN": self.token} if self.token else {}


@pytest.fixture
def here(parts: Parts, api: httpx.Client, tmp_path: Path) -> Place:
    return Place(str(api.base_url), tmp_path / "here", parts.services.token)


@pytest.fixture
def server(tmp_path: Path, sqlite_template: Path) -> Iterator[Place]:
    """Another server that speaks MLflow's API."""
    home = tmp_path / "there"
    prepare(home)
    shutil.copy(sqlite_template, home / "windlass.db")
    parts = compose(Settings(home=home, database_url=sqlite_url(home / "windlass.db"), role=Role.API))
    with serving(parts) as client:
        yield Place(str(client.base_url), tmp_path / "programs", parts.services.token)
    parts.db.close()


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    return Place((tmp_path / "mlruns").as_uri(), tmp_path / "programs")


def copy(place: Place, here: Place, source: Source | None = None, **wishes: Any) -> Summary:
    opened = source or open_source(place.uri, place.environ)
    with closing(opened), Client(url=here.uri, token=here.token) as client:
        return Copier(opened, Destination(client.transport), Wishes(**wishes), Quiet()).copy()


@pytest.mark.parametrize("kind", ["server", "folder"])
def test_everything_comes_over_and_nothing_twice(kind: str, here: Place, request: pytest.FixtureRequest) -> None:
    there: Place = request.getfixturevalue(kind)
    made = there.program(WRITES)
    first = copy(there, here)
    assert first.problems == []
    assert (first.runs["copied"], first.points, first.files) == (3, 1504, 2)
    assert (first.logged_models, first.models, first.versions) == (1, 1, 2)
    assert here.program(READS) == there.program(READS)
    again = copy(there, here)
    assert again.runs == {"copied": 0, "updated": 0, "unchanged": 3, "left": 0, "incomplete": 0}
    assert (again.points, again.files, again.logged_models, again.models, again.versions) == (0, 0, 0, 0, 0)
    found = here.program(f"""
import pathlib
path = mlflow.artifacts.download_artifacts(artifact_uri="models:/m/1")
result["hello"] = pathlib.Path(path, "hello ü.txt").read_text()
result["champion"] = client.get_model_version_by_alias("m", "champion").source
result["count"] = len(client.get_metric_history("{made["run"]}", "train/loss"))
""")
    assert found == {"hello": "hello", "champion": f"models:/{made['model']}", "count": 1500}


class LikeMlflows(RestSource):
    """MLflow's own server: its lists of runs do not say which models they read."""

    def is_windlass(self) -> bool:
        return False

    def runs(self, experiment: Experiment, *, deleted: bool) -> Iterator[Run]:
        for run in super().runs(experiment, deleted=deleted):
            yield replace(run, model_inputs=())


def test_models_that_runs_read_come_from_servers_that_list_runs_without_them(server: Place, here: Place) -> None:
    made = server.program(WRITES)
    there = server.program(READS)
    assert there["vision"]["runs"][made["run"]]["read"] == [made["model"]]
    assert copy(server, here, LikeMlflows(server.uri, server.environ)).problems == []
    assert here.program(READS) == there
    server.program(f"""
from mlflow.entities import LoggedModelInput
runs = client.search_runs([client.get_experiment_by_name("vision").experiment_id])
for run in runs:
    client.log_inputs(run.info.run_id, models=[LoggedModelInput("{made["model"]}")])
""")
    again = copy(server, here, LikeMlflows(server.uri, server.environ))
    assert (again.runs["unchanged"], again.problems) == (3, [])
    assert here.program(READS) == server.program(READS)


def test_runs_are_not_asked_for_one_by_one_where_no_model_is(server: Place, here: Place) -> None:
    server.program("mlflow.log_metric('loss', 1)")
    opened = LikeMlflows(server.uri, server.environ)
    calls: list[str] = []
    opened._http.event_hooks["request"] = [lambda request: calls.append(request.url.path)]
    assert copy(server, here, opened).runs["copied"] == 1
    assert "/api/2.0/mlflow/runs/get" not in calls


def test_what_came_since_follows_and_what_was_deleted_here_stays_so(server: Place, here: Place) -> None:
    made = server.program(WRITES)
    copy(server, here)
    server.program(f"""
with mlflow.start_run("{made["run"]}"):
    mlflow.log_metric("train/loss", 9.0, step=-5)
    mlflow.log_metric("late", 1.0)
    mlflow.log_text("more", "more.txt")
    mlflow.set_tag("a", "b")
with mlflow.start_run(experiment_id="0"):
    pass
""")
    here.program(f"""
[run] = client.search_runs([client.get_experiment_by_name("other").experiment_id])
client.delete_run(run.info.run_id)
client.delete_logged_model("{made["model"]}")
""")
    summary = copy(server, here)
    assert summary.problems == []
    assert summary.runs == {"copied": 1, "updated": 1, "unchanged": 1, "left": 1, "incomplete": 0}
    assert (summary.points, summary.files) == (2, 1)
    now, then = here.program(READS), server.program(READS)
    assert (now["vision"].pop("models"), len(then["vision"].pop("models"))) == ({}, 1)
    assert now["vision"] == then["vision"]
    assert now["other"]["runs"] == {}


def test_what_was_changed_here_stays_until_it_changes_there(server: Place, here: Place) -> None:
    made = server.program(WRITES)
    copy(server, here)
    changes = """
client.set_registered_model_alias("m", "champion", "1")
client.transition_model_version_stage("m", "1", "Archived")
client.update_model_version("m", "1", "approved")
client.set_model_version_tag("m", "1", "ok", "no")
client.set_registered_model_tag("m", "t", "w")
client.set_experiment_tag(client.get_experiment_by_name("vision").experiment_id, "team", "ears")
client.set_logged_model_tags("%s", {"kind": "x"})
"""
    server.program(f'client.set_logged_model_tags("{made["model"]}", {{"kind": "a"}})')
    copy(server, here)
    here.program(changes % made["model"])
    before = here.program(READS)
    assert copy(server, here).problems == []
    assert here.program(READS) == before
    server.program(changes.replace("1", "3").replace("approved", "other").replace('"w"', '"z"') % made["model"])
    assert copy(server, here).problems == []
    after = here.program(READS)
    assert after["registered"]["m"] == ["about m", {"t": "z"}, {"champion": 1}]  # there it is where it was
    assert after["versions"]["m/1"] == before["versions"]["m/1"]
    assert after["versions"]["m/3"][:1] == ["Archived"]


def test_deleted_runs_come_as_deleted_if_they_are_wanted(server: Place, here: Place) -> None:
    made = server.program(WRITES)
    server.program('client.delete_experiment(client.get_experiment_by_name("other").experiment_id)')
    for copied in (2, 0):
        summary = copy(server, here, deleted=True)
        assert summary.problems == []
        assert summary.runs["copied"] == (4 if copied else 0)
    found = here.program(f"""
run = client.get_run("{made["gone"]}")
result |= {{"stage": run.info.lifecycle_stage, "loss": run.data.metrics["loss"]}}
result["other"] = client.get_experiment_by_name("other").lifecycle_stage
""")
    assert found == {"stage": "deleted", "loss": 1.0, "other": "deleted"}


class Breaking:
    """A source that is lost at a point or a file, each time a little later."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.left = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def _go_on(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise ServerUnreachable("lost")

    def histories(self, run: Run) -> Iterator[tuple[str, Iterable[Point]]]:
        for history in self._source.histories(run):
            self._go_on()
            yield history

    @contextmanager
    def reading(self, owner: Owner, path: str) -> Iterator[Iterator[bytes]]:
        with self._source.reading(owner, path) as pieces:
            yield self._torn(pieces)

    def _torn(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            yield piece[: len(piece) // 2]
            self._go_on()
            yield piece[len(piece) // 2 :]


def test_what_was_broken_off_is_completed_by_the_next_call(
    folder: Place, here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.client.transport._RETRY_WAITS_S", ())
    made = folder.program(WRITES)
    source = Breaking(open_source(folder.uri, {}))
    broken = 0
    while True:
        source.left = broken
        try:
            summary = copy(folder, here, source)  # type: ignore[arg-type]
            break
        except ServerUnreachable:
            broken += 1
    assert broken >= 4
    assert summary.problems == []
    assert here.program(READS) == folder.program(READS)
    found = here.program(f'result["count"] = len(client.get_metric_history("{made["run"]}", "train/loss"))')
    assert found == {"count": 1500}


ODD_NAMES = ("q%20.txt", "q .txt", "x%2Fy", "x%252Fy", "a#b", "deep%20er/f?", "ü")


@pytest.fixture
def odd_files(folder: Place, tmp_path: Path) -> dict[str, bytes]:
    """Of the run of a folder, by names that a server may take for others."""
    made = folder.program("""
with mlflow.start_run() as run:
    mlflow.log_text("plain", "plain.txt")
result["run"] = run.info.run_id
""")
    [root] = (tmp_path / "mlruns").glob(f"*/{made['run']}/artifacts")
    files = {name: f"this is {name}".encode() for name in ODD_NAMES}
    for name, content in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(content)
    return {**files, "plain.txt": b"plain"}


def kept_files(place: Place) -> dict[str, bytes]:
    """Of its only run, as our own API tells them."""
    with Client(url=place.uri, token=place.token) as client:
        [run] = client.search()
        artifacts, found = client.artifacts(run.id), {}
        for file in artifacts.list(recursive=True).files:
            with artifacts.reading(file.path) as pieces:
                found[file.path] = b"".join(pieces)
    return found


def test_files_keep_their_names_whatever_these_look_like(
    odd_files: dict[str, bytes], folder: Place, server: Place, here: Place
) -> None:
    for there, to in ((folder, server), (server, here)):  # a server of ours is read by our own API where it has to be
        assert (copy(there, to).files, copy(there, to).files) == (len(odd_files), 0)
        assert kept_files(to) == odd_files


def test_a_file_that_an_mlflow_server_takes_for_another_is_named(
    odd_files: dict[str, bytes], folder: Place, server: Place, here: Place
) -> None:
    copy(folder, server)
    summary = copy(server, here, LikeMlflows(server.uri, server.environ))
    taken = ("q .txt", "plain.txt", "ü")
    assert kept_files(here) == {name: odd_files[name] for name in taken}
    named = sorted(one.split("'")[1] for one in summary.problems)
    assert named == sorted({name.split("/")[0] for name in odd_files} - {*taken})
    assert summary.runs["incomplete"] == 1


def test_files_whose_names_no_address_can_say_are_named(folder: Place, here: Place, tmp_path: Path) -> None:
    made = folder.program("with mlflow.start_run() as run: mlflow.log_text('x', 'a')\nresult['run'] = run.info.run_id")
    [root] = (tmp_path / "mlruns").glob(f"*/{made['run']}/artifacts")
    for name in (b"two\nlines", b"not \xff text"):
        Path(os.fsdecode(bytes(root) + b"/" + name)).write_bytes(b"x")
    summary = copy(folder, here)
    assert (summary.files, kept_files(here)) == (1, {"a": b"x"})
    assert [one for one in summary.problems if not one.isprintable()] == []
    assert ["two\\nlines" in summary.problems[1], "not \\udcff text" in summary.problems[0]] == [True, True]


def test_a_number_that_is_another_versions_is_not_overwritten(server: Place, here: Place) -> None:
    server.program(WRITES)
    here.program("""
client.create_registered_model("m")
client.create_model_version("m", "s3://mine/model")
""")
    summary = copy(server, here, experiments=["vision"])
    assert len(summary.problems) == 1
    assert "version 1 of model 'm' is another one here" in summary.problems[0]
    found = here.program("""
result["sources"] = sorted(v.source.partition(":")[0] for v in client.search_model_versions("name = 'm'"))
result["names"] = sorted(one.name for one in client.search_experiments())
""")
    assert found == {"sources": ["models", "s3"], "names": ["Default", "vision"]}


def test_a_run_with_very_many_metrics_comes_in_few_calls(server: Place, here: Place) -> None:
    server.program(WRITES_MANY)
    opened = open_source(server.uri, server.environ)
    calls: list[str] = []
    opened._http.event_hooks["request"] = [lambda request: calls.append(request.url.path)]  # type: ignore[attr-defined]
    summary = copy(server, here, opened)
    assert (summary.points, summary.problems) == (3 * 2_500 + 1, [])
    assert calls.count("/api/2.0/mlflow/metrics/get-history") == 0
    assert sum(path.endswith("/points") for path in calls) == 2  # so many names at a time
    assert here.program(READS_FEW) == server.program(READS_FEW)
    again = copy(server, here, full=True)  # points are compared
    assert (again.points, again.runs["unchanged"]) == (0, 1)


def test_a_server_is_not_copied_to_itself(here: Place) -> None:
    with pytest.raises(InvalidInput, match="is the server that would be copied to"):
        copy(here, here)
    assert "windlass.import" not in json.dumps(here.program(READS))


def test_a_server_that_wants_a_token_is_not_read_without_one(server: Place, here: Place) -> None:
    with pytest.raises(Unauthorized, match="does not let us in") as refused:
        copy(server, here, open_source(server.uri, {}))
    assert "MLFLOW_TRACKING_TOKEN" in (refused.value.hint or "")
    named = {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": server.token or ""}
    assert copy(server, here, open_source(server.uri, named)).experiments == 1


def command(here: Place, *words: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"WINDLASS_URL": here.uri, "WINDLASS_TOKEN": here.token or ""}
    done = subprocess.run(
        [sys.executable, "-c", "from windlass.cli.main import main; main()", "import", "mlflow", *words],
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == expect, (done.stdout, done.stderr)
    return done


def test_the_command_says_what_it_would_do_and_does_it(folder: Place, here: Place, tmp_path: Path) -> None:
    folder.program(WRITES)
    path = str(tmp_path / "mlruns")
    planned = json.loads(command(here, path, "--dry-run", "--json").stdout)
    assert (planned["runs"]["copied"], planned["versions"], planned["points"]) == (3, 2, 0)
    assert set(here.program(READS)) == {"Default", "registered", "versions"}  # nothing was written
    said = command(here, path, "--no-artifacts").stdout
    assert "3 copied" in said
    assert "1,504 points, 0 files" in said
    done = json.loads(command(here, path, "--json").stdout)
    assert (done["runs"]["unchanged"], done["files"], done["problems"]) == (3, 2, [])
    assert "has no experiment 'nothing'" in command(here, path, "-e", "nothing", expect=2).stderr
    assert "cannot be reached" in command(here, "http://127.0.0.1:1", expect=4).stderr
