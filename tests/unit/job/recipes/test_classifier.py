"""The recipe `classifier`: what it reads, what it refuses, and that two processes learn what one learns."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.unit.job.processes import run_processes  # noqa: E402
from windlass.core.errors import InvalidInput  # noqa: E402
from windlass.job.recipes.classifier import (  # noqa: E402
    Settings,
    drawn_digits,
    image_model,
    load,
    model_for,
)

pytestmark = pytest.mark.torch

SCRIPT = """
import sys, torch
torch.set_num_threads(1)
from windlass.job.recipes import classifier
accuracy = classifier.main()
sys.stdout.write(f"accuracy {accuracy}\\n")
"""


def test_one_and_two_processes_learn_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_PARAMS", json.dumps({"epochs": 2, "width": 32}))
    results = []
    for count in (1, 2):
        folder = tmp_path / str(count)
        folder.mkdir()
        outputs = run_processes(SCRIPT, folder, count=count)
        assert "4,000 samples, 10 classes" in outputs[0]
        saved = torch.load(folder / "output" / "model.pt")
        assert saved["classes"] == [str(digit) for digit in range(10)]
        points = [json.loads(line)["m"] for line in (folder / "metrics-0.jsonl").read_text().splitlines()]
        accuracy = [point["test_accuracy"] for point in points if "test_accuracy" in point]
        assert len(accuracy) == 2
        assert any("samples_per_s" in point for point in points)
        results.append((accuracy, saved["weights"]))
    (alone, alone_weights), (together, together_weights) = results
    assert alone[-1] > 0.6  # one in ten would be right by chance
    assert together == pytest.approx(alone, abs=0.02)  # the order of sums differs, and a sample may tip over
    for name, weight in alone_weights.items():
        torch.testing.assert_close(together_weights[name], weight, rtol=0.05, atol=0.01)


def test_the_same_from_a_folder_and_an_archive(tmp_path: Path) -> None:
    images, labels = drawn_digits(100, seed=3)
    np.save(tmp_path / "x.npy", images)
    np.save(tmp_path / "y.npy", labels)
    np.savez(tmp_path / "digits.npz", x=images, y=labels, x_test=images[:7], y_test=labels[:7])
    from_folder = load(Settings(data=str(tmp_path)))
    assert (len(from_folder.y), len(from_folder.y_test)) == (90, 10)  # a tenth is kept aside
    from_archive = load(Settings(data=str(tmp_path / "digits.npz")))
    assert (len(from_archive.y), len(from_archive.y_test)) == (100, 7)
    assert from_archive.x.shape == (100, 1, 16, 16)
    torch.testing.assert_close(from_archive.x[:7], from_archive.x_test)
    assert model_for(from_archive, 16)(from_archive.x).shape == (100, 10)


def test_a_table_with_words_as_labels(tmp_path: Path) -> None:
    with (tmp_path / "table.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["size", "kind", "weight"])
        rows.writerows([number, "large" if number > 10 else "small", number * 2.5] for number in range(40))
    samples = load(Settings(data=str(tmp_path / "table.csv"), label="kind"))
    assert samples.classes == ["large", "small"]
    assert samples.x.shape == (36, 2)
    assert abs(float(samples.x.mean())) < 1e-5
    assert model_for(samples, 8)(samples.x).shape == (36, 2)


def test_images_have_their_channels_last(tmp_path: Path) -> None:
    np.savez(tmp_path / "colour.npz", x=np.ones((20, 9, 7, 3), np.uint8), y=np.arange(20) % 2)
    samples = load(Settings(data=str(tmp_path / "colour.npz"), held_out=0.5))
    assert samples.x.shape == (10, 3, 9, 7)
    assert model_for(samples, 8)(samples.x).shape == (10, 2)


@pytest.mark.parametrize(
    ("name", "arrays", "words"),
    [
        ("data.txt", None, "options: a .csv file, a .npz file, a folder"),
        ("data.npz", {"x": np.ones((4, 2))}, "has no y; it may have: x, y, x_test, y_test"),
        ("data.npz", {"x": np.ones((4, 2)), "y": np.ones(3)}, "4 inputs and 3 labels"),
        ("data.npz", {"x": np.ones(4), "y": np.ones(4)}, r"x has the shape \(3,\)"),
        (
            "data.npz",
            {"x": np.ones((4, 2)), "y": np.ones(4), "x_test": np.ones((1, 2)), "y_test": np.zeros(1)},
            "labels that the rest has not",
        ),
    ],
)
def test_data_that_cannot_be_read_is_refused(
    tmp_path: Path, name: str, arrays: dict[str, np.ndarray] | None, words: str
) -> None:
    path = tmp_path / name
    if arrays is not None:
        np.savez(path, **arrays)
    else:
        path.touch()
    with pytest.raises(InvalidInput, match=words):
        load(Settings(data=str(path)))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "table.csv has 0 lines, but must have a header and samples below it"),
        ("a,b\n", "table.csv has 1 lines, but must have a header"),
        ("a,b\n1,x\n\n2\n", "table.csv:4 has 1 cells, but the header has 2"),
        ("a,b\n1,x\nno,y\n", "table.csv:3: could not convert .*; all columns but 'b' must be numbers"),
        ("a,b\n1,x\n", "1 samples, of which held_out=0.1 keeps 1 aside, leave none to learn from"),
    ],
)
def test_tables_that_cannot_be_read_are_refused(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "table.csv").write_text(content)
    with pytest.raises(InvalidInput, match=words):
        load(Settings(data=str(tmp_path / "table.csv")))


def test_what_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"none\.csv', but there is no such file or folder"):
        load(Settings(data=str(tmp_path / "none.csv")))
    with pytest.raises(InvalidInput, match="width is 30, but must be a multiple of 8 for images, such as 32"):
        image_model(1, 10, 30)


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a,b\n1,x\n")
    with pytest.raises(InvalidInput, match="has no column 'c'; columns: a, b"):
        load(Settings(data=str(tmp_path / "table.csv"), label="c"))
    with pytest.raises(InvalidInput, match="all columns but 'a' must be numbers"):
        load(dataclasses.replace(Settings(), data=str(tmp_path / "table.csv"), label="a"))
