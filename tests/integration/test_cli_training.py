"""Plans, recipes, roles and alerts as people use them: by the command, against a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from windlass.client.recipes import package_files, package_root
from windlass.core.recipes import load_recipes
from windlass.testing import servers

WINDLASS = [sys.executable, "-c", "from windlass.cli.main import main; main()"]
TRAIN = """
from windlass import job
print("plan", job.plan, job.rank)
for step in range(8):
    job.alert("nan", "the loss is no number", step=step)
if job.params.get("fails"):
    raise ValueError("bad batch")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cli:
    home: Path
    folder: Path

    def __call__(self, *words: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*WINDLASS, *words], cwd=self.folder, env=os.environ | {"WINDLASS_HOME": str(self.home), "COLUMNS": "150"},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=170, check=False,
        )  # fmt: skip
        assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
        return done

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json").stdout)

    def newest(self) -> Any:
        return self.json("show", self.json("ps", "-a")[0]["id"])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with servers.running_server(tmp_path_factory.mktemp("training") / "home") as server:
        yield server.home


@pytest.fixture
def cli(home: Path, tmp_path: Path) -> Cli:
    (tmp_path / "train.py").write_text(TRAIN)
    return Cli(home=home, folder=tmp_path)


def test_a_plan_reaches_every_rank_and_the_record(cli: Cli) -> None:
    done = cli("run", "--name", "planned", "--nproc", "2", "--plan", "tensor=2,clip=1", "train.py")
    assert sorted(done.stdout.splitlines()) == ["[0] plan tensor=2,clip=1 0", "[1] plan tensor=2,clip=1 1"]
    assert cli.newest()["spec"]["plan"] == {"tensor": 2, "clip": 1.0}
    assert "tensor=2,clip=1" in cli("show", "planned").stdout
    refused = cli("clone", "planned", "--set", "plan.tensor=4", expect=2).stderr
    assert "`plan`: plan tensor=4,clip=1 needs a multiple of 4 processes" in refused
    assert "hint: 4 processes fit" in refused
    clone = cli("clone", "planned", "--set", "plan.tensor=1", "--set", "plan.clip=2", "-f")
    assert "plan clip=2 0" in clone.stdout


def test_a_plan_that_is_wrong_has_its_line(cli: Cli) -> None:
    (cli.folder / "bad.yaml").write_text("script: train.py\nplan:\n  data: 2\n  tenosr: 2\n")
    refused = cli("submit", "bad.yaml", expect=2).stderr
    assert refused.startswith("error: bad.yaml:4: `plan.tenosr`: unknown plan key 'tenosr'; did you mean 'tensor'?\n")
    assert "unknown plan key 'datta'" in cli("submit", "bad.yaml", "--plan", "datta=2", expect=2).stderr


def test_alerts_are_events_of_the_run_once_each(cli: Cli) -> None:
    done = cli("run", "--name", "alarmed", "train.py")
    shown = [line for line in done.stderr.splitlines() if line.startswith("windlass: nan")]
    assert shown == [f"windlass: nan at step {step}: the loss is no number" for step in range(5)]  # the rest held back
    assert cli("show", "alarmed").stdout.count("nan at step") == 5


def test_the_end_of_a_failed_run_is_its_traceback(cli: Cli) -> None:
    done = cli("run", "--name", "fails", "-p", "fails=true", "train.py", expect=1)
    for text in (done.stderr, cli("show", "fails").stdout, cli("why", "fails").stdout):
        assert 'raise ValueError("bad batch")\n' in text
        assert "ValueError: bad batch (train.py:7)" in text
    assert cli.newest()["exit"]["traceback"].endswith("\nValueError: bad batch")


def test_roles_of_a_spec_file(cli: Cli) -> None:
    (cli.folder / "roles.yaml").write_text(
        "name: roles\n"
        'command: [python, -c, \'import os; print(os.environ["WINDLASS_ROLE"], os.environ["WINDLASS_ROLE_RANK"])\']\n'
        "roles: {worker: 2, ps: {count: 1, command: sleep 600}}\n"
    )
    done = cli("run", "--file", "roles.yaml")
    assert sorted(done.stdout.splitlines()) == ["[0] worker 0", "[1] worker 1"]
    assert "2 worker, 1 ps (sleep 600)" in cli("show", "roles").stdout


def test_recipes_are_listed_and_unknown_ones_refused(cli: Cli) -> None:
    names = [recipe["name"] for recipe in cli.json("recipes")]
    assert names == sorted(load_recipes())
    assert "classifier" in names
    assert "`recipe`: unknown recipe 'clasifier'; did you mean 'classifier'?" in (
        cli("run", "--recipe", "clasifier", expect=2).stderr
    )


def test_a_recipe_is_shown_with_its_params(cli: Cli) -> None:
    shown = cli.json("recipes", "classifier")
    assert Path(shown["file"]).is_file()
    assert {param["name"]: param["default"] for param in shown["params"]}["epochs"] == 5
    text = cli("recipes", "classifier").stdout
    assert "a whole number from 1; samples per step, of all processes together" in text
    assert "example  windlass run --recipe classifier --nproc 2" in text
    assert "did you mean 'gpt'" in cli("recipes", "gtp", expect=2).stderr


def test_params_of_a_recipe_are_refused_before_it_starts(cli: Cli) -> None:
    refused = cli("run", "--recipe", "gpt", "-p", "stepz=6", expect=2).stderr
    assert "`params`: unknown param 'stepz'; did you mean 'steps'?" in refused
    assert "`windlass recipes gpt` lists its params" in refused
    asked = ("run", "--recipe", "gpt", "--nproc", "3")
    refused = cli(*asked, "--plan", "tensor=3", expect=2).stderr
    assert "`plan`: tensor=3 does not divide the model's 4 heads; options: 1, 2, 4" in refused
    refused = cli(*asked, expect=2).stderr
    assert "`params`: a batch of 16 is not divided by 3 (data×shard=3, accumulate=1); 15 or 18 would be" in refused
    assert "gpt" not in cli("ps", "--all").stdout


@pytest.mark.torch
def test_what_a_recipe_refuses_while_it_runs_is_one_line(cli: Cli) -> None:
    failed = cli("run", "--recipe", "gpt", "-p", "data=/not/here.txt", expect=1)
    assert "error: there are no tokens at /not/here.txt" in failed.stderr
    assert "Traceback" not in failed.stdout + failed.stderr
    assert "there are no tokens at /not/here.txt" in cli("why", cli.newest()["id"]).stdout


@pytest.mark.torch
@pytest.mark.timeout(180)
def test_a_recipe_needs_no_folder_and_brings_its_code(cli: Cli) -> None:
    cli("run", "--recipe", "classifier", "--nproc", "2", "-p", "epochs=1")
    record = cli.newest()
    assert record["state"] == "succeeded"
    assert (record["spec"]["recipe"], record["spec"]["framework"]) == ("classifier", "pytorch")
    assert Path(record["run_dir"], "work", "windlass", "job", "recipes", "classifier.py").is_file()
    assert not Path(record["run_dir"], "work", "train.py").exists()


def test_what_is_sent_is_enough_without_an_installation(tmp_path: Path) -> None:
    for name in package_files():
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((package_root() / name).read_bytes())
    # No site-packages: what is not sent and not in the standard library is not there.
    parts = "windlass.planning, windlass.job.checkpoint.stores.uploader"
    script = f"import windlass.job as job, {parts}; job.log(1, loss=1); print(job.__file__, job.plan)"
    done = subprocess.run(
        [sys.executable, "-S", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == f"{tmp_path}/windlass/job/__init__.py data\n"
