"""Which experiment a script chooses, told from its source."""

from __future__ import annotations

import pytest

from windlass.core.chosenexperiment import chosen_experiment


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (b'import mlflow\nmlflow.set_experiment("vision")\nmlflow.start_run()', "vision"),
        (b'import mlflow as ml\nml.set_experiment(experiment_name="vision")', "vision"),
        (b'from mlflow import set_experiment\ndef main():\n    set_experiment("vision")', "vision"),
        (b'import mlflow\nmlflow.set_experiment("a")\nmlflow.set_experiment("a")', "a"),
        (b'import mlflow\nmlflow.set_experiment("a")\nmlflow.set_experiment("b")', None),
        (b"import mlflow\nmlflow.set_experiment(args.name)", None),
        (b'import mlflow\nmlflow.set_experiment("a")\nmlflow.set_experiment(args.name)', None),
        (b'import mlflow\nmlflow.set_experiment(experiment_id="3")', None),
        (b"import mlflow\nmlflow.set_experiment()", None),
        (b'import other\nother.set_experiment("vision")', None),
        (b'import mlflow\n# mlflow.set_experiment("vision")', None),
        (b'import mlflow\nmlflow.set_experiment("vision', None),
    ],
)
def test_a_name_that_is_written_out_is_told(source: bytes, name: str | None) -> None:
    assert chosen_experiment(source) == name
