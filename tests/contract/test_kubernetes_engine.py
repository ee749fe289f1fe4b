"""The Kubernetes engine, held to the contract on a real control plane."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.engine_contract import EngineContract
from tests.integration.away import await_that
from tests.integration.kubernetes_runs import KubernetesRuns, kubernetes_runs
from windlass.db.database import sqlite_url
from windlass.engines.contract import Engine
from windlass.engines.kubernetes import KubernetesEngine
from windlass.testing.kubernetes import KubernetesCluster

pytestmark = pytest.mark.kubernetes


class TestKubernetesEngine(EngineContract):
    @pytest.fixture
    def engine(
        self, tmp_path: Path, sqlite_template: Path, kubernetes_cluster: KubernetesCluster
    ) -> Iterator[KubernetesEngine]:
        path = tmp_path / "windlass.db"
        shutil.copy(sqlite_template, path)
        with kubernetes_runs(tmp_path, sqlite_url(path), kubernetes_cluster) as runs:
            self.runs: KubernetesRuns = runs
            yield runs.engine

    def successor(self, engine: Engine) -> Engine:  # noqa: ARG002
        return self.runs.open_engine()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        await_that(condition)

    def exits_with(self, code: int) -> tuple[str, ...]:
        return ("/bin/sh", "-c", f"echo started; exit {code}")

    def goes_on(self) -> tuple[str, ...]:
        return ("/bin/sh", "-c", "echo started; exec sleep 600")

    def ignores_signals(self) -> tuple[str, ...]:
        return ("/bin/sh", "-c", "trap '' TERM; echo started; while :; do sleep 1; done")

    def times_started(self, engine: Engine, attempt_id: str) -> int:  # noqa: ARG002
        return self.runs.away.texts(attempt_id).count("started")
