"""Fixtures that all tests share: a database of each kind, a clock, and services over them."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.blobs.local import LocalBlobs
from windlass.db.database import Database, sqlite_url
from windlass.db.migrate import migrate
from windlass.runs.sealing import Seal
from windlass.runs.service import RunService
from windlass.tenancy.prices import PriceBook
from windlass.testing.clock import FakeClock
from windlass.testing.kubernetes import KubernetesCluster, KubernetesUnavailable, running_kubernetes
from windlass.testing.postgres import PostgresServer, PostgresUnavailable, running_postgres
from windlass.testing.ray import RayCluster, RayUnavailable, running_ray
from windlass.testing.s3 import S3Server, S3Unavailable, running_s3
from windlass.testing.servers import fork_servers
from windlass.testing.slurm import SlurmCluster, SlurmUnavailable, running_slurm

BOTH_DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
_ALL_OF_TORCH = re.compile(r"^pytestmark = .*\bmark\.torch\b", re.MULTILINE)

fork_servers()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Who leaves out the tests of PyTorch does not load it either, in any of the test processes: that would take longer
    than to collect all the others."""
    if "not torch" not in config.option.markexpr or collection_path.suffix != ".py":
        return None
    return True if _ALL_OF_TORCH.search(collection_path.read_text()) else None


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of one cluster in one process: see `--dist loadgroup` in the Makefile. Beside others, those that may take
    longest come first, so that none of them is left alone at the end."""
    for item in items:
        for kind in ("ray", "slurm", "kubernetes"):
            if item.get_closest_marker(kind):
                item.add_marker(pytest.mark.xdist_group(kind))
    if hasattr(config, "workerinput"):
        items.sort(key=_patience_s, reverse=True)


def _patience_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0]) if marker else 0.0


def pytest_collection_finish() -> None:
    """Several test processes share the cores: a second thread of PyTorch in each would mostly wait for a core, and does
    so by using one."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the developer has set for their own server must not reach a test."""
    for name in [name for name in os.environ if name.startswith("WINDLASS_")]:
        monkeypatch.delenv(name)


def skip_unless_ci(what: str, reason: Exception) -> None:
    """A part that tests need is missing: elsewhere they are skipped, in CI that is a failure."""
    if os.environ.get("CI"):
        raise reason
    pytest.skip(f"no {what}: {reason}")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    try:
        with running_postgres() as server:
            yield server
    except PostgresUnavailable as reason:
        skip_unless_ci("PostgreSQL", reason)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    try:
        with running_s3() as server:
            yield server
    except S3Unavailable as reason:
        skip_unless_ci("S3 server", reason)


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmCluster]:
    """Three nodes. Tests that use them leave no job behind: see `SlurmRuns.clean_up`."""
    try:
        with running_slurm(nodes=3) as cluster:
            yield cluster
    except SlurmUnavailable as reason:
        skip_unless_ci("Slurm", reason)


@pytest.fixture(scope="session")
def kubernetes_cluster() -> Iterator[KubernetesCluster]:
    """A control plane and two nodes, n1 and n2, with the rights of an installation."""
    try:
        with running_kubernetes() as cluster:
            cluster.install_rights()
            for name in ("n1", "n2"):
                cluster.add_node(name)
            yield cluster
    except KubernetesUnavailable as reason:
        skip_unless_ci("Kubernetes", reason)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    """A head and two nodes, of which the first has two GPUs that are not there. Who kills one starts it again."""
    try:
        with running_ray() as cluster:
            cluster.start_head(cpus=4)
            cluster.start_node(1, cpus=4, gpus=2)
            cluster.start_node(2, cpus=4)
            yield cluster
    except RayUnavailable as reason:
        skip_unless_ci("Ray", reason)


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file to copy: migrating anew for every test would cost more than most tests."""
    path = tmp_path_factory.mktemp("template") / "windlass.db"
    db = Database(sqlite_url(path))
    migrate(db)
    db.close()
    return path


@pytest.fixture(scope="session")
def postgres_url(postgres_server: PostgresServer) -> str:
    """A migrated database that tests use one after another."""
    url = postgres_server.create_database()
    db = Database(url)
    migrate(db)
    db.close()
    return url


@pytest.fixture(params=BOTH_DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database with the current schema, once per kind of database."""
    if request.param == "sqlite":
        path = tmp_path / "windlass.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        return sqlite_url(path)
    url: str = request.getfixturevalue("postgres_url")
    server: PostgresServer = request.getfixturevalue("postgres_server")
    server.empty_database(url)
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    db = Database(database_url)
    yield db
    db.close()


@pytest.fixture
def sqlite(tmp_path: Path, sqlite_template: Path) -> Iterator[Database]:
    """For what does not depend on the kind of database."""
    path = tmp_path / "windlass.db"
    shutil.copy(sqlite_template, path)
    db = Database(sqlite_url(path))
    yield db
    db.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobs:
    return LocalBlobs(tmp_path / "blobs")


@pytest.fixture
def seal(tmp_path: Path) -> Seal:
    return Seal(tmp_path / "secret.key")


@pytest.fixture
def service(database: Database, blobs: LocalBlobs, seal: Seal, clock: FakeClock, tmp_path: Path) -> RunService:
    return RunService(database, blobs, seal, clock, prices=PriceBook(), runs_dir=tmp_path / "runs", nudge=lambda: None)
