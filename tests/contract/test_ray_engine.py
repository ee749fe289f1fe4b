"""The Ray engine on a real cluster, held to the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.contract.engine_contract import EngineContract
from tests.integration.ray_runs import RUN_ID, RayRuns
from windlass.engines.contract import Engine
from windlass.testing.ray import RayCluster

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def runs(ray_cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayRuns]:
    runs = RayRuns(tmp_path_factory.mktemp("ray"), ray_cluster)
    yield runs
    runs.clean_up()


class TestRayEngine(EngineContract):
    @pytest.fixture
    def engine(self, runs: RayRuns) -> Iterator[Engine]:
        self.runs = runs
        self.earlier = 100 * len(runs.launched())
        self.succeeded = False
        yield runs.engine
        if self.succeeded:
            runs.reopen()
        runs.release_all()

    def launch(self, engine: Engine, argv: tuple[str, ...], *, number: int = 1, timeout_s: float | None = None) -> str:
        """The server is that of the tests before: their attempts are not to be met."""
        self.runs.note(f"{RUN_ID}.{number + self.earlier}")
        return super().launch(engine, argv, number=number + self.earlier, timeout_s=timeout_s)

    def successor(self, engine: Engine) -> Engine:  # noqa: ARG002
        self.succeeded = True
        return self.runs.open_engine()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        self.runs.await_that(condition, "that")

    def exits_with(self, code: int) -> tuple[str, ...]:
        return ("/bin/sh", "-c", f"echo started; exit {code}")

    def goes_on(self) -> tuple[str, ...]:
        return ("/bin/sh", "-c", "echo started; exec sleep 600")

    def ignores_signals(self) -> tuple[str, ...]:
        return ("/bin/sh", "-c", "trap '' TERM; echo started; while :; do sleep 1; done")

    def times_started(self, engine: Engine, attempt_id: str) -> int:  # noqa: ARG002
        return self.runs.log(attempt_id).count("started")
