"""How many steps a run is to make, from its params, where nobody has said it with the metrics. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_STEPS = (
    *("max_steps", "total_steps", "train_steps", "num_train_steps", "num_training_steps", "training_steps"),
    *("max_train_steps", "max_iters", "num_iters", "max_iterations", "num_iterations", "total_iterations"),
    *("num_boost_round", "total_timesteps"),
)
# Below a name of another thing they are that thing's: `warmup.steps`, `eval/iterations`.
_ALONE = ("steps", "num_steps", "iterations")
_EPOCHS = ("epochs", "num_epochs", "max_epochs", "n_epochs", "num_train_epochs", "total_epochs")
_STEPS_OF_EPOCH = ("steps_per_epoch", "batches_per_epoch", "iterations_per_epoch")
_BELOW = ("trainer", "training", "train", "args")
_MOST = 2**53


def _spelled(names: tuple[str, ...]) -> tuple[str, ...]:
    return (*names, *(f"{above}{mark}{name}" for above in _BELOW for mark in "./" for name in names))


_STEP_KEYS = (*_ALONE, *_spelled(_STEPS))
_EPOCH_KEYS, _STEP_OF_EPOCH_KEYS = _spelled(_EPOCHS), _spelled(_STEPS_OF_EPOCH)
KEYS = frozenset((*_STEP_KEYS, *_EPOCH_KEYS, *_STEP_OF_EPOCH_KEYS))  # what may say it


def decide_total(params: Mapping[str, str], step: int) -> int | None:
    """Of a run that has made `step` steps. Params that contradict each other, or the run, say nothing; nor do epochs
    by themselves, since nobody knows how many steps one has."""
    total = _only(params, _STEP_KEYS)
    if total is None and not _numbers(params, _STEP_KEYS):
        epochs, of_epoch = _only(params, _EPOCH_KEYS), _only(params, _STEP_OF_EPOCH_KEYS)
        total = epochs * of_epoch if epochs is not None and of_epoch is not None else None
    return int(total) if total is not None and step <= total < _MOST else None


def _only(params: Mapping[str, str], keys: tuple[str, ...]) -> float | None:
    found = _numbers(params, keys)
    return found.pop() if len(found) == 1 else None


def _numbers(params: Mapping[str, str], keys: tuple[str, ...]) -> set[float]:
    return {number for key in keys if key in params and (number := _number(params[key])) is not None}


def _number(value: str) -> float | None:
    """-1 and 0 are how frameworks say that there is none."""
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if 1 <= number < _MOST else None
