"""A pytest plugin for MLflow's own test suites: wherever a suite starts a server of MLflow's, it gets one of the kind
that `SUITE_SERVER` names (`windlass` or `mlflow`), and stores over a database become stores over REST.

`run_suites.py` beside this file says how it is used. It runs in MLflow's environment, so it imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

KIND = os.environ.get("SUITE_SERVER", "windlass")
WITHIN = os.environ.get("SUITE_WITHIN") == "1"  # MLflow's own server in the process of the tests
_PATIENCE_S = 240.0
_HERE = Path(__file__).parent
_OFFLINE = _HERE / "offline"
_STORES = {
    "tests/store/tracking/sqlalchemy_store": "tracking",
    "tests/store/tracking/test_gateway_sql_store": "tracking",
    "tests/store/model_registry/test_sqlalchemy_store": "registry",
}
# Suites of the client that would work on a database file: they get the address of a server in its place.
_CLIENTS = (
    "tests/tracking/test_tracking.py",
    "tests/tracking/test_client.py",
    "tests/tracking/test_log_figure.py",
    "tests/tracking/test_log_image.py",
    "tests/tracking/fluent/test_fluent.py",
    "tests/tracking/_model_registry/test_model_registry_fluent.py",
)


class Launcher:
    """The process that starts servers of one kind; there is one for each process of the tests, from the first server
    on."""

    def __init__(self, python: str, script: str) -> None:
        self._command = [python, str(_HERE / script)]
        self._process: subprocess.Popen[str] | None = None

    def start(self, order: dict[str, Any]) -> int:
        """Its process id."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                env={**_kept(), "PYTHONPATH": str(_OFFLINE)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()  # it ends when there is nothing more to read


_launcher = (
    Launcher(os.environ["WINDLASS_PYTHON"], "launcher.py")
    if KIND == "windlass"
    else Launcher(sys.executable, "mlflow_launcher.py")
)


def _kept() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "WINDLASS"))}


@contextlib.contextmanager
def windlass_server(port: int | None = None, env: dict[str, str] | None = None) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="wl-suite-", ignore_cleanup_errors=True) as folder:
        order = {"environ": {**_kept(), "WINDLASS_WARM": "false", **(env or {})}, "home": f"{folder}/home"}
        with _launched(order, Path(folder), port or _free_port()) as url:
            yield url


@contextlib.contextmanager
def mlflow_server(database: str, artifacts: str) -> Iterator[str]:
    from mlflow.server import ARTIFACT_ROOT_ENV_VAR, BACKEND_STORE_URI_ENV_VAR

    with tempfile.TemporaryDirectory(prefix="mlflow-suite-", ignore_cleanup_errors=True) as folder:
        environ = {**os.environ, BACKEND_STORE_URI_ENV_VAR: database, ARTIFACT_ROOT_ENV_VAR: artifacts}
        with _launched({"environ": environ}, Path(folder), _free_port()) as url:
            yield url


@contextlib.contextmanager
def _launched(order: dict[str, Any], folder: Path, port: int) -> Iterator[str]:
    output, url = folder / "server.out", f"http://127.0.0.1:{port}"
    pid = _launcher.start({**order, "port": port, "output": str(output)})
    try:
        _await_up(url, pid, output)
        yield url
    finally:
        _end(pid)


def _end(pid: int) -> None:
    for number, patience_s in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
        deadline = time.monotonic() + patience_s
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            while time.monotonic() < deadline:
                time.sleep(0.01)
                os.kill(pid, 0)
            continue
        return


class WindlassThread:
    """In the place of a thread that serves an application of MLflow's. Suites that go past their server, to the
    database that it has, come to ours as well."""

    def __init__(self, _app: Any, _port: int) -> None:
        from mlflow.server import handlers

        # Where the suite told MLflow's server to have artifacts. Not its port: ours takes a while to listen, and
        # another process of the tests may find it free.
        root = getattr(handlers._get_tracking_store(), "artifact_root_uri", None)
        self._serving = contextlib.ExitStack()
        self._settings = {"WINDLASS_ARTIFACTS_ROOT": root} if root else None

    def __enter__(self) -> str:
        from mlflow.tracking._tracking_service.utils import _use_tracking_uri

        url = self._serving.enter_context(windlass_server(env=self._settings))
        self._serving.enter_context(_use_tracking_uri(url))
        return url

    def __exit__(self, *ended: Any) -> None:
        self._serving.__exit__(*ended)


class MlflowProcess:
    """A server of MLflow's in the place of a thread that serves it: a process of its own, as a server is. Where it is a
    part of the suite's process, tests can change its clock, its settings and its database beneath it, and what passes
    thanks to that says nothing of a server."""

    def __init__(self, _app: Any, _port: int) -> None:
        from mlflow.server import handlers

        store: Any = handlers._get_tracking_store()
        self._serving = mlflow_server(store.db_uri, store.artifact_root_uri)

    def __enter__(self) -> str:
        return self._serving.__enter__()

    def __exit__(self, *ended: Any) -> None:
        self._serving.__exit__(*ended)


@contextlib.contextmanager
def _init_windlass(*stores: str, extra_env: Any = None, **named: Any) -> Iterator[str]:
    import mlflow

    root = named.get("root_artifact_uri") or stores[1]
    mlflow.set_tracking_uri(None)
    with windlass_server(env={"WINDLASS_ARTIFACTS_ROOT": root, **(extra_env or {})}) as url:
        yield url


@contextlib.contextmanager
def _run_for_webhooks(_tmp_path: Path) -> Iterator[str]:
    settings = {
        "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http",
        "MLFLOW_WEBHOOK_REQUEST_MAX_RETRIES": "3",
        "MLFLOW_WEBHOOK_REQUEST_TIMEOUT": "10",
        "MLFLOW_WEBHOOK_CACHE_TTL": "0",
        "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
    }
    with windlass_server(env=settings) as url:
        yield url


@contextlib.contextmanager
def _launch_for_artifacts(_host: str, port: int, *_stores: str) -> Iterator[str]:
    with windlass_server(port) as url:
        yield url


def pytest_unconfigure() -> None:
    _launcher.close()


def pytest_configure() -> None:
    from tests.tracking import integration_test_utils

    if KIND == "windlass":
        integration_test_utils.ServerThread = WindlassThread
        integration_test_utils._init_server = _init_windlass
    elif not WITHIN:
        integration_test_utils.ServerThread = MlflowProcess


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    """One mode of workspaces only: ours has none of MLflow's. Suites that start servers by functions of their own get
    ours in their place."""
    measure = json.loads(Path(os.environ["SUITE_MEASURE"]).read_text()) if "SUITE_MEASURE" in os.environ else None
    chosen = [
        item
        for item in items
        if "workspace-enabled" not in item.nodeid and (measure is None or _reported_name(item) in measure)
    ]
    left = set(items) - set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = chosen
    for module in {item.module for item in items}:
        if hasattr(module, "wait_until_ready"):
            module.wait_until_ready.__defaults__ = (int(_PATIENCE_S),)  # MLflow's own, on a busy machine
    if KIND == "windlass":
        for module in {item.module for item in items}:
            if hasattr(module, "_run_mlflow_server"):
                module._run_mlflow_server = _run_for_webhooks
            if hasattr(module, "_launch_server") and module.__name__.endswith("test_mlflow_artifacts"):
                module._launch_server = _launch_for_artifacts


def _reported_name(item: Any) -> str:
    """As the report has it."""
    path, opening, params = item.nodeid.partition("[")
    file, *names = path.split("::")
    whose = ".".join([file.removesuffix(".py").replace("/", "."), *names[:-1]])
    return f"{whose}::{names[-1]}{opening}{params}"


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Any:
    """Stores over a database: over REST. Clients of a database: of a server."""
    node = request.node.nodeid
    kind = next((kind for path, kind in _STORES.items() if node.startswith(path)), None)
    if fixturedef.argname == "store" and kind is not None:
        serving: Any = _store(kind, request)
    elif fixturedef.argname == "tracking_uri_mock" and node.startswith(_CLIENTS):
        serving = _tracked(request)
    else:
        return None
    try:
        given = serving.__enter__()
    except BaseException as error:
        fixturedef.cached_result = (None, fixturedef.cache_key(request), (error, error.__traceback__))
        raise
    fixturedef.addfinalizer(lambda: serving.__exit__(None, None, None))
    fixturedef.cached_result = (given, fixturedef.cache_key(request), None)
    return given


def _server(request: Any) -> contextlib.AbstractContextManager[str]:
    if KIND == "windlass":
        return windlass_server()
    return _mlflow_server(request.getfixturevalue("tmp_path"), request.getfixturevalue("cached_db"))


@contextlib.contextmanager
def _tracked(request: Any) -> Iterator[str]:
    from mlflow.tracking._tracking_service.utils import _use_tracking_uri

    with _server(request) as url, _use_tracking_uri(url):
        yield url


@contextlib.contextmanager
def _store(kind: str, request: Any) -> Iterator[Any]:
    from mlflow.store.model_registry.rest_store import RestStore as RegistryStore
    from mlflow.store.tracking.rest_store import RestStore as TrackingStore
    from mlflow.utils.rest_utils import MlflowHostCreds

    class LenientStore(TrackingStore):
        """Suites of stores begin runs without tags, which the store over REST does not take though its API does."""

        def create_run(self, experiment_id: Any, user_id: Any, start_time: Any, tags: Any, run_name: Any) -> Any:
            return super().create_run(experiment_id, user_id, start_time, tags or [], run_name)

    with _server(request) as url:
        yield (LenientStore if kind == "tracking" else RegistryStore)(lambda: MlflowHostCreds(url))


@contextlib.contextmanager
def _mlflow_server(folder: Path, migrated: Path) -> Iterator[str]:
    artifacts = folder / "server-artifacts"
    artifacts.mkdir()
    # Its migrations take longer than most tests: the suites' own copy has them behind it.
    database = folder / "server.db"
    shutil.copy2(migrated, database)
    with contextlib.closing(sqlite3.connect(database)) as opened, opened:
        opened.execute(
            "UPDATE experiments SET artifact_location = ? WHERE experiment_id = 0", (f"{artifacts.as_uri()}/0",)
        )
    if not WITHIN:
        with mlflow_server(f"sqlite:///{database}", artifacts.as_uri()) as url:
            yield url
        return
    from mlflow.server import handlers
    from mlflow.server.fastapi_app import app

    from tests.tracking.integration_test_utils import ServerThread

    handlers._tracking_store = handlers._model_registry_store = None
    handlers.initialize_backend_stores(f"sqlite:///{database}", default_artifact_root=artifacts.as_uri())
    with ServerThread(app, _free_port()) as url:
        yield url


def _free_port() -> int:
    """Each process of the tests has a range of its own, outside of that from which systems hand out ports."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = 12_000 + worker * 2_000 + random.randrange(2_000)
        with socket.socket() as found, contextlib.suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(("127.0.0.1", port))
            return port


def _await_up(url: str, pid: int, output: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            break
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(0.02)
    sys.stderr.write(output.read_text(errors="replace"))
    raise RuntimeError(f"no server at {url}")
