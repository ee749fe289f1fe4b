"""`windlass simulate`: its table, its JSON, its plot, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from windlass.cli.commands import build_app
from windlass.core.errors import InvalidInput

ROWS = "\n".join(
    f"2024-01-{1 + n // 24:02d} {n % 24:02d}:00:00,{(n * 7919) % 9000 + 60},{1 << n % 4},x" for n in range(96)
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = tmp_path / "trace.csv"
    file.write_text(f"timestamp,duration,num_gpus,cluster\n{ROWS}\n")
    return file


def answer(*words: str | Path) -> str:
    result = CliRunner().invoke(build_app(), ["simulate", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_table_compares_policies(trace: Path) -> None:
    text = answer("--trace", trace, "--load", "0.9", "--policy", "windlass", "--policy", "fifo")
    for word in ("96 jobs of trace.csv", "windlass", "fifo", "mean completion", "preemptions"):
        assert word in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give --trace FILE, or --history, e.g. 30d; one of the two"),
        (("--trace", "t.csv", "--history", "30d"), "give --trace FILE, or --history, e.g. 30d; one of the two"),
        (("--history", "soon"), "--history soon: "),
    ],
)
def test_one_thing_is_replayed(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        answer(*words)
    assert said in str(refused.value)


def test_json_and_plot(trace: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("nodes:\n  - {count: 2, gpus: 8, price_per_hour: 16}\n")
    plot = tmp_path / "out.svg"
    words = ("--policy", "windlass", "--policy", "clairvoyant", "--plot", plot, "--json")
    found = json.loads(answer("--trace", trace, "--cluster", cluster, *words))
    ours, best = found["policies"]
    assert found["gpus"] == 16
    assert ours["mean_s"] >= best["mean_s"]
    assert ours["usd"] > 0
    assert ElementTree.parse(plot).getroot().tag.endswith("svg")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give --cluster FILE, or --load"),
        (("--load", "0"), "--load 0: a load is above 0"),
        (("--load", "0.8", "--policy", "best"), "unknown policy 'best'; known: windlass, fifo"),
        (("--load", "0.8", "--plot", "x.png"), "ends with .svg or .html, not with .png"),
    ],
)
def test_refusals_name_value_rule_and_options(trace: Path, words: tuple[str, ...], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        answer("--trace", trace, *words)
    assert said in refused.value.message


def test_a_cluster_with_a_wrong_key_is_refused(trace: Path, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("nodes:\n  - {cout: 2}\n")
    with pytest.raises(InvalidInput, match=r"cluster.yaml: nodes.0.cout"):
        answer("--trace", trace, "--cluster", cluster)
