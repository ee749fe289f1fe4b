"""What every engine must do, whatever it runs on. Subclasses bring an engine and the commands it understands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from windlass.core.exits import ExitReason
from windlass.core.resources import NodeShare, Placement
from windlass.engines.contract import Engine, Launch, Observation, Phase

GRACE_S = 5.0


class EngineContract(ABC):
    """`engine` is a fixture of the subclass. `successor` makes another engine over the same nodes."""

    @abstractmethod
    def successor(self, engine: Engine) -> Engine: ...

    @abstractmethod
    def wait_for(self, condition: Callable[[], bool]) -> None: ...

    @abstractmethod
    def exits_with(self, code: int) -> tuple[str, ...]: ...

    @abstractmethod
    def goes_on(self) -> tuple[str, ...]: ...

    @abstractmethod
    def ignores_signals(self) -> tuple[str, ...]: ...

    @abstractmethod
    def times_started(self, engine: Engine, attempt_id: str) -> int:
        """How often the attempt's command was really started."""

    # ----------------------------------------------------------------------------------------------------------------

    def launch(self, engine: Engine, argv: tuple[str, ...], *, number: int = 1, timeout_s: float | None = None) -> str:
        node = engine.inventory()[0]
        run_id = "r-bcdfghjkmn"
        share = NodeShare(node=node.name, cpus=1.0, memory_bytes=0)
        launch = Launch(
            run_id=run_id,
            attempt_id=f"{run_id}.{number}",
            attempt=number,
            placement=Placement(engine=engine.name, shares=(share,)),
            argv=argv,
            workers_per_node=1,
            self_launching=False,
            env={"PATH": "/usr/bin:/bin"},
            timeout_s=timeout_s,
            grace_s=GRACE_S,
        )
        engine.launch(launch)
        return launch.attempt_id

    def look(self, engine: Engine, attempt_id: str) -> Observation:
        return engine.poll([attempt_id])[attempt_id]

    def wait_until(self, engine: Engine, attempt_id: str, phase: Phase) -> Observation:
        self.wait_for(lambda: self.look(engine, attempt_id).phase is phase)
        return self.look(engine, attempt_id)

    # ----------------------------------------------------------------------------------------------------------------

    def test_there_are_nodes_under_the_engines_name(self, engine: Engine) -> None:
        nodes = engine.inventory()
        assert nodes
        assert all(node.engine == engine.name and node.cpus > 0 and node.memory_bytes > 0 for node in nodes)
        assert len({node.name for node in nodes}) == len(nodes)

    def test_what_was_never_launched_is_absent(self, engine: Engine) -> None:
        assert self.look(engine, "r-zzzzzzzzzz.1") == Observation(phase=Phase.ABSENT)

    def test_an_attempt_runs_to_a_good_end(self, engine: Engine) -> None:
        attempt_id = self.launch(engine, self.exits_with(0))
        seen = self.wait_until(engine, attempt_id, Phase.ENDED)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.COMPLETED
        assert seen.started_at is not None
        assert seen.ended_at is not None
        assert seen.started_at <= seen.ended_at

    def test_an_exit_code_is_reported(self, engine: Engine) -> None:
        seen = self.wait_until(engine, self.launch(engine, self.exits_with(3)), Phase.ENDED)
        assert seen.exit is not None
        assert (seen.exit.reason, seen.exit.exit_code, seen.exit.rank) == (ExitReason.EXIT_CODE, 3, 0)

    def test_an_exit_is_given_exactly_at_the_end(self, engine: Engine) -> None:
        attempt_id = self.launch(engine, self.goes_on())
        seen = self.wait_until(engine, attempt_id, Phase.RUNNING)
        assert seen.exit is None
        assert seen.ended_at is None
        assert seen.started_at is not None

    def test_an_ended_attempt_stays_visible(self, engine: Engine) -> None:
        attempt_id = self.launch(engine, self.exits_with(3))
        first = self.wait_until(engine, attempt_id, Phase.ENDED)
        assert self.look(engine, attempt_id).exit == first.exit

    def test_launching_again_starts_nothing(self, engine: Engine) -> None:
        attempt_id = self.launch(engine, self.goes_on())
        self.launch(engine, self.goes_on())
        self.wait_until(engine, attempt_id, Phase.RUNNING)
        self.launch(engine, self.goes_on())
        engine.stop(attempt_id, grace_s=GRACE_S)
        self.wait_until(engine, attempt_id, Phase.ENDED)
        self.launch(engine, self.goes_on())
        assert self.look(engine, attempt_id).phase is Phase.ENDED
        assert self.times_started(engine, attempt_id) == 1

    def test_attempts_of_a_run_are_apart(self, engine: Engine) -> None:
        first = self.launch(engine, self.exits_with(3), number=1)
        self.wait_until(engine, first, Phase.ENDED)
        second = self.launch(engine, self.exits_with(0), number=2)
        self.wait_until(engine, second, Phase.ENDED)
        exits = {key: seen.exit for key, seen in engine.poll([first, second]).items()}
        assert [exits[key].reason for key in (first, second) if exits[key]] == [  # type: ignore[union-attr]
            ExitReason.EXIT_CODE,
            ExitReason.COMPLETED,
        ]

    def test_as_many_launches_at_once_as_it_says(self, engine: Engine) -> None:
        """And others are asked about meanwhile, by another thread."""
        if engine.launches_at_once == 1:
            pytest.skip("this engine launches one at a time")
        before = self.launch(engine, self.exits_with(0), number=1)
        numbers = range(2, 5)
        with ThreadPoolExecutor(len(numbers)) as threads:
            launches = [threads.submit(self.launch, engine, self.exits_with(0), number=number) for number in numbers]
            while not all(launch.done() for launch in launches):
                self.look(engine, before)
                wait(launches, timeout=0.05)
        for attempt_id in (before, *(launch.result() for launch in launches)):
            seen = self.wait_until(engine, attempt_id, Phase.ENDED)
            assert seen.exit is not None
            assert seen.exit.reason is ExitReason.COMPLETED
            assert self.times_started(engine, attempt_id) <= 1

    def test_a_stopped_attempt_is_cancelled(self, engine: Engine) -> None:
        attempt_id = self.launch(engine, self.goes_on())
        self.wait_until(engine, attempt_id, Phase.RUNNING)
        engine.stop(attempt_id, grace_s=GRACE_S)
        engine.stop(attempt_id, grace_s=GRACE_S)
        seen = self.wait_until(engine, attempt_id, Phase.ENDED)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.CANCELLED

    def test_stopping_right_after_launch_cancels_too(self, engine: Engine) -> None:
        attempt_id = self.launch(engine, self.goes_on())
        engine.stop(attempt_id, grace_s=GRACE_S)
        seen = self.wait_until(engine, attempt_id, Phase.ENDED)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.CANCELLED

    def test_the_deaf_are_killed_after_their_grace(self, engine: Engine) -> None:
        attempt_id = self.launch(engine, self.ignores_signals())
        self.wait_until(engine, attempt_id, Phase.RUNNING)
        engine.stop(attempt_id, grace_s=0.5)
        seen = self.wait_until(engine, attempt_id, Phase.ENDED)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.CANCELLED

    def test_a_stop_can_be_hastened(self, engine: Engine) -> None:
        attempt_id = self.launch(engine, self.ignores_signals())
        self.wait_until(engine, attempt_id, Phase.RUNNING)
        engine.stop(attempt_id, grace_s=3600.0)
        engine.stop(attempt_id, grace_s=0.0)
        seen = self.wait_until(engine, attempt_id, Phase.ENDED)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.CANCELLED

    def test_stopping_what_has_ended_changes_nothing(self, engine: Engine) -> None:
        attempt_id = self.launch(engine, self.exits_with(3))
        before = self.wait_until(engine, attempt_id, Phase.ENDED)
        engine.stop(attempt_id, grace_s=GRACE_S)
        assert self.look(engine, attempt_id).exit == before.exit

    def test_stopping_what_is_absent_does_not_bring_it_about(self, engine: Engine) -> None:
        engine.stop("r-zzzzzzzzzz.1", grace_s=GRACE_S)
        engine.release("r-zzzzzzzzzz.1")
        assert self.look(engine, "r-zzzzzzzzzz.1").phase is Phase.ABSENT

    def test_a_time_limit_ends_it(self, engine: Engine) -> None:
        seen = self.wait_until(engine, self.launch(engine, self.goes_on(), timeout_s=0.3), Phase.ENDED)
        assert seen.exit is not None
        assert seen.exit.reason is ExitReason.TIMEOUT

    def test_releasing_a_running_attempt_ends_it(self, engine: Engine) -> None:
        attempt_id = self.launch(engine, self.goes_on())
        self.wait_until(engine, attempt_id, Phase.RUNNING)
        engine.release(attempt_id)
        engine.release(attempt_id)
        assert self.look(engine, attempt_id).phase is not Phase.RUNNING

    def test_a_released_attempt_is_not_started_again(self, engine: Engine) -> None:
        attempt_id = self.launch(engine, self.exits_with(0))
        self.wait_until(engine, attempt_id, Phase.ENDED)
        engine.release(attempt_id)
        self.launch(engine, self.goes_on())
        assert self.look(engine, attempt_id).phase is not Phase.RUNNING
        assert self.times_started(engine, attempt_id) == 1

    @pytest.mark.parametrize("looked_before", [True, False])
    def test_a_successor_takes_over(self, engine: Engine, looked_before: bool) -> None:
        going, ended = (
            self.launch(engine, self.goes_on(), number=1),
            self.launch(engine, self.exits_with(3), number=2),
        )
        self.wait_until(engine, going, Phase.RUNNING)
        if looked_before:
            self.wait_until(engine, ended, Phase.ENDED)
        engine.close()
        second = self.successor(engine)
        try:
            seen = self.wait_until(second, ended, Phase.ENDED)
            assert seen.exit is not None
            assert seen.exit.exit_code == 3
            assert self.look(second, going).phase is Phase.RUNNING
            second.stop(going, grace_s=GRACE_S)
            assert self.wait_until(second, going, Phase.ENDED).exit is not None
        finally:
            second.release(going)
            second.close()
