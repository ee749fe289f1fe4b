"""How many steps a run is to make, from its params, where nobody has said it with the metrics. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_STEPS = (
    *("max_steps", "total_steps", "num_steps", "n_steps", "train_steps", "num_train_steps", "num_training_steps"),
    *("training_steps", "max_train_steps", "max_iters", "num_iters", "max_iterations", "num_iterations", "iterations"),
    *("total_iterations", "num_boost_round", "steps"),
)
_EPOCHS = ("epochs", "num_epochs", "max_epochs", "n_epochs", "num_train_epochs", "total_epochs")
_STEPS_OF_EPOCH = ("steps_per_epoch", "batches_per_epoch", "num_batches", "iterations_per_epoch")
_MOST = 2**53


def decide_total(params: Mapping[str, str], step: int) -> int | None:
    """Of a run that has made `step` steps: a number below that is another one's. Names count by their last part, so
    that `trainer.max_steps` is one, and in the order above: what is said plainly before what is worked out."""
    numbers = {_last_part(name): number for name, value in params.items() if (number := _number(value)) is not None}
    epochs, of_epoch = _first(numbers, _EPOCHS), _first(numbers, _STEPS_OF_EPOCH)
    candidates = [
        *(numbers[name] for name in _STEPS if name in numbers),
        epochs * of_epoch if epochs is not None and of_epoch is not None else None,
        epochs,  # who logs once an epoch counts them
    ]
    return next((int(total) for total in candidates if total is not None and step <= total < _MOST), None)


def _first(numbers: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    return next((numbers[name] for name in names if name in numbers), None)


def _last_part(name: str) -> str:
    for mark in "/:":
        name = name.replace(mark, ".")
    return name.rpartition(".")[2].lower().replace("-", "_")


def _number(value: str) -> float | None:
    """-1 and 0 are how frameworks say that there is none."""
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if number >= 1 and number < _MOST else None
