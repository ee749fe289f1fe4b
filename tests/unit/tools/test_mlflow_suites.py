"""How outcomes of MLflow's suites are kept and compared."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

_TOOL = Path(__file__).parents[3] / "tools" / "mlflow" / "run_suites.py"
_REST = "tests.tracking.test_rest_tracking"
_HOOKS = "tests.webhooks.test_e2e"


@pytest.fixture(scope="module")
def suites() -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_suites", _TOOL)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_mlflows_own_passes_is_the_measure(suites: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = {f"{_REST}::a": "passed", f"{_REST}::b": "passed", f"{_REST}::c": "failed", f"{_HOOKS}.Test::d": "passed"}
    ours = {f"{_REST}::a": "passed", f"{_REST}::b": "failed", f"{_REST}::c": "failed", f"{_HOOKS}.Test::d": "passed"}
    assert not suites.compare(theirs, ours)
    said = capsys.readouterr().out
    assert f"only MLflow's own passes {_REST}::b\n" in said
    assert "| `tracking/test_rest_tracking.py` | 2 | 1 | 50.0% |\n" in said
    assert "| `webhooks/test_e2e.py` | 1 | 1 | 100.0% |\n" in said
    assert "| **all** | 3 | 2 | 66.7% |\n" in said


def test_what_only_one_side_has_run_does_not_count(suites: ModuleType) -> None:
    assert suites.compare({f"{_REST}::a": "passed", f"{_REST}::b": "passed"}, {f"{_REST}::a": "passed"})
    assert not suites.compare({f"{_REST}::b": "passed"}, {f"{_REST}::a": "passed"})


def test_outcomes_are_kept_from_time_to_time(suites: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "outcomes.json"
    assert suites.keep(file, {"a": "failed", "b": "passed"}) == {"a": "failed", "b": "passed"}
    assert suites.keep(file, {"a": "passed"}) == {"a": "passed", "b": "passed"}
    assert suites.keep(file, {}) == {"a": "passed", "b": "passed"}
    assert suites.keep(None, {"c": "passed"}) == {"c": "passed"}
