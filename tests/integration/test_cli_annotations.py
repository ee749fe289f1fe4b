"""Notes, groups and views on the command line."""

from __future__ import annotations

from pathlib import Path

import pandas

from tests.integration.test_cli_commands import Cli
from windlass.testing.servers import running_server


def test_notes_groups_and_views(tmp_path: Path) -> None:
    with running_server(tmp_path / "home") as server:
        cli = Cli(home=server.home, folder=tmp_path)
        ids = [
            cli("run", "-d", "--no-snapshot", "--group", "g", "-n", name, "--", "true").stdout.strip() for name in "ab"
        ]
        other = cli("run", "-d", "--no-snapshot", "-n", "c", "--", "true").stdout.strip()

        cli("note", "a", "too hot")
        assert cli("note", "a").stdout.strip() == "too hot"
        assert "too hot" in cli("show", "a").stdout
        assert "too hot" in cli("compare", "--group", "g").stdout
        assert "the note is gone" in cli("note", "a", "--clear").stderr
        assert "one run's, or one project's" in cli("note", expect=2).stderr
        cli("note", "--project", "default", "all of it")
        assert cli.json("note", "--project", "default") == {"of": "default", "text": "all of it"}

        assert {run["id"] for run in cli.json("search", "--group", "g")} == set(ids)
        cli("group", "g", "c")
        cli("group", "g", "b", "--remove")
        assert {run["id"] for run in cli.json("group", "g")} == {ids[0], other}
        assert cli.json("group")[0]["runs"] == 2
        cli("group", "it's", "b")
        told = cli("group", "g", "b", "c", "--remove").stderr
        assert "not in 'g', and left as they are: b" in told
        assert "1 run taken out of 'g'" in told
        assert [run["name"] for run in cli.json("group", "it's")] == ["b"]
        cli("group", "g", "c")

        assert "no views yet" in cli("views", "ls").stderr
        cli("views", "save", "mine", "group = 'g'", "--order", "name desc", "--columns", "tags.group,params.lr")
        assert [run["name"] for run in cli.json("search", "--view", "mine")] == ["c", "a"]
        shown = cli("search", "--view", "mine", "name = 'c'").stdout
        assert "group" in shown
        assert other in shown
        assert ids[0] not in shown
        assert cli("search", "--view", "mine", "--csv").stdout.splitlines() == [
            "id,tags.group",
            f"{other},g",
            f"{ids[0]},g",
        ]
        cli("search", "--view", "mine", "--parquet", "mine.parquet")
        assert list(pandas.read_parquet(tmp_path / "mine.parquet").columns) == ["id", "tags.group"]
        assert "no run has a column 'params.lr'" in cli("search", "-c", "params.lr", "--csv", expect=2).stderr
        assert "mine" in cli("views", "ls").stdout
        cli("views", "rm", "mine")
        assert "there is no view 'mine'" in cli("search", "--view", "mine", expect=2).stderr


def test_runs_of_mlflows_clients_and_long_lists(tmp_path: Path) -> None:
    with running_server(tmp_path / "home") as server, server.client() as api:
        cli = Cli(home=server.home, folder=tmp_path)
        for number in range(52):
            new = {"experiment_id": "0", "run_name": f"n{number}", "start_time": 1_000 + number}
            made = api.post("/api/2.0/mlflow/runs/create", json=new).json()["run"]["info"]["run_id"]
        points = [{"key": "loss", "value": value, "timestamp": 5, "step": step} for step, value in enumerate((2, 1))]
        body = {"run_id": made, "metrics": points, "params": [{"key": "lr", "value": "7"}], "tags": []}
        assert api.post("/api/2.0/mlflow/runs/log-batch", json=body).is_success

        shown = cli("show", made[:10]).stdout
        assert made in shown
        assert "lr=7" in shown
        assert "2 → 1" in shown
        assert cli.json("show", "n51")["params"] == {"lr": "7"}
        assert "made by an MLflow client" in cli("logs", made, expect=2).stderr
        assert "there is no run 'nobody'" in cli("show", "nobody", expect=2).stderr

        (loss,) = cli("metrics", made).stdout.splitlines()[1:]
        assert loss.split() == ["loss", "1", "1", "1", "2", "2"]

        table = cli("search")
        assert len(table.stdout.splitlines()) == 51
        assert "the first 50; -n shows more" in table.stderr
        assert "shows more" not in cli("search", "-n", "52").stderr
        assert len(cli("search", "--csv").stdout.splitlines()) == 53
        assert len(cli.json("search")) == 52
        assert len(cli.json("search", "-n", "3")) == 3
        assert "did you mean 'loss'" in cli("search", "metrics.los < 1").stderr
        assert "there is no project 'nope'" in cli("ps", "--project", "nope").stderr


def test_metrics_of_the_machines_are_shown_to_who_asks_for_them(tmp_path: Path) -> None:
    with running_server(tmp_path / "home") as server, server.client() as api:
        cli = Cli(home=server.home, folder=tmp_path)
        machine = {"step": None, "at": 1_000.0, "values": {"system/cpu_percent": 50.0}}
        own = cli("run", "-d", "--no-snapshot", "-n", "own", "--", "true").stdout.strip()
        assert api.post(f"/api/runs/{own}/metrics", json={"source": "m", "seq": 0, "points": [machine]}).is_success
        assert "--system shows" in cli("metrics", own).stderr
        for words in (["system/cpu_p*"], ["system/cpu_percent"], ["--system", "*cpu_p*"]):
            assert list(cli.json("metrics", own, *words)) == ["system/cpu_percent"]
        assert "50.0" in cli("metrics", own, "system/cpu_percent", "--points").stdout
