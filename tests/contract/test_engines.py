"""The engines there are, held to the contract."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contract.engine_contract import EngineContract
from tests.integration.local_runs import LocalRuns
from tests.integration.slurm_runs import SlurmRuns
from windlass.core.clock import SystemClock
from windlass.engines.contract import Engine
from windlass.engines.local import LocalEngine
from windlass.testing.clock import FakeClock
from windlass.testing.fake_engine import FakeEngine
from windlass.testing.slurm import SlurmCluster


class TestFakeEngine(EngineContract):
    @pytest.fixture
    def engine(self) -> FakeEngine:
        self.clock = FakeClock()
        return FakeEngine(self.clock, start_s=0.1)

    def successor(self, engine: Engine) -> Engine:
        assert isinstance(engine, FakeEngine)
        return FakeEngine(self.clock, cluster=engine.cluster, start_s=0.1)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        for _ in range(100):
            if condition():
                return
            self.clock.advance(0.1)
        raise AssertionError("it does not come true")

    def exits_with(self, code: int) -> tuple[str, ...]:
        return ("exit", str(code))

    def goes_on(self) -> tuple[str, ...]:
        return ("forever",)

    def ignores_signals(self) -> tuple[str, ...]:
        return ("stubborn",)

    def times_started(self, engine: Engine, attempt_id: str) -> int:
        assert isinstance(engine, FakeEngine)
        return 1 if attempt_id in engine.cluster.attempts else 0


class TestLocalEngine(EngineContract):
    @pytest.fixture
    def engine(self, tmp_path: Path) -> Iterator[LocalEngine]:
        self.runs = LocalRuns(tmp_path)
        yield self.runs.engine
        self.runs.clean_up()

    def successor(self, engine: Engine) -> Engine:  # noqa: ARG002
        return self.runs.open_engine(SystemClock())

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, "it does not come true"
            time.sleep(0.01)

    def exits_with(self, code: int) -> tuple[str, ...]:
        return ("/bin/sh", "-c", f"echo started; exit {code}")

    def goes_on(self) -> tuple[str, ...]:
        return ("/bin/sh", "-c", "echo started; exec sleep 600")

    def ignores_signals(self) -> tuple[str, ...]:
        return ("/bin/sh", "-c", "trap '' TERM; echo started; while :; do sleep 1; done")

    def times_started(self, engine: Engine, attempt_id: str) -> int:  # noqa: ARG002
        return self.runs.log(attempt_id).count(" o started")


@pytest.mark.slurm
class TestSlurmEngine(EngineContract):
    @pytest.fixture
    def engine(self, slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[Engine]:
        self.runs = SlurmRuns(slurm_cluster, tmp_path)
        yield self.runs.engine
        self.runs.clean_up()

    def successor(self, engine: Engine) -> Engine:  # noqa: ARG002
        return self.runs.open_engine()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "it does not come true"
            time.sleep(0.02)

    def exits_with(self, code: int) -> tuple[str, ...]:
        return ("/bin/sh", "-c", f"echo started; exit {code}")

    def goes_on(self) -> tuple[str, ...]:
        return ("/bin/sh", "-c", "echo started; exec sleep 600")

    def ignores_signals(self) -> tuple[str, ...]:
        return ("/bin/sh", "-c", "trap '' TERM; echo started; while :; do sleep 1; done")

    def times_started(self, engine: Engine, attempt_id: str) -> int:  # noqa: ARG002
        return self.runs.log(attempt_id).count(" o started")
