"""How many steps a run is to make, by its params."""

from __future__ import annotations

import pytest

from windlass.tracking.totals import decide_total


@pytest.mark.parametrize(
    ("params", "step", "total"),
    [
        ({"max_steps": "1000", "lr": "0.1"}, 10, 1000),
        ({"trainer.max_steps": "1000"}, 10, 1000),
        ({"args/Max-Steps": "1e3"}, 10, 1000),
        ({"num_boost_round": "50"}, 49, 50),
        ({"epochs": "3", "steps_per_epoch": "100"}, 120, 300),
        ({"max_steps": "-1", "num_train_epochs": "3"}, 2, 3),  # as Transformers says that there is no number of steps
        ({"epochs": "3"}, 120, None),  # it logs steps, and nobody knows how many an epoch has
        ({"steps": "100"}, 120, None),
        ({"max_steps": "many", "epochs": "nan"}, 1, None),
        ({}, 1, None),
    ],
)
def test_what_params_say(params: dict[str, str], step: int, total: int | None) -> None:
    assert decide_total(params, step) == total
