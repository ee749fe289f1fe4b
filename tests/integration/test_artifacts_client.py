"""`client.artifacts` and `windlass artifacts` against a real server, which may die at any moment."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import windlass
from windlass.artifacts.service import ArtifactService
from windlass.blobs.local import LocalBlobs
from windlass.client.artifacts import PART_BYTES, Artifacts
from windlass.core.errors import InvalidInput, NotFound, ServerUnreachable
from windlass.db.database import Database
from windlass.testing import servers
from windlass.testing.clock import FakeClock

BIG = random.Random(5).randbytes(2 * PART_BYTES + 1_234_567)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.ServerProcess]:
    with servers.running_server(tmp_path_factory.mktemp("artifacts") / "home") as server:
        yield server


def new_run(server: servers.ServerProcess, name: str = "") -> str:
    with server.client() as http:
        body = {"experiment_id": "0", "run_name": name}
        made = http.post("/api/2.0/mlflow/runs/create", json=body).raise_for_status()
    return str(made.json()["run"]["info"]["run_id"])


@pytest.fixture
def artifacts(server: servers.ServerProcess, tmp_path: Path) -> Iterator[Artifacts]:
    with windlass.Client(url=server.url, token=server.token, home=tmp_path / "me") as client:
        yield client.artifacts(new_run(server))


def test_files_and_folders_there_and_back(artifacts: Artifacts, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("hello")
    (folder / "deep" / "ä b.bin").write_bytes(BIG[:3_000_000])
    counted: list[int] = []
    artifacts.put_folder(folder, "m", progress=counted.append)
    assert sum(counted) == 3_000_005
    artifacts.put(folder / "a.txt", "m/a.txt")
    assert [item.path for item in artifacts.list("m", recursive=True).files] == ["m/a.txt", "m/deep/ä b.bin"]
    got = artifacts.get("m/deep/ä b.bin", tmp_path / "one")
    assert got.read_bytes() == BIG[:3_000_000]
    artifacts.get_folder("m", tmp_path / "all")
    assert (tmp_path / "all" / "deep" / "ä b.bin").read_bytes() == BIG[:3_000_000]
    assert artifacts.remove("m") == 2
    with pytest.raises(NotFound):
        artifacts.get("m/a.txt", tmp_path)
    with pytest.raises(InvalidInput, match="is not a file"):
        artifacts.put(tmp_path / "nowhere")


def test_a_run_whose_name_has_slashes_is_found_by_it(server: servers.ServerProcess, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("hello")
    with windlass.Client(url=server.url, token=server.token, home=tmp_path / "me") as client:
        name = "team/a//b c%2Fd"
        run_id = new_run(server, name)
        client.notes.set(name, "good")
        client.artifacts(name).put(file)
        assert client.find(name).id == run_id
        with pytest.raises(NotFound, match=f"run '{run_id}' was made by an MLflow client"):
            client.get(name)
        assert client.notes.get(run_id) == client.notes.get(name) == "good"
        assert [item.path for item in client.artifacts(name).list().files] == ["a.txt"]
        assert client.metrics(name) == {}
        assert client.metric_summaries(name).metrics == {}
        with pytest.raises(NotFound, match="there is no run 'team/x'"):
            client.get("team/x")


@pytest.mark.parametrize(("name", "told"), [(b"two\nlines", r"'two\nlines'"), (b"not \xff text", r"'not \udcff text'")])
def test_a_name_that_cannot_be_sent_is_told_before_anything_is(
    artifacts: Artifacts, tmp_path: Path, name: bytes, told: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_text("first")
    bad = Path(os.fsdecode(bytes(folder) + b"/" + name))
    bad.write_text("x")
    for send in (lambda: artifacts.put_folder(folder), lambda: artifacts.put(bad)):
        with pytest.raises(InvalidInput) as refused:
            send()
        assert f"the name {told}" in refused.value.message
    assert artifacts.list(recursive=True).files == []


def test_a_large_file_goes_on_where_it_broke_off(
    artifacts: Artifacts, server: servers.ServerProcess, tmp_path: Path
) -> None:
    source = tmp_path / "big.bin"
    source.write_bytes(BIG)

    class Interrupted(Exception):
        pass

    sent = 0

    def interrupt(more: int) -> None:
        nonlocal sent
        sent += max(0, more)
        if sent > PART_BYTES + (5 << 20):
            raise Interrupted

    with pytest.raises(Interrupted):
        artifacts.put(source, progress=interrupt)
    counted: list[int] = []
    kept = artifacts.put(source, progress=counted.append)
    assert (kept.path, kept.digest, kept.size_bytes) == ("big.bin", sha(BIG), len(BIG))
    assert counted[0] == PART_BYTES, "the first part was there"
    assert sum(counted) == len(BIG)
    assert not list((tmp_path / "me" / "uploads").iterdir())

    begun = tmp_path / "got.bin.part"
    begun.write_bytes(BIG[:10_000_000])
    (tmp_path / "got.bin.part.tag").write_text(f'"{sha(BIG)}"')
    counted.clear()
    artifacts.get("big.bin", tmp_path / "got.bin", progress=counted.append)
    assert counted[0] == 10_000_000
    assert (tmp_path / "got.bin").read_bytes() == BIG
    assert not begun.exists()


@pytest.mark.parametrize("meanwhile", ["completed", "given up"])
def test_an_upload_that_ends_while_it_is_gone_on_with(
    artifacts: Artifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    monkeypatch.setattr("windlass.client.artifacts._WHOLE_BYTES", 10)
    (tmp_path / "x").write_bytes(b"all of it, in parts")
    post, completing = artifacts._transport.post, []

    def end_first(path: str, *given: Any, **named: Any) -> Any:
        if path.endswith("/complete") and not completing:
            completing.append(path)
            if meanwhile == "completed":
                post(path, *given, **named)
            else:
                artifacts._transport.delete(path.removesuffix("/complete"))
        return post(path, *given, **named)

    monkeypatch.setattr(artifacts._transport, "post", end_first)
    told: list[int] = []
    kept = artifacts.put(tmp_path / "x", "d/./x", progress=told.append)
    assert (kept.path, kept.size_bytes, kept.digest) == ("d/x", 19, sha(b"all of it, in parts"))
    assert sum(told) == 19
    assert completing
    assert not list((tmp_path / "me" / "uploads").iterdir())


def test_what_was_begun_of_another_version_is_not_made_use_of(artifacts: Artifacts, tmp_path: Path) -> None:
    source = tmp_path / "x"
    source.write_bytes(b"new content")
    artifacts.put(source)
    (tmp_path / "got.part").write_bytes(b"old")
    (tmp_path / "got.part.tag").write_text(f'"{sha(b"old content")}"')
    assert artifacts.get("x", tmp_path / "got").read_bytes() == b"new content"


@pytest.mark.parametrize("begun", [b"all of it", b"all of it and more", b"something"])
def test_what_was_fetched_to_its_end_and_not_put_in_place(artifacts: Artifacts, tmp_path: Path, begun: bytes) -> None:
    (tmp_path / "x").write_bytes(b"all of it")
    artifacts.put(tmp_path / "x")
    (tmp_path / "got.part").write_bytes(begun)
    (tmp_path / "got.part.tag").write_text(f'"{sha(b"all of it")}"')
    counted: list[int] = []
    assert artifacts.get("x", tmp_path / "got", progress=counted.append).read_bytes() == b"all of it"
    assert sum(counted) == len(b"all of it")
    assert not list(tmp_path.glob("got.part*"))


def test_the_commands(server: servers.ServerProcess, tmp_path: Path) -> None:
    run = new_run(server)
    environ = {**os.environ, "WINDLASS_URL": server.url, "WINDLASS_TOKEN": server.token, "WINDLASS_HOME": str(tmp_path)}

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        line = [str(Path(sys.executable).with_name("windlass")), "artifacts", *words]
        return subprocess.run(line, env=environ, text=True, capture_output=True, cwd=tmp_path)

    (tmp_path / "a.txt").write_text("hello")
    assert command("put", run, "a.txt", "d/a.txt").stdout.startswith("d/a.txt")
    assert "d/a.txt" in command("ls", run, "-r").stdout
    assert command("get", run, "d/a.txt", "--to", "-").stdout == "hello"
    assert command("get", run, "d", "--to", "got").stdout == "1 file in got\n"
    assert (tmp_path / "got" / "a.txt").read_text() == "hello"
    again = command("get", run, "d", "--to", "got")
    assert (again.returncode, "--force" in again.stderr) == (2, True)
    missing = command("get", run, "nothing")
    assert (missing.returncode, "there is no artifact 'nothing'" in missing.stderr) == (2, True)
    assert command("rm", run, "d").stdout == "removed 1 file\n"
    assert "has no artifacts" in command("ls", run).stderr
    with server.client() as http:
        body = {"experiment_id": "0", "name": "net", "source_run_id": run}
        model = http.post("/api/2.0/mlflow/logged-models", json=body).json()["model"]["info"]
        tree = model["artifact_uri"].removeprefix("mlflow-artifacts:/")
        http.put(f"/api/2.0/mlflow-artifacts/artifacts/{tree}/MLmodel", content=b"flavors").raise_for_status()
    assert f"net ({model['model_id']}); `windlass artifacts ls {run} net`" in command("ls", run).stderr
    assert "net/MLmodel" in command("ls", run, "net").stdout
    assert "MLmodel" in command("ls", model["model_id"]).stdout
    assert command("get", run, "net", "--to", "model").stdout == "1 file in model\n"
    assert (tmp_path / "model" / "MLmodel").read_text() == "flavors"
    assert command("get", model["model_id"], "MLmodel", "--to", "-").stdout == "flavors"


# ---- a server that dies ----------------------------------------------------------------------------------------------


def test_a_server_that_is_killed_during_an_upload(tmp_path: Path) -> None:
    home = tmp_path / "home"
    tree = "/api/2.0/mlflow-artifacts/artifacts/0/r"
    with servers.running_server(home) as server, server.client() as http:
        http.put(f"{tree}/x", content=b"old").raise_for_status()
        halfway, dead = threading.Event(), threading.Event()

        def pieces() -> Iterator[bytes]:
            yield BIG[: 8 << 20]
            halfway.set()
            dead.wait(30)
            yield BIG[8 << 20 :]

        def send() -> None:
            with server.client() as other, pytest.raises(httpx.TransportError):
                other.put(f"{tree}/x", content=pieces())

        sending = threading.Thread(target=send)
        sending.start()
        assert halfway.wait(30)
        server.kill()
        dead.set()
        sending.join(30)
    with servers.running_server(home) as server, server.client() as http:
        assert http.get(f"{tree}/x").content == b"old"
        http.put(f"{tree}/x", content=BIG).raise_for_status()
        assert sha(http.get(f"{tree}/x").content) == sha(BIG)


_PUT = """
import os, sys
from pathlib import Path
from windlass.artifacts.service import ArtifactService
from windlass.blobs.local import LocalBlobs
from windlass.core.clock import SystemClock
from windlass.db.database import Database
from windlass.db.faults import CommitFault
url, folder, content = sys.argv[1:]
db = Database(url, fault=CommitFault.from_environ(os.environ))
ArtifactService(db=db, clock=SystemClock(), blobs=LocalBlobs(Path(folder))).put_bytes("r/x", content.encode())
"""


@pytest.mark.parametrize(
    ("commit", "moment", "found"),
    [(1, "before", b"old"), (1, "after", b"old"), (2, "before", b"old"), (2, "after", b"new"), (3, "before", b"new")],
)
def test_a_process_that_dies_at_any_commit_of_an_upload(
    tmp_path: Path, database: Database, database_url: str, commit: int, moment: str, found: bytes
) -> None:
    """Claimed, placed, named: the file is the old one until the last commit, and what is left of the new one goes."""
    clock, room = FakeClock(time.time()), LocalBlobs(tmp_path / "blobs")
    artifacts = ArtifactService(db=database, clock=clock, blobs=room)
    artifacts.put_bytes("r/x", b"old")
    environ = {**os.environ, "WINDLASS_FAULT_COMMIT": f"{commit}:{moment}"}
    died = subprocess.run([sys.executable, "-c", _PUT, database_url, str(room.root), "new"], env=environ).returncode
    assert died == (0 if commit == 3 else -signal.SIGKILL)
    assert artifacts.get_bytes("r/x") == found
    clock.advance(2 * 86_400)
    artifacts.collect()
    assert list(room.digests()) == [sha(found)]
    assert list(room.root.glob(".incoming-*")) == []
    artifacts.put_bytes("r/x", b"new")
    assert artifacts.get_bytes("r/x") == b"new"


def test_a_client_says_when_nobody_is_there(tmp_path: Path) -> None:
    client = windlass.Client(url="http://127.0.0.1:9", token="x", home=tmp_path)
    with client, pytest.raises(ServerUnreachable):
        client.artifacts("r").list()
