"""Artifacts over HTTP: as MLflow's clients ask for them, and as ours do."""

from __future__ import annotations

import hashlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from httpx import Client

from windlass.artifacts.types import Artifact
from windlass.artifacts.uploads import UploadService
from windlass.blobs.local import LocalBlobs
from windlass.server.compose import compose
from windlass.server.homefolder import prepare
from windlass.server.settings import Role, Settings
from windlass.testing.clock import FakeClock

TREE = "/api/2.0/mlflow-artifacts/artifacts"
BIG = random.Random(3).randbytes((5 << 20) + 77)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def run_id(api: Client) -> str:
    made = api.post("/api/2.0/mlflow/runs/create", json={"experiment_id": "0"}).raise_for_status()
    return str(made.json()["run"]["info"]["run_id"])


def said(answer: Any) -> tuple[int, str, str]:
    return answer.status_code, answer.json()["error_code"], answer.json()["message"]


def test_size_and_tag_are_told_without_the_file(api: Client, run_id: str) -> None:
    for where, root in ((f"/api/runs/{run_id}/artifacts", ""), (TREE, "/0/r")):
        api.put(f"{where}{root}/a.txt", content=b"hello").raise_for_status()
        told = api.head(f"{where}{root}/a.txt")
        assert (told.status_code, told.content) == (200, b"")
        assert (told.headers["Content-Length"], told.headers["ETag"]) == ("5", f'"{sha(b"hello")}"')
        assert api.head(f"{where}{root}/none").status_code == 404


def test_files_go_up_and_come_down(api: Client, settings: Settings) -> None:
    for path, data in {"0/r/a.txt": b"hello", "0/r/dir/empty": b"", "0/r/dir/big.bin": BIG}.items():
        assert api.put(f"{TREE}/{path}", content=data).json() == {}
        got = api.get(f"{TREE}/{path}").raise_for_status()
        assert got.content == data
        assert got.headers["ETag"] == f'"{sha(data)}"'
        assert got.headers["Content-Length"] == str(len(data))
    assert api.get(TREE, params={"path": "0/r"}).json() == {
        "files": [{"path": "a.txt", "is_dir": False, "file_size": 5}, {"path": "dir", "is_dir": True}]
    }
    assert api.get(TREE, params={"path": "0/r/a.txt"}).json() == api.get(TREE, params={"path": "no"}).json() == {}
    kept = settings.home / "blobs" / "artifacts"
    assert (kept / sha(BIG)[:2] / sha(BIG)).stat().st_size == len(BIG)
    assert list(kept.glob(".incoming-*")) == []


def test_a_body_of_unknown_length(api: Client) -> None:
    def pieces() -> Iterator[bytes]:
        for start in range(0, len(BIG), 100_000):
            yield BIG[start : start + 100_000]

    api.put(f"{TREE}/0/r/streamed", content=pieces()).raise_for_status()
    assert api.get(f"{TREE}/0/r/streamed").content == BIG


@pytest.mark.parametrize(
    ("asked", "status", "start", "end"),
    [
        ("bytes=0-9", 206, 0, 10),
        ("bytes=1000000-", 206, 1_000_000, len(BIG)),
        ("bytes=-7", 206, len(BIG) - 7, len(BIG)),
        ("bytes=5000000-99999999", 206, 5_000_000, len(BIG)),
        ("bytes=0-", 200, 0, len(BIG)),
        ("bytes=9-3", 200, 0, len(BIG)),
        (f"bytes=0-{'9' * 5000}", 200, 0, len(BIG)),
        (f"bytes=-{'9' * 5000}", 200, 0, len(BIG)),
        ("bytes=0-1,5-6", 200, 0, len(BIG)),
        ("lines=1-2", 200, 0, len(BIG)),
    ],
)
def test_ranges(api: Client, asked: str, status: int, start: int, end: int) -> None:
    api.put(f"{TREE}/0/r/x", content=BIG)
    got = api.get(f"{TREE}/0/r/x", headers={"Range": asked})
    assert (got.status_code, got.content == BIG[start:end]) == (status, True)
    if status == 206:
        assert got.headers["Content-Range"] == f"bytes {start}-{end - 1}/{len(BIG)}"


def test_a_range_beyond_the_end_and_versions(api: Client) -> None:
    api.put(f"{TREE}/0/r/x", content=b"0123456789")
    got = api.get(f"{TREE}/0/r/x", headers={"Range": "bytes=10-"})
    assert (got.status_code, got.headers["Content-Range"]) == (416, "bytes */10")
    tag = got.headers["ETag"]
    assert api.get(f"{TREE}/0/r/x", headers={"Range": "bytes=2-3", "If-Range": tag}).content == b"23"
    assert api.get(f"{TREE}/0/r/x", headers={"If-None-Match": tag}).status_code == 304
    api.put(f"{TREE}/0/r/x", content=b"abcdefghij")
    changed = api.get(f"{TREE}/0/r/x", headers={"Range": "bytes=2-3", "If-Range": tag})
    assert (changed.status_code, changed.content) == (200, b"abcdefghij")
    head = api.head(f"{TREE}/0/r/x")
    assert (head.headers["Content-Length"], head.content) == ("10", b"")


@pytest.mark.parametrize(
    "path",
    ["%2e%2e/x", "%252e%252e/x", "0/%2e%2e%2fx", "%2Fetc/passwd", "C:%5Cx", "file:%2F%2F%2Fx", "a%23b"],
)
def test_paths_that_lead_elsewhere_are_refused(api: Client, path: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        request = api.build_request(method, "/")
        request.url = request.url.copy_with(raw_path=f"{TREE}/{path}".encode())
        assert said(api.send(request)) == (400, "INVALID_PARAMETER_VALUE", "Invalid path")
    assert api.get(TREE).json() == {}


@pytest.mark.parametrize("name", ["ä ö.txt", "日本語", "a+b=c&d.txt", 'it\'s "q".json', "50% off", "bell\x07", "a'b"])
def test_odd_names(api: Client, run_id: str, name: str) -> None:
    root = f"0/{run_id}/artifacts"
    request = api.build_request("PUT", "/", content=name.encode())
    request.url = request.url.copy_with(raw_path=f"{TREE}/{root}/{quote(name)}".encode())
    api.send(request).raise_for_status()
    [listed] = api.get("/api/2.0/mlflow/artifacts/list", params={"run_id": run_id}).json()["files"]
    got = api.get("/get-artifact", params={"run_id": run_id, "path": listed["path"]}).raise_for_status()
    assert got.content == name.encode()
    assert listed["path"] == name.replace("\x07", "%07")
    assert got.headers["Content-Disposition"].startswith("attachment; filename=")


def test_what_kind_of_file_it_is_goes_by_its_name(api: Client, run_id: str) -> None:
    kinds = {"a.html": "text/html", "MLmodel": "text/plain", "c.png": "image/png", "d": "application/octet-stream"}
    for name, kind in kinds.items():
        api.put(f"{TREE}/0/{run_id}/artifacts/{name}", content=b"x", headers={"Content-Type": "text/evil"})
        for got in (
            api.get(f"{TREE}/0/{run_id}/artifacts/{name}"),
            api.get("/get-artifact", params={"run_uuid": run_id, "path": name}),
        ):
            found = [got.headers[key] for key in ("Content-Type", "X-Content-Type-Options", "Content-Disposition")]
            assert found == [kind, "nosniff", f"attachment; filename={name}"]


def test_what_is_not_there(api: Client, run_id: str) -> None:
    api.put(f"{TREE}/0/{run_id}/artifacts/dir/x", content=b"1")
    gone = (404, "RESOURCE_DOES_NOT_EXIST", "No such artifact: 'y'")
    assert said(api.get("/get-artifact", params={"run_id": run_id, "path": "y"})) == gone
    folder = (400, "INVALID_PARAMETER_VALUE", "Artifact path refers to a directory, not a file: 'dir'")
    assert said(api.get("/get-artifact", params={"run_id": run_id, "path": "dir"})) == folder
    unknown = (404, "RESOURCE_DOES_NOT_EXIST", "Run with id=nobody not found")
    assert said(api.get("/get-artifact", params={"run_id": "nobody", "path": "x"})) == unknown
    assert said(api.get("/api/2.0/mlflow/artifacts/list", params={"run_id": "nobody"})) == unknown
    model = (404, "RESOURCE_DOES_NOT_EXIST", "Logged model with ID 'm-1' not found.")
    assert said(api.get("/ajax-api/2.0/mlflow/logged-models/m-1/artifacts/directories")) == model
    version = api.get("/model-versions/get-artifact", params={"name": "m", "version": "1", "path": "x"})
    assert said(version)[:2] == (404, "RESOURCE_DOES_NOT_EXIST")
    assert said(api.get(f"{TREE.replace('artifacts/artifacts', 'artifacts/presigned')}/0/x"))[1] == "NOT_IMPLEMENTED"
    conflict = api.put(f"{TREE}/0/{run_id}/artifacts/dir", content=b"")
    assert said(conflict)[:2] == (400, "INVALID_PARAMETER_VALUE")


def test_deleting(api: Client) -> None:
    for name in ("a", "d/b", "d/e/c"):
        api.put(f"{TREE}/0/r/{name}", content=b"x")
    for _ in range(2):
        assert api.delete(f"{TREE}/0/r/d").json() == {}
    assert api.get(TREE, params={"path": "0/r"}).json()["files"] == [{"path": "a", "is_dir": False, "file_size": 1}]
    assert said(api.delete(f"{TREE}/"))[2] == "Invalid path"
    assert api.get(f"{TREE}/0/r/a").content == b"x"


def test_parts_as_mlflows_client_sends_them(api: Client, run_id: str) -> None:
    base, folder = "/api/2.0/mlflow-artifacts/mpu", f"0/{run_id}/artifacts/dir"
    made = api.post(f"{base}/create/{folder}", json={"path": "/home/me/big.bin", "num_parts": 3}).json()
    cuts = [BIG[:2_000_000], BIG[2_000_000:4_000_000], BIG[4_000_000:]]
    parts = []
    with Client(trust_env=False) as nobody:  # who has no token
        for credential, cut in zip(made["credentials"], cuts, strict=True):
            sent = nobody.put(credential["url"], content=cut).raise_for_status()
            parts.append({"part_number": credential["part_number"], "etag": sent.headers["ETag"]})
    torn = {"path": "big.bin", "upload_id": made["upload_id"], "parts": parts[:2]}
    assert said(api.post(f"{base}/complete/{folder}", json=torn))[:2] == (400, "INVALID_PARAMETER_VALUE")
    whole = {"path": "big.bin", "upload_id": made["upload_id"], "parts": parts}
    assert api.post(f"{base}/complete/{folder}", json=whole).json() == {}
    assert api.get("/get-artifact", params={"run_id": run_id, "path": "dir/big.bin"}).content == BIG

    made = api.post(f"{base}/create/{folder}", json={"path": "other", "num_parts": 1}).json()
    api.post(f"{base}/abort/{folder}", json={"path": "other", "upload_id": made["upload_id"]}).raise_for_status()
    assert api.put(made["credentials"][0]["url"], content=b"x").status_code == 404
    assert said(api.post(f"{base}/create/{folder}", json={"path": ".."}))[2] == "Invalid path"


@pytest.mark.parametrize("part", ["nosuch/1", "a%00b/1", f"{'0' * 48}/0", f"nosuch/{'9' * 5000}", "nosuch/x"])
def test_a_part_that_nobody_waits_for_is_refused_before_it_is_sent(api: Client, part: str) -> None:
    """Who sends parts has no token: the answer comes though none of the body does."""
    host, port = api.base_url.host, api.base_url.port
    assert port is not None
    with socket.create_connection((host, port), timeout=20) as line:
        head = f"PUT /api/2.0/mlflow-artifacts/mpu/parts/{part} HTTP/1.1"
        line.sendall(f"{head}\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n".encode())
        status = line.recv(1024).split(b" ")[1]
    assert status == (b"404" if part.endswith("/1") else b"400")


@pytest.mark.parametrize("version", ["9" * 5000, "9" * 15, "0", "-1", "x", "\u00b2"])
def test_a_version_that_no_model_has(api: Client, version: str) -> None:
    answer = api.get("/model-versions/get-artifact", params={"name": "m\x00", "version": version, "path": "p"})
    assert said(answer)[:2] == (404, "RESOURCE_DOES_NOT_EXIST")


def test_a_run_that_has_a_nul_in_its_name(api: Client) -> None:
    answer = api.get("/get-artifact", params={"run_id": "a\x00b", "path": "p"})
    assert said(answer)[:2] == (404, "RESOURCE_DOES_NOT_EXIST")


@pytest.mark.parametrize("whose", ["ours", "mlflow's"])
def test_large_files_that_are_put_together_keep_nobody_else_waiting(
    api: Client, run_id: str, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    def complete(_uploads: UploadService, upload_id: str, **_named: object) -> Artifact:
        begun.release()
        assert go_on.wait(60)
        return Artifact(path=upload_id, digest="0" * 64, size_bytes=0, created_at=1.0)

    def ask(number: int) -> int:
        if whose == "ours":
            return api.post(f"/api/artifact-uploads/{number}/complete").status_code
        asked = {"path": "x", "upload_id": str(number), "parts": [{"part_number": 1, "etag": "e"}]}
        return api.post("/api/2.0/mlflow-artifacts/mpu/complete/0/r", json=asked).status_code

    monkeypatch.setattr(UploadService, "complete", complete)
    with ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(ask, number) for number in range(8)]
        try:
            for _ in range(4):
                assert begun.acquire(timeout=30)
            assert not begun.acquire(timeout=1.0), "a fifth one has begun"
            assert api.get(f"/api/runs/{run_id}/artifacts").status_code == 200
        finally:
            go_on.set()
        assert {one.result(60) for one in asking} == {200}


def test_json_that_is_too_deep_is_no_json(api: Client) -> None:
    deep = "[" * 100_000
    answer = api.post("/api/2.0/mlflow-artifacts/mpu/create/0/r", content=deep)
    assert said(answer)[:2] == (400, "INVALID_PARAMETER_VALUE")


def test_a_client_that_goes_away_leaves_nothing(api: Client, settings: Settings) -> None:
    host, port = api.base_url.host, api.base_url.port
    assert port is not None
    with socket.create_connection((host, port)) as line:
        head = {"Host": "x", "Authorization": api.headers.get("Authorization", ""), "Content-Length": str(len(BIG))}
        lines = [f"PUT {TREE}/0/r/half HTTP/1.1", *(f"{name}: {value}" for name, value in head.items()), "", ""]
        line.sendall("\r\n".join(lines).encode())
        line.sendall(BIG[: 3 << 20])
    api.put(f"{TREE}/0/r/whole", content=BIG).raise_for_status()
    assert api.get(TREE, params={"path": "0/r"}).json()["files"] == [
        {"path": "whole", "is_dir": False, "file_size": len(BIG)}
    ]
    incoming = settings.home / "blobs" / "artifacts"
    for _ in range(500):
        if not list(incoming.glob(".incoming-*")):
            return
        api.get("/health")
    raise AssertionError("what it has sent is still there")


def test_files_in_a_folder_of_this_machine(api: Client, tmp_path: Path) -> None:
    """A client that keeps a run's artifacts in a folder by itself: the server reads them, and no others."""
    root = tmp_path / "own"
    made = api.post(
        "/api/2.0/mlflow/experiments/create", json={"name": "own", "artifact_location": root.as_uri()}
    ).raise_for_status()
    run = api.post("/api/2.0/mlflow/runs/create", json={"experiment_id": made.json()["experiment_id"]}).json()["run"]
    folder = root / run["info"]["run_id"] / "artifacts"
    (folder / "dir").mkdir(parents=True)
    (folder / "dir" / "x.txt").write_bytes(BIG)
    (tmp_path / "secret").write_text("secret")
    (folder / "out").symlink_to(tmp_path / "secret")
    asked = {"run_id": run["info"]["run_id"]}
    listed = api.get("/api/2.0/mlflow/artifacts/list", params=asked).json()
    assert [item["path"] for item in listed["files"]] == ["dir", "out"]
    got = api.get("/get-artifact", params={**asked, "path": "dir/x.txt"}, headers={"Range": "bytes=5-9"})
    assert (got.status_code, got.content) == (206, BIG[5:10])
    outside = api.get("/get-artifact", params={**asked, "path": "out"})
    assert said(outside)[:2] == (400, "INVALID_PARAMETER_VALUE")
    sent = api.post("/ajax-api/2.0/mlflow/upload-artifact", params={**asked, "path": "n/new.txt"}, content=b"hello")
    assert sent.status_code == 200
    assert (folder / "n" / "new.txt").read_text() == "hello"


def test_the_servers_own_folder_is_nobodys_artifacts(api: Client, settings: Settings) -> None:
    given = {"name": "sly", "artifact_location": settings.home.as_uri()}
    made = api.post("/api/2.0/mlflow/experiments/create", json=given).raise_for_status().json()
    run = api.post("/api/2.0/mlflow/runs/create", json={"experiment_id": made["experiment_id"]}).json()["run"]
    folder = settings.home / run["info"]["run_id"] / "artifacts"
    folder.mkdir(parents=True)
    (folder / "x").write_text("x")
    got = api.get("/get-artifact", params={"run_id": run["info"]["run_id"], "path": "x"})
    assert said(got)[:2] == (400, "INVALID_PARAMETER_VALUE")


# ---- our own routes --------------------------------------------------------------------------------------------------


def test_our_own_routes(api: Client, run_id: str) -> None:
    base = f"/api/runs/{run_id}/artifacts"
    kept = api.put(f"{base}/dir/x.bin", content=BIG).raise_for_status().json()
    assert (kept["path"], kept["digest"], kept["size_bytes"]) == ("dir/x.bin", sha(BIG), len(BIG))
    api.put(f"{base}/y", content=b"y").raise_for_status()
    listed = api.get(base).json()
    assert [(item["path"], item["is_dir"]) for item in listed["files"]] == [("dir", True), ("y", False)]
    deep = api.get(base, params={"recursive": True}).json()
    assert [item["path"] for item in deep["files"]] == ["dir/x.bin", "y"]
    assert [item["path"] for item in api.get(base, params={"path": "dir", "recursive": True}).json()["files"]] == [
        "dir/x.bin"
    ]
    assert api.get(f"{base}/dir/x.bin", headers={"Range": "bytes=3-4"}).content == BIG[3:5]
    assert api.get(f"{base}/nothing").json()["code"] == "not_found"
    assert api.get(f"{base}/dir").status_code == 409
    assert api.put(f"{base}/y/z", content=b"").json()["message"] == "'y/z' cannot lie in 'y', which is a file"
    assert api.put(f"{base}/dir", content=b"").json()["message"] == "'dir' is a folder"
    assert api.put(f"{base}/%2e%2e/z", content=b"").status_code == 422
    assert api.delete(f"{base}/dir").json() == {"files": 1}
    assert api.delete(f"{base}/dir").status_code == 404
    assert api.get("/api/runs/nobody/artifacts").status_code == 404


def logged(api: Client, run_id: str, name: str, **files: bytes) -> str:
    body = {"experiment_id": "0", "name": name, "source_run_id": run_id}
    info = api.post("/api/2.0/mlflow/logged-models", json=body).raise_for_status().json()["model"]["info"]
    for path, content in files.items():
        tree = info["artifact_uri"].removeprefix("mlflow-artifacts:/")
        api.put(f"/api/2.0/mlflow-artifacts/artifacts/{tree}/{path}", content=content).raise_for_status()
    return str(info["model_id"])


def test_files_of_logged_models_are_found_by_them_and_below_their_names(api: Client, run_id: str) -> None:
    base = f"/api/runs/{run_id}/artifacts"
    api.put(f"{base}/net/own", content=b"own").raise_for_status()
    old = logged(api, run_id, "net", MLmodel=b"old")
    time.sleep(0.01)  # the newest is meant
    new = logged(api, run_id, "net", MLmodel=b"new", own=b"model's")
    logged(api, "other", "else", x=b"x")
    listed = api.get(base).json()
    assert [item["path"] for item in listed["files"]] == ["net"]
    assert listed["models"] == [{"id": new, "name": "net"}, {"id": old, "name": "net"}]
    for query in ({"path": "net"}, {"path": "net", "recursive": True}):
        assert [item["path"] for item in api.get(base, params=query).json()["files"]] == ["net/MLmodel", "net/own"]
    assert api.get(f"{base}/net/MLmodel").content == b"new"
    assert api.get(f"{base}/net/own").content == b"own"
    for path in ("else/x", "net/nothing", "nothing"):
        assert api.get(f"{base}/{path}").status_code == 404
    assert api.get(base, params={"path": "else"}).json()["files"] == []
    for ref in (old, old[:12]):
        listed = api.get(f"/api/runs/{ref}/artifacts").json()
        assert (listed["run_id"], [item["path"] for item in listed["files"]]) == (old, ["MLmodel"])
        assert api.get(f"/api/runs/{ref}/artifacts/MLmodel").content == b"old"
    assert "short for several logged models" in api.get("/api/runs/m-/artifacts").json()["message"]
    assert api.get("/api/runs/m-none/artifacts").json()["message"] == "there is no logged model 'm-none'"
    assert api.put(f"/api/runs/{old}/artifacts/x", content=b"x").status_code == 404
    named = api.post("/api/2.0/mlflow/runs/create", json={"experiment_id": "0", "run_name": old[:9]}).json()
    assert api.get(f"/api/runs/{old[:9]}/artifacts").json()["run_id"] == named["run"]["info"]["run_id"]


def test_an_upload_goes_on_where_it_broke_off(api: Client, run_id: str) -> None:
    made = api.post(f"/api/runs/{run_id}/artifact-uploads", json={"path": "big"}).raise_for_status().json()
    base = f"/api/artifact-uploads/{made['id']}"
    api.put(f"{base}/parts/2", content=BIG[3_000_000:]).raise_for_status()
    assert api.post(f"{base}/complete").status_code == 422
    [there] = api.get(base).json()["parts"]
    assert (there["number"], there["digest"]) == (2, sha(BIG[3_000_000:]))
    api.put(f"{base}/parts/1", content=BIG[:3_000_000]).raise_for_status()
    wrong = api.post(f"{base}/complete", json={"digest": "0" * 64})
    assert (wrong.status_code, wrong.json()["hint"]) == (422, "the file has changed")
    assert api.post(f"{base}/complete", json={"digest": sha(BIG)}).json()["digest"] == sha(BIG)
    assert api.get(f"/api/runs/{run_id}/artifacts/big").content == BIG
    assert api.get(base).status_code == 404
    assert api.delete(base).status_code == 204
    assert api.put(f"{base}/parts/0", content=b"").status_code == 422


def test_the_server_deletes_what_nobody_names(tmp_path: Path, database_url: str) -> None:
    home, clock = tmp_path / "home", FakeClock()
    prepare(home)
    settings = Settings(home=home, database_url=database_url, role=Role.CONTROLLER)
    parts = compose(settings, open_engines=lambda _nudge: {}, clock=clock)
    assert parts.retention is not None
    artifacts, room = parts.services.artifacts, LocalBlobs(home / "blobs").room("artifacts")
    snapshot = parts.services.blobs.put(b"gone")  # the same content as a file of code
    for name in ("kept", "gone"):
        artifacts.put_bytes(f"0/r/{name}", name.encode())
    artifacts.delete("0/r/gone")
    parts.retention.sweep()
    assert sorted(room.digests()) == sorted([sha(b"gone"), sha(b"kept")])
    clock.advance(86_401)
    parts.retention.sweep()
    assert list(room.digests()) == [sha(b"kept")]
    assert parts.services.blobs.has(snapshot)
    parts.db.close()
