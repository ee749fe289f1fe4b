"""How many steps a run is to make, by its params."""

from __future__ import annotations

import pytest

from windlass.tracking.totals import decide_total


@pytest.mark.parametrize(
    ("params", "step", "total"),
    [
        ({"max_steps": "1000", "lr": "0.1"}, 10, 1000),
        ({"trainer.max_steps": "1000"}, 10, 1000),
        ({"args/max_steps": "1e3"}, 10, 1000),
        ({"num_boost_round": "50"}, 49, 50),
        ({"epochs": "3", "steps_per_epoch": "100"}, 120, 300),
        ({"max_steps": "-1", "num_train_epochs": "3"}, 2, None),  # nobody knows how many steps an epoch has
        ({"max_steps": "-1", "trainer.epochs": "3", "trainer.steps_per_epoch": "100"}, 2, 300),
        ({"warmup.steps": "500", "eval/iterations": "50", "scheduler.max_steps": "10"}, 3, None),
        ({"max_steps": "100", "trainer.max_steps": "1000"}, 3, None),
        ({"max_steps": "100", "train_steps": "1000", "epochs": "3", "steps_per_epoch": "5"}, 3, None),
        ({"max_steps": "100", "trainer.max_steps": "100"}, 3, 100),
        ({"steps": "100"}, 120, None),
        ({"max_steps": "many", "epochs": "nan"}, 1, None),
        ({}, 1, None),
    ],
)
def test_what_params_say(params: dict[str, str], step: int, total: int | None) -> None:
    assert decide_total(params, step) == total
