"""Run MLflow's own test suites against a Windlass server, against MLflow's, or against both, and compare.

    python tools/mlflow/run_suites.py --source CHECKOUT --python PYTHON both tests/tracking/test_rest_tracking.py

A checkout holds `tests/`; the interpreter has the same version of `mlflow` and what its tests import. The package is
taken from the interpreter, not from the checkout. What MLflow's own server passes is the measure: the tool prints the
share of it that ours passes and names the rest. It exits with 1 below 99%. `--measure FILE` keeps what MLflow's own
passed, for the next time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

SUITES = (
    "tests/tracking/test_rest_tracking.py",
    "tests/tracking/test_model_registry.py",
    "tests/tracking/test_mlflow_artifacts.py",
    "tests/tracking/test_client_webhooks.py",
    "tests/webhooks/test_e2e.py",
    "tests/store/model_registry/test_rest_store_webhooks.py",
    "tests/store/model_registry/test_sqlalchemy_store.py",
    "tests/store/tracking/sqlalchemy_store",
)
_ENOUGH = 0.99
_HERE = Path(__file__).parent


def run(kind: str, source: Path, python: str, selected: list[str], extra: list[str]) -> dict[str, str]:
    """By test: passed, failed, skipped."""
    with tempfile.TemporaryDirectory(prefix="suites-") as folder:
        report = Path(folder, "report.xml")
        environ = {
            **os.environ,
            "PATH": f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "SUITE_SERVER": kind,
            "WINDLASS_PYTHON": sys.executable,
            "PYTHONPATH": f"{_HERE}{os.pathsep}{source}",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        }
        options = [
            "-q",
            "-p",
            "suite_plugin",
            "-p",
            "no:cacheprovider",
            "--timeout=120",
            f"--junitxml={report}",
            *extra,
        ]
        command = [python, "-m", "pytest", "--rootdir", str(source), *options, *selected]
        subprocess.run(command, cwd=source, env=environ, check=False)
        return _outcomes(report) if report.exists() else {}


def _outcomes(report: Path) -> dict[str, str]:
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        signs = {child.tag for child in case}
        outcome = "failed" if signs & {"failure", "error"} else "skipped" if "skipped" in signs else "passed"
        found[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="a checkout of MLflow")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has mlflow")
    parser.add_argument("--measure", type=Path, help="outcomes of MLflow's own server: read if there, else written")
    parser.add_argument("server", choices=["windlass", "mlflow", "both"])
    parser.add_argument("selected", nargs="*", help="suites or tests, in the checkout; default: all that concern us")
    given, extra = parser.parse_known_intermixed_args()
    selected = given.selected or list(SUITES)
    if given.server != "both":
        outcomes = run(given.server, given.source, given.python, selected, extra)
        print(f"{given.server}: {sum(one == 'passed' for one in outcomes.values())} of {len(outcomes)} passed")
        return 0
    if given.measure and given.measure.exists():
        theirs = json.loads(given.measure.read_text())
    else:
        theirs = run("mlflow", given.source, given.python, selected, extra)
        if given.measure:
            given.measure.write_text(json.dumps(theirs, indent=1))
    ours = run("windlass", given.source, given.python, selected, extra)
    # A measure that was kept may know more tests than were chosen now.
    measure = [name for name, outcome in theirs.items() if outcome == "passed" and (name in ours or not ours)]
    missing = [name for name in measure if ours.get(name) != "passed"]
    for name in missing:
        print(f"only MLflow's own passes {name}")
    share = 1 - len(missing) / len(measure) if measure else 0.0
    print(f"{len(measure) - len(missing)} of the {len(measure)} that MLflow's own server passes: {share:.1%}")
    return 0 if share >= _ENOUGH else 1


if __name__ == "__main__":
    sys.exit(main())
