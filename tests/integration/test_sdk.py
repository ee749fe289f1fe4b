"""The SDK against a real server: submit, wait, logs, metrics, cancel, resume, clone, and the embedded server's life."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import windlass
from windlass.client.embedded import ensure_server, stop_server
from windlass.client.endpoint import process_start, running_server
from windlass.core.errors import Conflict, IdempotencyMismatch, InvalidInput, NotFound, ServerUnreachable
from windlass.testing import servers

HELLO = """
import sys
from windlass import job
print("lr is", job.params.get("lr"))
print("to stderr", file=sys.stderr)
for step in range(1, 6):
    job.log(step, total=5, loss=1 / step)
sys.exit(job.params.get("code", 0))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.ServerProcess]:
    with servers.running_server(tmp_path_factory.mktemp("sdk") / "home") as server:
        yield server


@pytest.fixture
def client(server: servers.ServerProcess) -> Iterator[windlass.Client]:
    with windlass.Client(url=server.url, token=server.token, home=server.home) as client:
        yield client


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "hello.py").write_text(HELLO)
    return folder


def test_a_run_from_submission_to_its_record(client: windlass.Client, code: Path) -> None:
    run = client.submit(script="hello.py", code=code, params={"lr": 3e-4}, name="sdk-hello", tags=["t"])
    assert run.wait(timeout=60) is run
    assert (run.state, run.exit_code, run.is_over, run.world_size) == ("succeeded", 0, True, 1)
    assert sorted((line.stream, line.text) for line in run.logs()) == [
        ("stderr", "to stderr"),
        ("stdout", "lr is 0.0003"),
    ]
    assert [line.text for line in run.logs(tail=1)] in (["to stderr"], ["lr is 0.0003"])
    loss = run.metrics()["loss"]
    assert (loss.steps, loss.values[0], loss.last) == ((1, 2, 3, 4, 5), 1.0, 0.2)
    with pytest.raises(NotFound, match="unknown metric 'los'; did you mean 'loss'"):
        run.metrics("los")
    (attempt,) = run.attempts()
    assert attempt.exit is not None
    assert attempt.exit.reason == "completed"
    kinds = [event.kind for event in run.events()]
    assert (kinds[0], kinds[-1]) == ("submitted", "succeeded")
    assert run.why().state == "succeeded"
    assert client.get("sdk-hello").id == client.get(run.id[:7]).id == run.id
    assert run.id in [found.id for found in client.list(state="succeeded", limit=50)]


def test_the_same_code_is_sent_once_and_kept(client: windlass.Client, code: Path) -> None:
    first = client.submit(script="hello.py", code=code)
    (code / "hello.py").write_text("print('changed')")
    second = client.submit(script="hello.py", code=code)
    assert first.view.code_digest != second.view.code_digest
    assert "lr is None" in [line.text for line in first.wait(60).logs()]
    assert [line.text for line in second.wait(60).logs()] == ["changed"]


def test_a_failing_run_gives_its_exit_code(client: windlass.Client, code: Path) -> None:
    run = client.submit(script="hello.py", code=code, params={"code": 7}).wait(60)
    assert (run.state, run.exit_code) == ("failed", 7)
    again = run.clone(set={"code": 0}, name="sdk-again").wait(60)
    assert (again.state, again.view.clone_of, again.name) == ("succeeded", run.id, "sdk-again")
    with pytest.raises(Conflict):
        again.resume()
    resumed = run.resume().wait(60)
    assert (resumed.id, resumed.state, len(resumed.attempts())) == (run.id, "failed", 2)


def test_following_tells_everything_and_ends(client: windlass.Client, code: Path) -> None:
    run = client.submit(script="hello.py", code=code)
    updates = list(run.follow())
    kinds = {update.kind for update in updates}
    assert {"run", "log", "event", "end"} <= kinds
    assert sorted(update.value.text for update in updates if update.kind == "log") == ["lr is None", "to stderr"]
    assert updates[-1].kind == "end"
    assert run.state == "succeeded"
    assert [line.text for line in run.follow_logs(tail=2)]


def test_waiting_has_an_end(client: windlass.Client, code: Path) -> None:
    run = client.submit(command="sleep 60", code=code)
    with pytest.raises(TimeoutError, match=f"{run.id} is not over after 0.5 s"):
        run.wait(timeout=0.5)
    assert run.cancel(grace_s=1).wait(30).state == "cancelled"
    assert run.exit_code == 130
    run.cancel()  # once more does no harm


def test_one_key_makes_one_run(client: windlass.Client, code: Path) -> None:
    key = f"key-{time.time_ns()}"
    first = client.submit(command="true", code=code, idempotency_key=key)
    assert client.submit(command="true", code=code, idempotency_key=key).id == first.id
    with pytest.raises(IdempotencyMismatch):
        client.submit(command="false", code=code, idempotency_key=key)


def test_secrets_reach_the_run_and_nothing_else(client: windlass.Client, code: Path) -> None:
    command = 'test $${#KEY} = 8 && echo "it is $KEY"'
    run = client.submit(command=command, code=code, secrets={"KEY": "hunter22"}).wait(60)
    assert run.state == "succeeded"
    assert [line.text for line in run.logs()] == ["it is ***"]
    assert "hunter22" not in run.view.model_dump_json()


def test_a_run_in_place(client: windlass.Client, tmp_path: Path) -> None:
    run = client.submit(command="pwd; touch made-here", workdir=str(tmp_path)).wait(60)
    assert [line.text for line in run.logs()] == [str(tmp_path)]
    assert (tmp_path / "made-here").exists()


def test_wrong_names(client: windlass.Client) -> None:
    with pytest.raises(NotFound):
        client.get("no/such run?")
    with pytest.raises(InvalidInput, match="unknown state 'runing'"):
        list(client.list(state="runing"))


def test_pages(client: windlass.Client, code: Path) -> None:
    submitted = [client.submit(command="true", code=code, project="pages").id for _ in range(3)]
    for run_id in submitted:
        client.get(run_id).wait(60)
    assert [run.id for run in client.list(project="pages")] == submitted[::-1]
    assert [run.id for run in client.list(project="pages", limit=2)] == submitted[:0:-1]
    assert list(client.list(project="pages", limit=0)) == []


def test_the_cluster_and_the_server(client: windlass.Client) -> None:
    assert client.cluster().nodes[0].cpus > 0
    assert client.queue().entries == []
    assert client.info().version == client.health().version == windlass.__version__


def test_two_callers_start_one_embedded_server(tmp_path: Path) -> None:
    home = tmp_path / "home"
    started: list[int] = []
    found = []

    def ensure() -> None:
        found.append(ensure_server(home, options=("--port", "0"), before_start=lambda: started.append(1)))

    threads = [threading.Thread(target=ensure) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len({server.pid for server in found}) == 1
        assert (len(found), len(started)) == (3, 1)
        with windlass.Client(home=home) as client:
            assert client.url == found[0].url
            assert stop_server(home)
            assert process_start(found[0].pid) is None
            with pytest.raises(ServerUnreachable, match="no server is running"):
                windlass.Client(home=home).info()
        assert running_server(home) is None
        assert not stop_server(home)
    finally:
        servers.end_processes_of(home)


def test_the_first_submission_starts_the_embedded_server(tmp_path: Path, code: Path) -> None:
    home = tmp_path / "home"
    try:
        with windlass.Client(home=home, start=False) as careful, pytest.raises(ServerUnreachable):
            careful.submit(command="true", code=code)
        with windlass.Client(home=home) as client:
            assert client.submit(command="true", code=code).wait(60).state == "succeeded"
    finally:
        servers.end_processes_of(home)


def test_tags_find_runs(client: windlass.Client, code: Path) -> None:
    tagged = client.submit(command="true", code=code, tags={"team": "vision", "k.1": "v"}).wait(60)
    assert [run.id for run in client.list(tag="team=vision")] == [tagged.id]
    assert [run.id for run in client.list(tag="k.1")] == [tagged.id]
    assert list(client.list(tag="team=speech")) == []


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServerUnreachable, match="unrecognized arguments: --nonsense"):
        ensure_server(tmp_path / "home", options=("--nonsense",))
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot be made"):
        ensure_server(tmp_path / "file" / "home")
