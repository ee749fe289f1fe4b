"""The registry does the same on both databases: numbers are given once, names are what they were called."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import insert, select

from tests.contract.locks import until_it_waits
from windlass.core.errors import AlreadyExists, InvalidInput, NotFound, WindlassError
from windlass.db.database import Database
from windlass.experiments.tables import logged_model_tags, logged_models, tracked_runs
from windlass.registry import store
from windlass.registry.service import RegistryService
from windlass.registry.tables import model_versions
from windlass.registry.types import PROMPT_TAG, ModelVersion, NewVersion, Stage
from windlass.testing.clock import FakeClock


@pytest.fixture
def registry(database: Database, clock: FakeClock) -> RegistryService:
    return RegistryService(db=database, clock=clock)


def add_model(registry: RegistryService, name: str, **tags: str) -> None:
    registry.create_model(name, tags=tags, description=None)


def add_version(registry: RegistryService, name: str, run_id: str = "run", **tags: str) -> ModelVersion:
    return registry.create_version(NewVersion(name=name, source=f"s3://b/{run_id}", run_id=run_id, tags=tags))


def models(registry: RegistryService, filter: str = "", *orders: str) -> list[str]:
    found, _ = registry.search_models(filter=filter, orders=orders, most=100, token=None)
    return [model.name for model in found]


def versions(registry: RegistryService, filter: str = "", *orders: str) -> list[tuple[str, int]]:
    found, _ = registry.search_versions(filter=filter, orders=orders, most=100, token=None)
    return [(version.name, version.version) for version in found]


def test_a_model_is_what_it_was_made_of(registry: RegistryService, clock: FakeClock) -> None:
    made = registry.create_model("m", tags={"b": "2", "a": "1"}, description="about")
    assert registry.get_model("m") == made
    assert made.created_at == clock.now()
    clock.advance(5)
    changed = registry.update_model("m", description="else")
    assert (changed.description, changed.updated_at, changed.created_at) == ("else", clock.now(), made.created_at)
    with pytest.raises(NotFound, match="Registered Model with name=other not found"):
        registry.update_model("other", description="x")


def test_a_name_is_taken_once(registry: RegistryService) -> None:
    add_model(registry, "model")
    add_model(registry, "prompt", **{PROMPT_TAG: "true"})
    for name, tags, why in [
        ("model", {}, r"Registered Model \(name=model\) already exists"),
        ("prompt", {PROMPT_TAG: "true"}, r"Prompt \(name=prompt\) already exists"),
        ("model", {PROMPT_TAG: "true"}, "Tried to create a prompt with name 'model'"),
        ("prompt", {}, "already taken by a prompt"),
    ]:
        with pytest.raises(AlreadyExists, match=why):
            add_model(registry, name, **tags)
    assert registry.get_model("model").tags == {}


def test_renaming_takes_everything_along(registry: RegistryService, clock: FakeClock) -> None:
    add_model(registry, "old", a="1")
    add_version(registry, "old", b="2")
    registry.set_alias("old", "best", 1)
    add_model(registry, "other")
    clock.advance(1)
    renamed = registry.rename_model("old", "new")
    assert (renamed.name, renamed.tags, renamed.aliases) == ("new", {"a": "1"}, {"best": 1})
    assert registry.get_version("new", 1).tags == {"b": "2"}
    assert registry.get_version("new", 1).updated_at == clock.now()
    with pytest.raises(NotFound):
        registry.get_model("old")
    with pytest.raises(AlreadyExists, match=r"Registered Model \(name=other\) already exists"):
        registry.rename_model("new", "other")
    with pytest.raises(NotFound):
        registry.rename_model("old", "newer")


def test_deleting_a_model_deletes_all_of_it(registry: RegistryService) -> None:
    add_model(registry, "m", a="1")
    add_version(registry, "m", b="2")
    registry.set_alias("m", "best", 1)
    registry.delete_model("m")
    with pytest.raises(NotFound):
        registry.delete_model("m")
    add_model(registry, "m")
    assert registry.get_model("m").tags == {}
    assert add_version(registry, "m").version == 1


def test_many_at_once_get_different_numbers(registry: RegistryService) -> None:
    add_model(registry, "m")
    start = threading.Barrier(6)

    def create(_number: int) -> list[int]:
        start.wait()
        return [add_version(registry, "m").version for _ in range(5)]

    with ThreadPoolExecutor(6) as pool:
        numbers = [number for some in pool.map(create, range(6)) for number in some]
    assert sorted(numbers) == list(range(1, 31))


def test_a_version_that_is_being_deleted_gets_no_alias_and_no_tag(
    registry: RegistryService, database: Database, clock: FakeClock
) -> None:
    add_model(registry, "m")
    for version, deed in enumerate(
        (
            lambda: registry.set_alias("m", "best", 1),
            lambda: registry.set_version_tag("m", 2, "k", "v"),
            lambda: registry.delete_version_tag("m", 3, "k"),
        ),
        1,
    ):
        add_version(registry, "m")
        with ThreadPoolExecutor(1) as pool:
            with database.write() as tx:
                store.lock_model(tx, "m")
                store.redact_version(tx, "m", version, at=clock.now())
                deeds = pool.submit(deed)
                until_it_waits(database, deeds)
            with pytest.raises(NotFound, match=rf"Model Version \(name=m, version={version}\) not found"):
                deeds.result(60)
    assert registry.get_model("m").aliases == {}


def test_no_alias_is_left_of_a_deleted_version(registry: RegistryService, database: Database) -> None:
    add_model(registry, "m")
    add_version(registry, "m")
    with ThreadPoolExecutor(1) as pool:
        with database.write() as tx:
            store.lock_model(tx, "m")
            store.put_alias(tx, "m", "best", 1)
            deletion = pool.submit(registry.delete_version, "m", 1)
            until_it_waits(database, deletion)
        deletion.result(60)
    assert registry.get_model("m").aliases == {}


def test_of_two_versions_that_move_at_once_one_is_archived(
    registry: RegistryService, database: Database, clock: FakeClock
) -> None:
    add_model(registry, "m")
    add_version(registry, "m")
    add_version(registry, "m")
    with ThreadPoolExecutor(1) as pool:
        with database.write() as tx:
            store.lock_model(tx, "m")
            store.update_version(tx, "m", 1, stage=Stage.PRODUCTION, updated_at=clock.now())
            moving = pool.submit(registry.move_version, "m", 2, "Production", archive_existing=True)
            until_it_waits(database, moving)
        moving.result(60)
    assert [registry.get_version("m", version).stage for version in (1, 2)] == [Stage.ARCHIVED, Stage.PRODUCTION]


def test_the_number_of_a_deleted_version_is_not_given_again(registry: RegistryService, database: Database) -> None:
    add_model(registry, "m")
    add_version(registry, "m", run_id="secret-run")
    registry.set_alias("m", "best", 1)
    registry.delete_version("m", 1)
    assert add_version(registry, "m").version == 2
    assert registry.get_model("m").aliases == {}
    with pytest.raises(NotFound, match=r"Model Version \(name=m, version=1\) not found"):
        registry.get_version("m", 1)
    with pytest.raises(NotFound):
        registry.delete_version("m", 1)
    with database.read() as tx:
        row = tx.execute(select(model_versions).where(model_versions.c.version == 1)).one()
    assert "secret-run" not in repr(row)


@pytest.mark.parametrize("version", [0, -1, 2, 2**31, 10**30])
def test_versions_that_are_not_there(registry: RegistryService, version: int) -> None:
    add_model(registry, "m")
    add_version(registry, "m")
    with pytest.raises(NotFound):
        registry.get_version("m", version)
    with pytest.raises(NotFound):
        registry.set_version_tag("m", version, "a", "b")


def test_stages_and_the_latest_of_each(registry: RegistryService) -> None:
    add_model(registry, "m")
    for _ in range(3):
        add_version(registry, "m")
    registry.move_version("m", 1, "staging", archive_existing=False)
    registry.move_version("m", 2, "PRODUCTION", archive_existing=False)
    assert {v.stage: v.version for v in registry.latest_versions("m", [])} == {
        "Staging": 1,
        "Production": 2,
        "None": 3,
    }
    registry.move_version("m", 3, "Production", archive_existing=True)
    assert registry.get_version("m", 2).stage == "Archived"
    assert [v.version for v in registry.latest_versions("m", ["production"])] == [3]
    with pytest.raises(WindlassError, match="'None' is not an Active stage"):
        registry.move_version("m", 3, "None", archive_existing=True)
    with pytest.raises(InvalidInput, match="Invalid Model Version stage: live"):
        registry.move_version("m", 3, "live", archive_existing=False)


def test_aliases_point_to_one_version(registry: RegistryService) -> None:
    add_model(registry, "m")
    add_version(registry, "m")
    add_version(registry, "m")
    registry.set_alias("m", "best", 1)
    registry.set_alias("m", "best", 2)
    assert registry.get_version_by_alias("m", "best").aliases == ["best"]
    assert registry.get_version("m", 1).aliases == []
    assert registry.get_version_by_alias("m", "latest").version == 2
    registry.delete_alias("m", "best")
    with pytest.raises(InvalidInput, match="Registered model alias best not found"):
        registry.get_version_by_alias("m", "best")
    with pytest.raises(NotFound):
        registry.set_alias("m", "best", 3)


def test_tags_are_set_replaced_and_deleted(registry: RegistryService) -> None:
    add_model(registry, "m")
    add_version(registry, "m")
    for value in ("1", "2"):
        registry.set_model_tag("m", "a", value)
        registry.set_version_tag("m", 1, "b", value)
    assert registry.get_model("m").tags == {"a": "2"}
    assert registry.get_version("m", 1).tags == {"b": "2"}
    registry.delete_model_tag("m", "a")
    registry.delete_version_tag("m", 1, "b")
    registry.delete_version_tag("m", 1, "b")
    assert registry.get_model("m").tags == registry.get_version("m", 1).tags == {}
    with pytest.raises(NotFound):
        registry.set_model_tag("other", "a", "b")


def test_searching_models(registry: RegistryService, clock: FakeClock) -> None:
    for name in ("alpha", "Beta", "a_c", "abc"):
        add_model(registry, name, kind=name[0], **({"only": "yes"} if name == "abc" else {}))
        clock.advance(1)
    assert models(registry) == ["Beta", "a_c", "abc", "alpha"]
    assert models(registry, "name LIKE 'a%'") == ["a_c", "abc", "alpha"]
    assert models(registry, "name LIKE 'b%'") == []
    assert models(registry, "name ILIKE 'b%'") == ["Beta"]
    assert models(registry, "name LIKE 'a_c'") == ["a_c", "abc"]
    assert models(registry, "name LIKE '*[a'") == []
    assert models(registry, "tags.kind = 'a' AND name != 'abc'") == ["a_c", "alpha"]
    assert models(registry, "tags.kind != 'a'") == ["Beta"]
    assert models(registry, "tags.only != 'no'") == ["abc"]
    assert models(registry, "tags.kind LIKE 'a' AND tags.kind != 'b' AND tag.only = 'yes'") == ["abc"]
    assert models(registry, "name IN ('abc', 'Beta')") == ["Beta", "abc"]
    assert models(registry, "", "timestamp DESC") == ["abc", "a_c", "Beta", "alpha"]


def test_pages_are_whole_and_follow_each_other(registry: RegistryService) -> None:
    for number in range(5):
        add_model(registry, f"m{number}")
    seen, token = [], None
    for _ in range(3):
        found, token = registry.search_models(filter="", orders=[], most=2, token=token)
        seen.append([model.name for model in found])
    assert (seen, token) == ([["m0", "m1"], ["m2", "m3"], ["m4"]], None)
    with pytest.raises(InvalidInput, match="at most 1000, but got value 1001"):
        registry.search_models(filter="", orders=[], most=1001, token=None)
    with pytest.raises(InvalidInput, match="positive integer"):
        registry.search_versions(filter="", orders=[], most=0, token=None)


def test_searching_versions(registry: RegistryService, clock: FakeClock) -> None:
    for name in ("a", "b"):
        add_model(registry, name)
        for number in range(2):
            clock.advance(1)
            add_version(registry, name, run_id=f"{name}{number}", team="x" if number else "y")
    assert versions(registry) == [("b", 2), ("b", 1), ("a", 2), ("a", 1)]
    assert versions(registry, "version_number = 2 AND name = 'a'") == [("a", 2)]
    assert versions(registry, "run_id IN ('a0', 'b1')", "name") == [("a", 1), ("b", 2)]
    assert versions(registry, "run_id IN ('A0')") == []
    assert versions(registry, "source_path = 's3://b/a0'") == [("a", 1)]
    assert versions(registry, "tags.team = 'x'", "name DESC") == [("b", 2), ("a", 2)]
    assert versions(registry, "", "version_number") == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    registry.delete_version("a", 1)
    assert versions(registry, "name = 'a'") == [("a", 2)]


def test_prompts_are_searched_apart(registry: RegistryService) -> None:
    add_model(registry, "model", fruit="apple")
    add_model(registry, "prompt", fruit="apple", **{PROMPT_TAG: "true"})
    add_version(registry, "model")
    for text in ("one", "two"):
        tags = {PROMPT_TAG: "true", "mlflow.prompt.text": text}
        registry.create_version(NewVersion(name="prompt", source="prompt-template", tags=tags))
    asked = f"tags.`{PROMPT_TAG}` = 'true'"
    assert models(registry) == models(registry, "tags.fruit = 'apple'") == ["model"]
    assert models(registry, f"tags.`{PROMPT_TAG}` != 'true'") == ["model"]
    assert models(registry, f"{asked} AND tags.fruit = 'apple'") == ["prompt"]
    assert versions(registry) == [("model", 1)]
    assert versions(registry, f"{asked} AND name = 'prompt'") == [("prompt", 2), ("prompt", 1)]


def test_a_copy_knows_where_the_files_are(registry: RegistryService) -> None:
    add_model(registry, "a")
    add_model(registry, "b")
    add_version(registry, "a", run_id="r1")
    registry.set_alias("a", "best", 1)
    for source in ("models:/a/1", "models:/a@best", "models:/a/latest", "models:/a/None"):
        copy = registry.create_version(NewVersion(name="b", source=source))
        assert (copy.source, registry.download_uri("b", copy.version)) == (source, "s3://b/r1")
    for source in ("models:/a/9", "models:/a@worst", "models:/c/latest"):
        with pytest.raises(WindlassError, match="Unable to fetch model from model URI source artifact location"):
            registry.create_version(NewVersion(name="b", source=source))


def test_a_version_of_a_logged_model(registry: RegistryService, database: Database) -> None:
    add_model(registry, "m")
    row = {
        "id": "m-1",
        "experiment_id": 1,
        "name": "logged",
        "artifact_location": "s3://x/m-1",
        "created_ms": 1,
        "updated_ms": 1,
        "status": 2,
        "stage": "active",
        "source_run_id": "r1",
    }
    with database.write() as tx:
        tx.execute(insert(logged_models).values(**row))
    made = registry.create_version(NewVersion(name="m", source="models:/m-1", model_id="m-1"))
    assert (made.run_id, registry.download_uri("m", 1)) == ("r1", "s3://x/m-1")
    registry.create_version(NewVersion(name="m", source="s3://x/m-1", run_id="r2", model_id="m-1"))
    with database.read() as tx:
        noted = tx.execute(select(logged_model_tags.c.value).where(logged_model_tags.c.model_id == "m-1")).scalar_one()
    assert noted == '[{"name": "m", "version": 1}, {"name": "m", "version": 2}]'
    with pytest.raises(NotFound, match="Logged model with ID 'm-2' not found"):
        registry.create_version(NewVersion(name="m", source="s3://x/m-1", run_id="r2", model_id="m-2"))
    assert versions(registry) == [("m", 2), ("m", 1)]


def test_a_source_on_the_disk_belongs_to_its_run(registry: RegistryService, database: Database) -> None:
    add_model(registry, "m")
    row = {
        "id": "r1",
        "experiment_id": 0,
        "name": "run",
        "user": "u",
        "status": "FINISHED",
        "stage": "active",
        "artifact_uri": "file:///data/r1/artifacts",
    }
    with database.write() as tx:
        tx.execute(insert(tracked_runs).values(**row))
    made = registry.create_version(NewVersion(name="m", source="/data/r1/artifacts/model", run_id="r1"))
    assert made.source == "/data/r1/artifacts/model"
    for source, run_id in [("/data/r2", "r1"), ("/data/r1/artifacts/model", None)]:
        with pytest.raises(InvalidInput, match="To use a local path as a model version source"):
            registry.create_version(NewVersion(name="m", source=source, run_id=run_id))
    with pytest.raises(NotFound, match="Run with id=r9 not found"):
        registry.create_version(NewVersion(name="m", source="/data/r1", run_id="r9"))


def test_a_version_of_a_model_that_is_not_there(registry: RegistryService) -> None:
    with pytest.raises(NotFound, match="Registered Model with name=m not found"):
        add_version(registry, "m")


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800"])
def test_what_cannot_be_kept_is_refused(registry: RegistryService, text: str) -> None:
    add_model(registry, "m")
    for deed in (
        lambda: registry.get_model(text),
        lambda: registry.create_model("n", tags={"a": text}, description=None),
        lambda: registry.update_model("m", description=text),
        lambda: registry.create_version(NewVersion(name="m", source="s3://a/b", run_id=text)),
        lambda: registry.create_version(NewVersion(name="m", source="s3://a/b", model_id=text)),
        lambda: registry.search_models(filter=f"name = '{text}'", orders=[], most=1, token=None),
    ):
        with pytest.raises(InvalidInput, match="characters that cannot be stored"):
            deed()
