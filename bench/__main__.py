"""`python -m bench`: every benchmark, one after the other, and docs/benchmarks.md from what they print."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness import Figure, machine_facts, render_table, tell

ROOT = Path(__file__).resolve().parents[1]
BENCHES = ("launch", "overhead", "throughput", "engines", "schedule", "checkpoint", "recovery", "tracking", "joblog")

GPU_FIGURES = Path(__file__).with_name("gpu_figures.md")  # from a machine of another kind, kept by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    bench: str
    took_s: float
    figures: Mapping[str, Figure] = field(default_factory=dict)
    text: str = ""  # the tables
    failure: str | None = None

    @property
    def met(self) -> bool:
        return self.failure is None and all(figure.met for figure in self.figures.values())


def run_bench(bench: str, command: Sequence[str]) -> Result:
    """Run one in a process of its own, showing what it prints. A failure is a result too."""
    tell(f"\n== {bench}")
    began = time.monotonic()
    lines = []
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
            code = process.wait()
        except BaseException:
            # It has children of its own to end. A terminal's Ctrl-C has reached it too; it heeds the first signal only.
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise
    return read_result(bench, "".join(lines), code, took_s=time.monotonic() - began)


def read_result(bench: str, output: str, code: int, *, took_s: float) -> Result:
    if code != 0:
        return Result(bench=bench, took_s=took_s, failure=f"ended with exit code {code}", text=output.strip())
    text, _, last = output.strip().rpartition("\n")
    try:
        data: Any = json.loads(last)
        figures = {key: Figure(**figure) for key, figure in data["figures"].items()}
    except (ValueError, TypeError, KeyError) as error:
        return Result(bench=bench, took_s=took_s, failure=f"its last line is no result: {error}", text=output.strip())
    return Result(bench=bench, took_s=took_s, figures=figures, text=text.strip())


def render_page(results: Sequence[Result], facts: Mapping[str, str], *, quick: bool) -> str:
    rows: list[list[object]] = []
    for result in results:
        if result.failure:
            rows.append([result.bench, "", "", "", f"**failed**: {result.failure}"])
        for key, figure in result.figures.items():
            bound = "<=" if figure.better == "lower" else ">="
            rows.append(
                [result.bench, key, figure.value, f"{bound} {figure.target:g}", "yes" if figure.met else "**no**"]
            )
    parts = [
        "# Benchmarks",
        "Made by `make bench`; the scripts are in [bench/](../bench). Ratios are of arms that alternate within one "
        "run on one machine; absolute times are that machine's."
        + (" **A quick run (`--quick`): few repetitions, so take the figures as rough.**" if quick else ""),
        "\n".join(f"- {name}: {value}" for name, value in facts.items()),
        render_table(("bench", "figure", "value", "target", "met"), rows),
    ]
    for result in results:
        parts += [f"## {result.bench}", f"Took {result.took_s:.0f} s.", result.text]
    parts.append(GPU_FIGURES.read_text().strip())
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--only", action="append", choices=BENCHES, help="just this one; the page is not written")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks.md")
    given = parser.parse_args(arguments)
    facts = machine_facts()
    for name, value in facts.items():
        tell(f"{name}: {value}")
    flags = ["--quick"] if given.quick else []
    chosen = given.only or BENCHES
    results = [run_bench(bench, [sys.executable, "-m", f"bench.{bench}", *flags]) for bench in chosen]
    page = render_page(results, facts, quick=given.quick)
    if given.only:
        print(page)
    else:
        given.output.write_text(page)
        tell(f"\nwritten to {given.output}")
    for result in results:
        if result.failure:
            tell(f"{result.bench} failed: {result.failure}")
    return 1 if any(result.failure for result in results) else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, as Ctrl-C does
    sys.exit(main())
