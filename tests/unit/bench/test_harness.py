"""The benchmarks' frame: figures, reports, alternation, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import harness
from bench.__main__ import BENCHES, Result, main, read_result, render_page, run_bench
from bench.harness import Figure, Report, Table


@pytest.mark.parametrize(
    ("value", "better", "met"),
    [(0.2, "lower", True), (0.25, "lower", True), (0.3, "lower", False), (0.9, "higher", True), (0.1, "higher", False)],
)
def test_a_figure_is_met_on_the_right_side_of_its_target(value: float, better: str, met: bool) -> None:
    assert Figure(value=value, target=0.25, better=better).met is met  # type: ignore[arg-type]


def test_a_report_ends_with_one_line_of_json() -> None:
    report = Report(
        bench="launch",
        figures={"ratio": Figure(value=0.123456, target=0.25, better="lower")},
        tables=[Table(title="Times", header=("arm", "s"), rows=[["a", 1.5], ["much longer", 12345.0]])],
    )
    *text, last = report.render().splitlines()
    expected = {"bench": "launch", "figures": {"ratio": {"value": 0.1235, "target": 0.25, "better": "lower"}}}
    assert json.loads(last) == expected
    table = [line for line in text if line.startswith("|")]
    assert len({len(line) for line in table}) == 1, "columns are aligned"
    assert "| much longer | 12345 |" in table


def test_arms_alternate() -> None:
    order: list[str] = []

    def arm(name: str, value: float) -> float:
        order.append(name)
        return value

    measured = harness.alternate({"a": lambda: arm("a", 1.0), "b": lambda: arm("b", 2.0)}, rounds=3)
    assert order == ["a", "b"] * 3
    assert harness.medians(measured) == {"a": 1.0, "b": 2.0}


def test_the_interval_of_a_median_holds_it_and_is_narrow_for_values_that_agree() -> None:
    least, most = harness.median_interval([[0.99, 1.0, 1.01] * 5, [0.98, 1.0, 1.02] * 5])
    assert 0.98 <= least <= 1.0 <= most <= 1.02
    assert harness.median_interval([[1.0] * 9] * 3) == (1.0, 1.0)


def test_percentile() -> None:
    values = [float(number) for number in range(100)]
    assert harness.percentile(values, 0.99) == 99.0
    assert harness.percentile(values, 0.5) == 50.0
    assert harness.percentile([7.0], 0.99) == 7.0


def test_nothing_of_a_workspace_is_left_when_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_URL", "http://somebody-elses")
    before = dict(os.environ)
    seen: list[tuple[Path, str]] = []
    # A grandchild in a session of its own, whose parent is gone: it can be found by its mark only.
    sleeper = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
    sleeper += "start_new_session=True)"

    def fail() -> None:
        with harness.workspace() as folder:
            assert "WINDLASS_URL" not in os.environ
            subprocess.run([sys.executable, "-c", sleeper], check=True)
            seen.append((folder, os.environ[harness.MARK]))
            assert len(harness._marked(os.environ[harness.MARK])) == 1
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    ((folder, mark),) = seen
    assert not folder.exists()
    assert harness._marked(mark) == []
    assert dict(os.environ) == before


def test_a_result_is_read_from_the_last_line() -> None:
    figures = '{"bench": "x", "figures": {"f": {"value": 2.0, "target": 1.0, "better": "higher"}}}'
    result = read_result("x", f"a table\n\n{figures}\n", 0, took_s=1.0)
    assert result.met
    assert result.text == "a table"
    assert result.figures["f"].value == 2.0


@pytest.mark.parametrize(("output", "code"), [("no json\n", 0), ("", 0), ('{"bench": 1}\n', 0), ("half a table\n", 3)])
def test_a_benchmark_without_a_result_has_failed(output: str, code: int) -> None:
    result = read_result("x", output, code, took_s=1.0)
    assert result.failure
    assert not result.met


def test_a_failing_process_is_a_result() -> None:
    result = run_bench("x", [sys.executable, "-c", "print('so far'); raise SystemExit(5)"])
    assert result.failure == "ended with exit code 5"
    assert result.text == "so far"


def test_the_page_keeps_what_missed_its_target_and_what_failed() -> None:
    page = render_page(
        [
            Result(
                bench="launch",
                took_s=3.0,
                figures={
                    "good": Figure(value=0.2, target=0.25, better="lower"),
                    "bad": Figure(value=0.3, target=0.25, better="lower"),
                },
                text="its tables",
            ),
            Result(bench="overhead", took_s=1.0, failure="ended with exit code 1", text="as far as it came"),
        ],
        {"machine": "2 cores"},
        quick=True,
    )
    lines = {tuple(cell.strip() for cell in line.strip("|").split("|")) for line in page.splitlines() if "|" in line}
    assert ("launch", "good", "0.2", "<= 0.25", "yes") in lines
    assert ("launch", "bad", "0.3", "<= 0.25", "**no**") in lines
    assert ("overhead", "", "", "", "**failed**: ended with exit code 1") in lines
    for text in ("- machine: 2 cores", "its tables", "as far as it came", "quick run"):
        assert text in page


def test_all_go_on_when_one_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []

    def fake(bench: str, command: list[str]) -> Result:
        asked.append(command[2])
        assert "--quick" in command
        return Result(bench=bench, took_s=0.0, failure="no luck" if bench == "launch" else None)

    monkeypatch.setattr("bench.__main__.run_bench", fake)
    output = tmp_path / "benchmarks.md"
    assert main(["--quick", "--output", str(output)]) == 1
    assert asked == [f"bench.{name}" for name in BENCHES]
    assert "**failed**: no luck" in output.read_text()
