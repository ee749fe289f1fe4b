"""The HTTP API over each kind of database: tokens, the one error shape, submission, snapshots, and what is shown."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest
from httpx import Client

from tests.integration.api_calls import SPEC, error_of, submit
from windlass.db.database import sqlite_url
from windlass.server.compose import compose
from windlass.server.homefolder import prepare
from windlass.server.settings import Role, Settings
from windlass.testing.postgres import PostgresServer
from windlass.testing.servers import serving

BOTH_DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(scope="module", params=BOTH_DATABASES)
def checking_api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """For requests that are refused and change nothing: one server for all of them."""
    home = tmp_path_factory.mktemp("home")
    prepare(home)
    server: PostgresServer | None = None
    url = sqlite_url(home / "windlass.db")
    if request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
        assert server is not None
        url = server.create_database()
    parts = compose(Settings(home=home, database_url=url, role=Role.API))
    with serving(parts) as client:
        yield client
    parts.db.close()
    if server is not None:
        server.drop_database(url)


# ---- tokens --------------------------------------------------------------------------------------------------------


def test_the_front_page_says_what_this_is_and_needs_no_token(checking_api: Client) -> None:
    answer = checking_api.get("/", headers={"Authorization": ""})
    assert answer.headers["content-type"].startswith("text/html")
    assert "Windlass" in answer.text
    assert 'href="/docs"' in answer.text


def test_health_needs_no_token(checking_api: Client) -> None:
    answer = checking_api.get("/health", headers={"Authorization": ""})
    assert answer.status_code == 200
    assert answer.json()["status"] == "ok"
    assert answer.json()["controller"] == "absent"


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", "Basic dTpw", "bearer ünïcode", "x" * 5_000])
def test_everything_else_needs_the_right_one(checking_api: Client, given: str) -> None:
    paths = [
        (method.upper(), path.replace("{ref}", "x"))
        for path, operations in checking_api.get("/openapi.json").json()["paths"].items()
        for method in operations
        if path.startswith("/api/")
    ]
    assert len(paths) > 10
    for method, path in paths:
        answer = checking_api.request(method, path, headers={"Authorization": given.encode()})
        error_of(answer, 401, "unauthorized")
        assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_the_scheme_may_be_written_in_any_case(checking_api: Client) -> None:
    token = str(checking_api.headers["Authorization"]).split()[1]
    assert checking_api.get("/api/info", headers={"Authorization": f"bEaReR  {token}"}).status_code == 200


def test_without_authentication_no_token_is_asked_for(settings: Settings) -> None:
    parts = compose(dataclasses.replace(settings, auth=False))
    with serving(parts) as client:
        info = client.get("/api/info")
        assert info.status_code == 200
        assert info.json()["auth"] is False
    parts.db.close()


# ---- one error shape -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/api/nowhere", 404, "not_found"),
        ("DELETE", "/api/runs", 405, "method_not_allowed"),
        ("GET", "/api/runs/r-none", 404, "not_found"),
        ("GET", "/api/runs/r-none/logs", 404, "not_found"),
        ("GET", "/api/runs/r-none/logs?follow=true", 404, "not_found"),
        ("GET", "/api/runs/r-none/stream", 404, "not_found"),
        ("GET", "/api/runs/r-none/metrics", 404, "not_found"),
        ("GET", "/api/runs/r-none/why", 404, "not_found"),
        ("GET", "/api/runs/r-none/diff", 404, "not_found"),
        ("POST", "/api/runs/r-none/cancel", 404, "not_found"),
        ("POST", "/api/runs/r-none/resume", 404, "not_found"),
        ("POST", "/api/runs/r-none/clone", 404, "not_found"),
        ("POST", "/api/runs", 422, "invalid_input"),
        ("GET", "/api/runs?limit=0", 422, "invalid_input"),
        ("GET", "/api/runs?limit=x", 422, "invalid_input"),
        ("GET", "/api/runs?cursor=x", 422, "invalid_input"),
        ("GET", "/api/runs?state=sleeping", 422, "invalid_input"),
        ("GET", "/api/runs/a%00b", 422, "invalid_input"),
        ("GET", "/api/runs?name=a%00b", 422, "invalid_input"),
        ("GET", "/api/runs?project=%ff", 200, ""),
    ],
)
def test_errors_have_one_shape(checking_api: Client, method: str, path: str, status: int, code: str) -> None:
    answer = checking_api.request(method, path)
    if status == 200:
        assert answer.status_code == 200
    else:
        error_of(answer, status, code)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b'"x"', b"\xff", b'{"spec": 5}', b'{"spec": {}, "extra": 1}', b"[" * 100_000,
        b'{"spec": {"command": "x"}, "secrets": {"A": 1}}', b'{"spec": {"\\ud800": 1}}',
        b'{"spec": {"command": "\\ud800"}}', b'{"\\ud800": 1}', b'{"spec": {"command": "x\\u0000"}}',
        b'{"spec": {"command": "x", "params": {"a": "\\u0000"}}}',
        b'{"spec": {"command": "x", "params": {"a": {"\\u0000": 1}}}}',
        b'{"spec": {"command": "x", "params": {"a": {"\\ud800": 1}}}}',
        b'{"spec": {"command": "x", "tags": {"\\u0000": "x"}}}',
        b'{"spec": {"command": "x", "tags": ["\\ud800"]}}',
        b'{"spec": {"command": "x", "params": {"a": NaN}}}',
        b'{"spec": {"command": "x", "params": {"a": 1e999}}}',
        b'{"spec": {"command": "x", "params": {"a": [-Infinity]}}}',
        b'{"spec": {"command": "x"}, "origin": {"git": {"diff": "\\ud800"}}}',
        b'{"spec": {"command": "x"}, "origin": {"env": {"A": "\\u0000"}}}',
    ],
)  # fmt: skip
def test_a_body_that_cannot_be_kept_is_refused(checking_api: Client, body: bytes) -> None:
    answer = checking_api.post("/api/runs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 413, 422), answer.text
    assert set(answer.json()) == {"code", "message", "hint"}
    assert checking_api.get("/api/runs").json()["runs"] == []


def test_a_large_number_in_params_is_kept_as_it_is(api: Client) -> None:
    assert submit(api, params={"n": 10**30, "tiny": 1e-300})["spec"]["params"] == {"n": 10**30, "tiny": 1e-300}


def test_every_problem_of_a_spec_is_told(checking_api: Client) -> None:
    answer = checking_api.post("/api/runs", json={"spec": {"comand": "x", "resources": {"gpu": 1}}})
    body = error_of(answer, 422, "invalid_spec")
    assert "did you mean `command`?" in body["message"]
    assert "did you mean `gpus`?" in body["message"]


# ---- runs ----------------------------------------------------------------------------------------------------------


def test_a_run_from_submission_to_resumption(api: Client) -> None:
    run = submit(api, params={"lr": 0.1})
    assert (run["state"], run["command"]) == ("queued", ["python", "train.py"])
    assert api.get(f"/api/runs/{run['id'][:7]}").json()["id"] == run["id"]
    assert api.get("/api/runs/gpt-small").json()["id"] == run["id"]
    assert api.post("/api/runs/gpt-small/cancel").json()["state"] == "cancelled"
    assert api.post("/api/runs/gpt-small/cancel", json={"grace_s": 0}).json()["state"] == "cancelled"
    assert api.post("/api/runs/gpt-small/resume").json()["state"] == "queued"
    error_of(api.post("/api/runs/gpt-small/resume"), 409, "conflict")
    clone = api.post("/api/runs/gpt-small/clone", json={"set": {"lr": 0.2}, "name": "b"})
    assert clone.status_code == 201
    assert clone.json()["spec"]["params"] == {"lr": 0.2}
    kinds = [event["kind"] for event in api.get(f"/api/runs/{run['id']}/events").json()["events"]]
    assert kinds == ["submitted", "cancelled", "resumed"]
    why = api.get(f"/api/runs/{run['id']}/why").json()
    assert why["summary"] == "waits for an engine: no nodes are known yet"
    assert api.get(f"/api/runs/{run['id']}/attempts").json() == {"attempts": []}


def test_a_repeated_submission_is_one_run(api: Client) -> None:
    assert submit(api, "k")["id"] == submit(api, "k")["id"]
    answer = api.post("/api/runs", json={"spec": {**SPEC, "name": "other"}}, headers={"Idempotency-Key": "k"})
    error_of(answer, 409, "idempotency_mismatch")


def test_a_wrong_name_gets_the_nearest(api: Client) -> None:
    submit(api)
    for path in ("/api/runs/gpt-smal", "/api/runs/gpt-smal/logs", "/api/runs/gpt-smal/why"):
        assert error_of(api.get(path), 404, "not_found")["hint"] == "did you mean 'gpt-small'?"


def test_runs_are_listed_in_pages(api: Client) -> None:
    made = {submit(api, name=f"n{number}")["id"] for number in range(5)}
    seen, cursor = [], ""
    while True:
        page = api.get("/api/runs", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        seen += [run["id"] for run in page["runs"]]
        if page["next_cursor"] is None:
            break
        cursor = page["next_cursor"]
    assert set(seen) == made
    assert len(seen) == 5
    assert len(api.get("/api/runs?state=queued&state=failed").json()["runs"]) == 5
    assert api.get("/api/runs?state=failed").json()["runs"] == []


def test_metrics_are_taken_once(api: Client) -> None:
    run_id = submit(api)["id"]
    batch = {"source": "me", "seq": 0, "points": [{"step": 1, "at": 1.0, "values": {"loss": 2.0}}]}
    assert api.post(f"/api/runs/{run_id}/metrics", json=batch).json() == {"accepted": 1, "next_seq": 1}
    assert api.post(f"/api/runs/{run_id}/metrics", json=batch).json() == {"accepted": 0, "next_seq": 1}
    error_of(api.post(f"/api/runs/{run_id}/metrics", json={**batch, "seq": 7}), 409, "conflict")
    [series] = api.get(f"/api/runs/{run_id}/metrics").json()["series"]
    assert series["values"] == [2.0]
    error_of(api.get(f"/api/runs/{run_id}/metrics?name=los"), 404, "not_found")


@pytest.mark.parametrize("values", ['{"\\ud800": 1}', '{"\\u0000": 1}', '{"": 1}', '{"a": "x"}', "[]"])
def test_metrics_that_cannot_be_kept_are_refused(api: Client, values: str) -> None:
    run_id = submit(api)["id"]
    body = '{"source": "s", "seq": 0, "points": [{"at": 1, "values": %s}]}' % values  # noqa: UP031
    answer = api.post(f"/api/runs/{run_id}/metrics", content=body, headers={"Content-Type": "application/json"})
    error_of(answer, 422, "invalid_input")


def test_numbers_that_json_has_not_are_shown(api: Client) -> None:
    run_id = submit(api)["id"]
    body = '{"source": "s", "seq": 0, "points": [{"at": 1, "values": {"a": NaN}}, {"at": 2, "values": {"a": 1e999}}]}'
    api.post(f"/api/runs/{run_id}/metrics", content=body, headers={"Content-Type": "application/json"})
    [series] = api.get(f"/api/runs/{run_id}/metrics").json()["series"]
    assert series["values"] == ["NaN", "Infinity"]
    assert api.get(f"/api/runs/{run_id}").json()["metrics"]["a"]["count"] == 2


def test_the_diff_of_a_dirty_folder_is_kept_apart(api: Client) -> None:
    git = {"commit": "abc", "dirty": True, "diff": "+ümlaut\n"}
    run = api.post("/api/runs", json={"spec": SPEC, "origin": {"git": git}}).json()
    assert run["origin"]["git"]["diff"] is None
    answer = api.get(f"/api/runs/{run['id']}/diff")
    assert answer.text == "+ümlaut\n"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert api.get(f"/api/runs/{submit(api)['id']}/diff").text == ""


def test_a_secret_is_never_given_back(api: Client) -> None:
    body = {"spec": {**SPEC, "secrets": ["TOKEN"]}, "secrets": {"TOKEN": "hunter2-very-secret"}}
    answer = api.post("/api/runs", json=body)
    run_id = answer.json()["id"]
    paths = ["", "/events", "/attempts", "/why", "/logs", "/metrics"]
    texts = [answer.text, api.get("/api/runs").text, *(api.get(f"/api/runs/{run_id}{path}").text for path in paths)]
    wrong = api.post("/api/runs", json={**body, "spec": SPEC})
    assert wrong.status_code == 422
    long = api.post("/api/runs", json={**body, "secrets": {"TOKEN": "hunter2-very-secret\0"}})
    assert long.status_code == 422
    assert not [text for text in [*texts, wrong.text, long.text] if "hunter2" in text]


# ---- snapshots and blobs -------------------------------------------------------------------------------------------


def tar(*members: tuple[str, bytes], kind: bytes = tarfile.REGTYPE) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            info.size = len(content) if kind == tarfile.REGTYPE else 0
            info.linkname = "/etc/passwd"
            archive.addfile(info, io.BytesIO(content))
    return target.getvalue()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_code_is_announced_sent_and_used(api: Client) -> None:
    files = [
        {"path": "train.py", "sha256": digest(b"print()"), "size": 7, "mode": 0o755},
        {"path": "sub/link", "link": "../train.py"},
    ]
    receipt = api.post("/api/snapshots", json={"files": files}).json()
    assert receipt["missing"] == [digest(b"print()")]
    body = {"spec": {"command": "python train.py"}, "code_digest": receipt["digest"]}
    assert "lacks 1 file" in error_of(api.post("/api/runs", json=body), 422, "invalid_input")["message"]
    assert api.post("/api/blobs", content=tar((digest(b"print()"), b"print()"))).status_code == 204
    again = api.post("/api/snapshots", json={"files": files[::-1]}).json()
    assert again == {"digest": receipt["digest"], "missing": []}
    assert api.post("/api/runs", json=body).json()["code_digest"] == receipt["digest"]


def test_an_empty_snapshot_and_an_empty_upload_are_fine(api: Client) -> None:
    receipt = api.post("/api/snapshots", json={"files": []}).json()
    assert receipt["missing"] == []
    assert api.post("/api/blobs", content=tar()).status_code == 204


@pytest.mark.parametrize(
    "file",
    [
        {"path": "../x", "sha256": "0" * 64},
        {"path": "/etc/passwd", "sha256": "0" * 64},
        {"path": "a/../../x", "sha256": "0" * 64},
        {"path": ".", "sha256": "0" * 64},
        {"path": "", "sha256": "0" * 64},
        {"path": "a\0b", "sha256": "0" * 64},
        {"path": "a"},
        {"path": "a", "sha256": "0" * 64, "link": "b"},
        {"path": "a", "sha256": "xyz"},
        {"path": "a", "sha256": "0" * 64, "size": -1},
        {"path": "a", "sha256": "0" * 64, "mode": 65536},
        {"path": "a", "sha256": "0" * 64, "owner": "root"},
    ],
)
def test_a_path_that_leads_outside_or_makes_no_sense_is_refused(checking_api: Client, file: dict[str, Any]) -> None:
    error_of(checking_api.post("/api/snapshots", json={"files": [file]}), 422, "invalid_input")


def test_a_path_twice_is_refused_however_it_is_written(checking_api: Client) -> None:
    files = [{"path": path, "sha256": "0" * 64} for path in ("a/b", "a//b")]
    assert (
        "twice" in error_of(checking_api.post("/api/snapshots", json={"files": files}), 422, "invalid_input")["message"]
    )


def test_a_file_inside_a_file_is_refused(checking_api: Client) -> None:
    files = [{"path": path, "sha256": "0" * 64} for path in ("a", "a/b")]
    error_of(checking_api.post("/api/snapshots", json={"files": files}), 422, "invalid_input")


def test_a_path_behind_a_link_is_refused(checking_api: Client) -> None:
    """Written through the link, it would land outside the working folder."""
    files = [{"path": "a", "link": "/tmp"}, {"path": "a/b", "sha256": "0" * 64}]
    error_of(checking_api.post("/api/snapshots", json={"files": files}), 422, "invalid_input")


@pytest.mark.parametrize(
    "content",
    [
        b"not a tar", b"x" * 10_240, tar(("../../evil", b"x")), tar(("/etc/evil", b"x")), tar(("0" * 64, b"wrong")),
        tar(("0" * 63, b"x")), tar(("0" * 64, b""), kind=tarfile.SYMTYPE), tar(("0" * 64, b""), kind=tarfile.DIRTYPE),
        tar((digest(b"x" * 600), b"x" * 600))[:700], tar((digest(b"x") + "\n", b"x")),
    ],
    ids=["text", "junk", "outside", "absolute", "other-content", "short-name", "link", "folder", "torn", "newline"],
)  # fmt: skip
def test_an_upload_that_is_not_what_it_says_is_refused(api: Client, settings: Settings, content: bytes) -> None:
    error_of(api.post("/api/blobs", content=content), 422, "invalid_input")
    kept = [path for path in (settings.home / "blobs").rglob("*") if path.is_file()]
    assert kept == [], "what was refused is not kept"


def test_a_blob_that_is_no_snapshot_cannot_be_run(api: Client) -> None:
    contents = [b"print()", b"5", b"[]", b'{"files": 5}', b'{"files": [5]}', b"\xff", b'{"files": [{"path": "x"}]}']
    escaping = {"path": "x", "sha256": "../../etc/passwd", "size": 1, "mode": 0o644}
    for content in [*contents, json.dumps({"files": [escaping]}).encode()]:
        api.post("/api/blobs", content=tar((digest(content), content)))
        answer = api.post("/api/runs", json={"spec": {"command": "x"}, "code_digest": digest(content)})
        assert "is not a code snapshot" in error_of(answer, 422, "invalid_input")["message"]


def test_a_manifest_that_was_sent_as_a_blob_is_checked_too(api: Client) -> None:
    entry = {"path": "../x", "link": "y", "size": 0, "mode": 0o644}
    content = json.dumps({"files": [entry]}).encode()
    api.post("/api/blobs", content=tar((digest(content), content)))
    answer = api.post("/api/runs", json={"spec": {"command": "x"}, "code_digest": digest(content)})
    assert "'../x' is not a path inside" in error_of(answer, 422, "invalid_input")["message"]


# ---- the description -----------------------------------------------------------------------------------------------


def test_the_description_is_there_and_says_what_errors_look_like(checking_api: Client) -> None:
    assert checking_api.get("/docs").status_code == 200
    schema = checking_api.get("/openapi.json").json()
    submitting = schema["paths"]["/api/runs"]["post"]
    assert submitting["security"] == [{"token": []}]
    assert {"201", "401", "409", "422"} <= set(submitting["responses"])
    for status in ("401", "404", "409", "422"):
        shown = submitting["responses"][status]["content"]["application/json"]["schema"]
        assert shown == {"$ref": "#/components/schemas/ErrorBody"}, status
    assert "command" in schema["components"]["schemas"]["RunSpec"]["properties"]
    assert json.dumps(schema)
