"""Secrets: kept sealed, handed to engines only, shown nowhere."""

from __future__ import annotations

import logging
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import inspect, text

from windlass.core.errors import BadSeal, InvalidInput, InvalidSpec
from windlass.core.resources import Placement
from windlass.db.database import Database
from windlass.engines.contract import Launch
from windlass.runs.sealing import KEY_VARIABLE, Seal
from windlass.runs.service import RunService
from windlass.wire import runs as wire

VALUE = "hunter2-correct-horse"


def submit(service: RunService, key: str | None = None, **secrets: str) -> wire.RunView:
    spec = {"command": "true", "code": None, "secrets": sorted(secrets)}
    return service.submit(wire.SubmitRequest(spec=spec, secrets=secrets), idempotency_key=key, user=None)


def opened(db: Database, seal: Seal, run_id: str) -> dict[str, str]:
    with db.read() as tx:
        return seal.open(tx, run_id)


def dump(db: Database) -> str:
    """Every row of every table, as text; bytes as they are."""
    rows: list[Any] = []
    with db.read() as tx:
        for table in inspect(tx).get_table_names():
            rows += [tuple(bytes(v) if isinstance(v, memoryview) else v for v in row)
                     for row in tx.execute(text(f"SELECT * FROM {table}"))]  # fmt: skip
    return repr(rows)


def test_what_is_sealed_can_be_opened(service: RunService, database: Database, seal: Seal) -> None:
    run = submit(service, TOKEN=VALUE, OTHER="ü\n''")
    assert opened(database, seal, run.id) == {"TOKEN": VALUE, "OTHER": "ü\n''"}
    assert opened(database, seal, submit(service).id) == {}


def test_the_value_is_nowhere(
    service: RunService, database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    run = submit(service, "key", TOKEN=VALUE)
    shown = [
        run.model_dump_json(),
        service.page(states=[], project=None, name=None, cursor=None, limit=9).model_dump_json(),
        service.events(run.id, after=0).model_dump_json(),
        service.why(run.id).model_dump_json(),
        service.clone(run.id, wire.CloneRequest(), user=None).model_dump_json(),
        caplog.text,
        dump(database),
    ]
    assert run.spec.secrets == ["TOKEN"]
    assert not [part for part in shown if VALUE in part]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert VALUE.encode() not in path.read_bytes(), path


def test_a_launch_does_not_show_its_secrets() -> None:
    launch = Launch(
        run_id="r-1", attempt_id="r-1.1", attempt=1, placement=Placement(engine="fake"), argv=("true",),
        workers_per_node=1, self_launching=False, env={}, secrets={"TOKEN": VALUE},
    )  # fmt: skip
    assert VALUE not in repr(launch)
    assert VALUE not in str(launch)


def test_a_clone_has_the_secrets_of_its_original_unless_given_others(
    service: RunService, database: Database, seal: Seal
) -> None:
    run = submit(service, A="one", B="two")
    clone = service.clone(run.id, wire.CloneRequest(secrets={"B": "other"}), user=None)
    assert opened(database, seal, clone.id) == {"A": "one", "B": "other"}
    fewer = service.clone(run.id, wire.CloneRequest(set={"secrets": ["A"]}), user=None)
    assert opened(database, seal, fewer.id) == {"A": "one"}


def test_a_secret_without_a_value_is_refused_by_name_and_so_is_a_value_without_a_secret(service: RunService) -> None:
    spec = {"command": "true", "secrets": ["TOKEN"]}
    with pytest.raises(InvalidSpec, match="no value for TOKEN"):
        service.submit(wire.SubmitRequest(spec=spec), idempotency_key=None, user=None)
    with pytest.raises(InvalidInput, match="EXTRA, which is not among the spec's `secrets`") as refused:
        service.submit(
            wire.SubmitRequest(spec=spec, secrets={"TOKEN": "x", "EXTRA": VALUE}), idempotency_key=None, user=None
        )
    assert VALUE not in str(refused.value)


def test_without_the_key_secrets_stay_sealed(service: RunService, database: Database, tmp_path: Path) -> None:
    run = submit(service, TOKEN=VALUE)
    with pytest.raises(BadSeal, match="were sealed with another key"):
        opened(database, Seal(tmp_path / "other.key"), run.id)
    with pytest.raises(BadSeal, match=f"no key for secrets: set {KEY_VARIABLE}"):
        opened(database, Seal(None), run.id)


def test_a_key_from_the_environment_is_used_and_not_written(
    service: RunService, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cryptography.fernet import Fernet

    monkeypatch.setenv(KEY_VARIABLE, Fernet.generate_key().decode())
    run = submit(service, TOKEN=VALUE)
    assert opened(database, Seal(None), run.id) == {"TOKEN": VALUE}
    assert not (tmp_path / "secret.key").exists()


def test_a_key_that_is_none_is_told(service: RunService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "short")
    with pytest.raises(BadSeal, match=f"{KEY_VARIABLE} is not a key"):
        submit(service, TOKEN=VALUE)


def test_the_key_is_nobody_elses_to_read(service: RunService, tmp_path: Path) -> None:
    submit(service, TOKEN=VALUE)
    assert stat.S_IMODE((tmp_path / "secret.key").stat().st_mode) == 0o600
    assert not list(tmp_path.glob("secret.*[!y]"))


def test_the_first_secrets_of_many_threads_agree_on_one_key(
    service: RunService, database: Database, tmp_path: Path
) -> None:
    start = threading.Barrier(8)

    def race(number: int) -> str:
        start.wait()
        return submit(service, TOKEN=f"{VALUE}-{number}").id

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(race, range(8)))
    again = Seal(tmp_path / "secret.key")
    assert [opened(database, again, run_id) for run_id in ids] == [{"TOKEN": f"{VALUE}-{n}"} for n in range(8)]
