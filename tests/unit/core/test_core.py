"""Ids, names, exits, requests: the small things that everything else says and shows."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core import errors
from windlass.core.exits import Exit, ExitReason
from windlass.core.ids import ALPHABET, RUN_ID, attempt_id, new_holder_nonce, new_run_id
from windlass.core.names import nearest, unknown
from windlass.core.resources import Resources
from windlass.core.storable import storable


def test_run_ids_are_well_formed_and_different() -> None:
    made = {new_run_id() for _ in range(1_000)}
    assert len(made) == 1_000
    assert all(RUN_ID.match(run_id) for run_id in made)


def test_ids_avoid_look_alikes_and_words() -> None:
    assert not set(ALPHABET) & set("01aeioul")
    assert set(new_holder_nonce()) <= set(ALPHABET)


def test_attempts_are_named_after_their_run() -> None:
    assert attempt_id("r-abc", 3) == "r-abc.3"


def test_the_nearest_name_is_offered_and_a_far_one_is_not() -> None:
    assert nearest("slrum", ["local", "ray", "slurm"]) == "slurm"
    assert nearest("SLURM", ["slurm"]) == "slurm"
    assert nearest("zebra", ["local", "ray", "slurm"]) is None
    assert nearest("x", []) is None


def test_an_unknown_name_is_told_with_all_options() -> None:
    assert unknown("engine", "slrum", ["slurm", "ray", "local"]) == (
        "unknown engine 'slrum'; did you mean 'slurm'? known: local, ray, slurm"
    )
    assert unknown("engine", "zebra", ["local"]) == "unknown engine 'zebra'; known: local"


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (Exit(reason=ExitReason.COMPLETED, exit_code=0), 0),
        (Exit(reason=ExitReason.EXIT_CODE, exit_code=7), 7),
        (Exit(reason=ExitReason.SIGNAL, signal=9), 137),
        (Exit(reason=ExitReason.OOM, signal=9), 137),
        (Exit(reason=ExitReason.OOM), 1),
        (Exit(reason=ExitReason.TIMEOUT, signal=15), 124),
        (Exit(reason=ExitReason.CANCELLED, signal=15), 130),
        (Exit(reason=ExitReason.LOST), 1),
        (Exit(reason=ExitReason.LAUNCH_FAILED, exit_code=127), 127),
    ],
)
def test_an_exit_shows_the_code_a_shell_would(ended: Exit, code: int) -> None:
    assert ended.shell_code == code


def test_requests_describe_themselves() -> None:
    assert Resources().describe() == "1 CPU"
    asked = Resources(nodes=2, cpus=16, gpus=8, gpu_type="h100", memory_bytes=64 * 10**9)
    assert asked.describe() == "2 nodes of 16 CPU + 8 h100 + 64.0 GB"


def test_every_error_has_a_code_of_its_own() -> None:
    tree = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.WindlassError)]
    assert len({cls.code for cls in tree}) == len(tree)


def test_the_drawing_of_the_error_tree_shows_every_error() -> None:
    tree = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, errors.WindlassError)]
    assert errors.__doc__
    assert [cls.__name__ for cls in tree if cls.__name__ not in errors.__doc__] == []


def test_an_invalid_spec_keeps_every_problem() -> None:
    error = errors.InvalidSpec(["a is wrong", "b is wrong"], hint="look there")
    assert error.problems == ("a is wrong", "b is wrong")
    assert error.message == "a is wrong; b is wrong"
    assert error.hint == "look there"


_leaves = st.none() | st.integers() | st.floats() | st.text()


@given(st.recursive(_leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_what_is_storable_is_json_of_proper_text(data: Any) -> None:
    kept = storable(data)
    assert "\x00" not in json.dumps(kept, allow_nan=False, ensure_ascii=False).encode().decode()
    assert storable(kept) == kept


def test_what_can_be_kept_is_kept_as_it_is() -> None:
    data = {"a": [1, 2.5, None, True, "ü \U0001f600"], "b": {"c": "d"}}
    assert storable(data) == data
    assert storable({"x": ("a\0b", "\udcff", float("nan"))}) == {"x": ["a\ufffdb", "\ufffd", None]}
