"""`python -m windlass.job.parity`: one row per plan, non-zero exit when one does not learn as one process does."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence

from windlass.core.plan import Plan
from windlass.job.parity.cases import BATCH, Case, cases_for
from windlass.job.parity.verdict import HEADER, Row, judge, reference_key, render_row, render_summary
from windlass.job.parity.workers import run_cases

_LEGEND = """\
difference: of the loss from one process's, relative, the largest of any step; bound: what it may be
peak: all tensors of the process that needs most; params, grads, state: of those, each at its largest
sent/step: by one process, if collectives are rings: 2(n-1)/n of an all-reduce, (n-1)/n of a gather or scatter
"""


def check_parity(cases: Mapping[int, Sequence[Case]], steps: int, tell: Callable[[Row], None]) -> list[Row]:
    """Train all cases, by number of processes, and compare them with one process that takes the same steps."""
    clips = dict.fromkeys(reference_key(case) for chosen in cases.values() for case in chosen)
    references = {}
    for outcome in run_cases([Case(plan=Plan(data=1, clip=clip)) for clip in clips], 1, steps):
        if outcome.error:
            raise RuntimeError(f"one process alone failed: {outcome.error}")
        references[reference_key(outcome.case)] = outcome.losses
    rows = []
    for world_size, chosen in cases.items():
        for outcome in run_cases(chosen, world_size, steps):
            row = judge(outcome, references[reference_key(outcome.case)], world_size)
            tell(row)
            rows.append(row)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    options = _options().parse_args(argv)
    cases = {n: cases_for(n, options.only) for n in options.procs}
    if options.list:
        for n, chosen in cases.items():
            for case in chosen:
                print(f"{n:>5} {case.name}")
        return 0
    if not any(cases.values()):
        print(f"no plan matches {options.only!r}; see --list", file=sys.stderr)
        return 2
    if not options.json:
        print(_LEGEND + "\n" + HEADER, flush=True)
    rows = check_parity(cases, options.steps, lambda row: None if options.json else print(render_row(row), flush=True))
    if options.json:
        print(json.dumps([row.as_dict() for row in rows]))
    else:
        print("\n" + render_summary(rows))
    return 0 if all(row.agrees for row in rows) else 1


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m windlass.job.parity", description=__doc__)
    parser.add_argument("--procs", type=_numbers, default=[1, 2, 4, 8], help="numbers of processes (default 1,2,4,8)")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="plans whose text matches or contains this")
    parser.add_argument("--steps", type=int, default=20, help="steps to train (default 20, at least 4)")
    parser.add_argument("--json", action="store_true", help="one JSON list instead of the table")
    parser.add_argument("--list", action="store_true", help="print the plans and stop")
    return parser


def _numbers(text: str) -> list[int]:
    fitting = [n for n in range(1, BATCH + 1) if BATCH % n == 0]
    numbers = [int(part) for part in text.split(",")]
    for number in numbers:
        if number not in fitting:
            raise argparse.ArgumentTypeError(
                f"{number} processes do not divide the batch of {BATCH} samples that all plans train on; options: "
                + ", ".join(map(str, fitting))
            )
    return numbers


if __name__ == "__main__":
    sys.exit(main())
