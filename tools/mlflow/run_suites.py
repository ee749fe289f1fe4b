"""Run MLflow's own test suites against a Windlass server, against MLflow's, or against both, and compare.

    python tools/mlflow/run_suites.py --source CHECKOUT --python PYTHON both tests/tracking/test_rest_tracking.py

A checkout holds `tests/`; the interpreter has the same version of `mlflow` and what its tests import. The package is
taken from the interpreter, not from the checkout. What MLflow's own server passes is the measure: the tool prints, as a
table, the share of it that ours passes, and names the rest. It exits with 1 below 99%.

Each server is a process of its own. MLflow's suites have it in theirs, where they can also set its clock, its settings
or its log; `--within` does so too, and counts what passes thanks to that.

`--theirs FILE` and `--ours FILE` keep outcomes, so that suites can be run one at a time; `compare` runs nothing and
goes by these files alone. With `--measured` ours runs only what MLflow's own has passed. Options of pytest, such as
`-n 2`, are passed on.
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
    *(
        f"tests/store/tracking/sqlalchemy_store/test_sqlalchemy_store_{part}.py"
        for part in (
            *("assessments", "core", "eval_datasets", "experiments", "issues", "label_schemas", "query_trace_metrics"),
            *("review_queues", "runs", "scorers", "traces"),
        )
    ),
    "tests/tracking/test_tracking.py",
    "tests/tracking/test_client.py",
    "tests/tracking/test_log_figure.py",
    "tests/tracking/test_log_image.py",
    "tests/tracking/fluent/test_fluent.py",
    "tests/tracking/_model_registry/test_model_registry_fluent.py",
    "tests/tracing/test_otel_loading.py",
    "tests/tracing/test_otel_logging.py",
)
_ENOUGH = 0.99
_HERE = Path(__file__).parent


def run(
    kind: str,
    source: Path,
    python: str,
    selected: list[str],
    extra: list[str],
    *,
    within: bool = False,
    measure: dict[str, str] | None = None,
) -> dict[str, str]:
    """By test: passed, failed, skipped. With a measure, only what passes there."""
    with tempfile.TemporaryDirectory(prefix="suites-") as folder:
        report = Path(folder, "report.xml")
        environ = {
            **os.environ,
            "PATH": f"{Path(python).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "SUITE_SERVER": kind,
            "WINDLASS_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(map(str, (_HERE / "offline", _HERE, source))),
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "SUITE_WITHIN": str(int(within)),
            "MLFLOW_MODEL_CATALOG_URI": "",  # MLflow would wait for a network in vain; what it brings along is enough
        }
        if measure is not None:
            passed = Path(folder, "measure.json")
            passed.write_text(json.dumps([name for name, outcome in measure.items() if outcome == "passed"]))
            environ["SUITE_MEASURE"] = str(passed)
        options = [
            "-q",
            "-p",
            "suite_plugin",
            "-p",
            "no:cacheprovider",
            "--timeout=600",  # on a busy machine
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


def keep(file: Path | None, outcomes: dict[str, str]) -> dict[str, str]:
    """Together with what is in the file already."""
    if file is None:
        return outcomes
    known = json.loads(file.read_text()) if file.exists() else {}
    known.update(outcomes)
    file.write_text(json.dumps(known, indent=1, sort_keys=True))
    return known


def compare(theirs: dict[str, str], ours: dict[str, str]) -> bool:
    """Prints the table; whether it is enough. Tests that only one side has run do not count."""
    measure = sorted(name for name, outcome in theirs.items() if outcome == "passed" and name in ours)
    missing = [name for name in measure if ours[name] != "passed"]
    for name in missing:
        print(f"only MLflow's own passes {name}")
    rows = {}
    for name in measure:
        counts = rows.setdefault(_suite(name), [0, 0])
        counts[0] += 1
        counts[1] += ours[name] == "passed"
    print("\n| suite | MLflow's own server passes | ours of these | share |\n|---|---|---|---|")
    for suite, (of, passed) in rows.items():
        print(f"| `{suite}` | {of} | {passed} | {passed / of:.1%} |")
    share = 1 - len(missing) / len(measure) if measure else 0.0
    print(f"| **all** | {len(measure)} | {len(measure) - len(missing)} | {share:.1%} |")
    return share >= _ENOUGH


def _suite(name: str) -> str:
    """The file of a test, by its dotted name."""
    parts = name.partition("::")[0].split(".")
    last = max(place for place, part in enumerate(parts) if part.startswith("test_"))
    return "/".join(parts[1 : last + 1]) + ".py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, help="a checkout of MLflow")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has mlflow")
    parser.add_argument("--theirs", type=Path, help="outcomes of MLflow's own server, kept from time to time")
    parser.add_argument("--ours", type=Path, help="outcomes of our server, kept from time to time")
    parser.add_argument("--measured", action="store_true", help="of ours, only tests that MLflow's own server passes")
    parser.add_argument("--within", action="store_true", help="MLflow's own server in the process of the tests")
    parser.add_argument("server", choices=["windlass", "mlflow", "both", "compare"])
    parser.add_argument("selected", nargs="*", help="suites or tests, in the checkout; default: all that concern us")
    given, extra = parser.parse_known_intermixed_args()
    theirs, ours = keep(given.theirs, {}), keep(given.ours, {})
    if given.server != "compare":
        if given.source is None:
            parser.error("--source is missing: a checkout of MLflow, for its tests")
        selected = given.selected or list(SUITES)
        if given.server in ("mlflow", "both"):
            theirs = keep(given.theirs, run("mlflow", given.source, given.python, selected, extra, within=given.within))
        if given.server in ("windlass", "both"):
            measure = theirs if given.measured else None
            ours = keep(given.ours, run("windlass", given.source, given.python, selected, extra, measure=measure))
    if theirs and ours:
        return 0 if compare(theirs, ours) else 1
    for server, outcomes in (("mlflow", theirs), ("windlass", ours)):
        if outcomes:
            print(f"{server}: {sum(one == 'passed' for one in outcomes.values())} of {len(outcomes)} passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
