"""The catalogue end to end: a run that saves, dies, goes on in the same folder, and what the command shows of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from windlass.core.manifest import folder_name
from windlass.testing import servers

WINDLASS = [sys.executable, "-c", "from windlass.cli.main import main; main()"]
# Saves as the library does, without its models: what counts here are manifests and notes.
TRAIN = """
import hashlib, json, os, signal, time
from pathlib import Path
from windlass import job
from windlass.core.manifest import *
from windlass.job.session import session

root = Path(os.environ["WINDLASS_CHECKPOINT_DIR"])
print("wanted", os.environ.get("WINDLASS_CHECKPOINT"), flush=True)
found = sorted(path.name for path in root.iterdir()) if root.exists() else []
print("found", *found, flush=True)

def save(step, loss):
    folder = root / folder_name(step)
    folder.mkdir(parents=True)
    data = os.urandom(10_000)
    (folder / "part").write_bytes(data)
    part = PartFile(name="part", size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    manifest = Manifest(run_id=session().run_id, attempt=session().attempt, step=step, created_at=time.time(),
        reason=SaveReason.INTERVAL, world_size=1, plan="data=1", files=(part,), metrics={"loss": loss})
    (folder / MANIFEST).write_text(render_manifest(manifest))
    session().checkpoint(folder, manifest)

if session().attempt == 1:
    save(10, 1.0)
    os.kill(os.getppid(), signal.SIGKILL)  # its supervisor, so that another attempt follows
    signal.pause()
save(20, 2.0)
while job.params.get("forever") and not (root / "stop").exists():
    time.sleep(0.05)
"""
# Saves with the library, on two processes; dies once.
LIBRARY = """
import os, signal
from pathlib import Path
import torch
from windlass import job
from windlass.job.session import session

torch.distributed.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
with job.checkpoints(model=model, optimizer=optimizer) as saving:
    print("goes on from", saving.first_step, flush=True)
    for step in saving.steps(7):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if session().attempt == 1 and step == 4:
            saving.save()
            torch.distributed.barrier()
            os.kill(os.getppid(), signal.SIGKILL)  # their supervisor, so that another attempt follows
            signal.pause()
torch.distributed.destroy_process_group()
"""
SPEC = {
    "name": "saver",
    "script": "train.py",
    "checkpoint": {"every": "10m", "keep": 5, "best": "loss"},
    "retry": {"max": 2, "backoff": 0.01},
}


class Cli:
    def __init__(self, home: Path, folder: Path) -> None:
        self.home = home
        self.folder = folder

    def __call__(self, *words: str, expect: int | None = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*WINDLASS, *words],
            cwd=self.folder,
            env=os.environ | {"WINDLASS_HOME": str(self.home), "COLUMNS": "160"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert expect is None or done.returncode == expect, (done.returncode, done.stdout, done.stderr)
        return done

    def json(self, *words: str, expect: int = 0) -> Any:
        return json.loads(self(*words, "--json", expect=expect).stdout)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with servers.running_server(tmp_path_factory.mktemp("catalogue") / "home") as server:
        yield server.home


@pytest.fixture
def cli(home: Path, tmp_path: Path) -> Cli:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "spec.yaml").write_text(json.dumps(SPEC))
    return Cli(home, tmp_path)


@pytest.mark.timeout(400)
def test_a_run_goes_on_in_its_folder_and_the_catalogue_has_what_it_saved(cli: Cli, home: Path) -> None:
    said = cli("submit", "spec.yaml", "-f").stdout
    assert 'wanted {"every":"10m","keep":5,"best":"loss","best_is":"lowest"}' in said
    assert f"found {folder_name(10)}" in said
    run = cli.json("ps", "-a", "-n", "1")[0]["id"]

    listed = cli.json("checkpoints", "ls", run)["checkpoints"]
    assert [(c["step"], c["attempt"], c["is_newest"], c["is_best"]) for c in listed] == [
        (20, 2, True, False),
        (10, 1, False, True),
    ]
    root = home / "runs" / run / "checkpoints"
    assert {c["location"] for c in listed} == {str(root / folder_name(10)), str(root / folder_name(20))}
    shown = cli("checkpoints", "ls", run).stdout
    assert [line.split()[:2] for line in shown.splitlines()[1:]][1] == ["*", "10"]
    assert "loss 2" in shown

    detail = cli("checkpoints", "show", run, "best").stdout
    assert detail.startswith("step 10  c-")
    assert f"folder      {root / folder_name(10)}" in detail
    assert "part" in detail
    assert "step 20, 10.0 KB" in cli("show", run).stdout

    assert "good" in cli("checkpoints", "verify", run).stdout
    part = root / folder_name(20) / "part"
    data = bytearray(part.read_bytes())
    data[5_000] ^= 1
    part.write_bytes(data)
    results = cli.json("checkpoints", "verify", run, "--all", expect=1)
    assert [(r["checkpoint"]["step"], r["finding"]) for r in results] == [(20, "corrupt"), (10, "good")]
    assert [c["step"] for c in cli.json("checkpoints", "ls", run)["checkpoints"]] == [10]

    refused = cli("checkpoints", "rm", run, "10", expect=1)
    assert "this would remove step 10 (10.0 KB)" in refused.stderr
    cli("checkpoints", "rm", run, "10", "20", "--yes")
    assert list(root.iterdir()) == []
    assert "has no good checkpoints" in cli("checkpoints", "ls", run).stderr
    gone = cli.json("checkpoints", "ls", run, "-a")["checkpoints"]
    assert [(c["state"], c["detail"]) for c in gone] == [("deleted", "removed by hand")] * 2


@pytest.mark.timeout(400)
def test_a_run_that_is_not_over_keeps_what_it_would_go_on_from(cli: Cli, home: Path) -> None:
    run = cli("submit", "spec.yaml", "-p", "forever=true").stdout.strip()
    root = home / "runs" / run / "checkpoints"
    deadline = time.monotonic() + 200
    while [c["step"] for c in cli.json("checkpoints", "ls", run)["checkpoints"]] != [20, 10]:
        assert time.monotonic() < deadline, cli("show", run).stdout
    refused = cli("checkpoints", "rm", run, "newest", "--yes", expect=1)
    assert f"step 20 is the newest good checkpoint of run {run}, which is not over" in refused.stderr
    cli("checkpoints", "rm", run, "10", "--yes")
    assert [path.name for path in root.iterdir()] == [folder_name(20)]
    cli("cancel", run, "--grace", "0s")
    wrong = cli("checkpoints", "show", run, "7", expect=2)
    assert "the run has no checkpoint '7'" in wrong.stderr
    assert "write a step (20), an id, `newest` or `best`" in wrong.stderr


@pytest.mark.torch
@pytest.mark.timeout(600)
def test_what_the_library_saves_verifies(cli: Cli, home: Path) -> None:
    (cli.folder / "train.py").write_text(LIBRARY)
    wanted = {"every": 2, "keep": 2, "store": f"file://{cli.folder}/store", "store_keep": 1}
    (cli.folder / "spec.yaml").write_text(json.dumps({**SPEC, "nproc": 2, "checkpoint": wanted}))
    said = cli("submit", "spec.yaml", "-f").stdout
    assert "goes on from 4" in said, said
    run = cli.json("ps", "-a", "-n", "1")[0]["id"]
    listed = cli.json("checkpoints", "ls", run, "-a")["checkpoints"]
    there = sorted(path.name for path in (home / "runs" / run / "checkpoints").iterdir() if path.name[0] != ".")
    assert sorted(folder_name(c["step"]) for c in listed if c["state"] == "available") == there
    assert len(there) == 2  # as the spec wants
    assert all(c["world_size"] == 2 for c in listed)
    results = cli.json("checkpoints", "verify", run)  # at both of its places
    assert [(r["finding"], r["checkpoint"]["step"], r["checkpoint"]["tier"]) for r in results] == [
        ("good", 7, "folder"),
        ("good", 7, "store"),
    ]
    assert results[0]["checkpoint"]["reason"] == "final"
    exported = cli.json("checkpoints", "export", f"{run}@7", "weights.safetensors")
    assert (exported["step"], exported["tensors"]) == (7, 2)
    assert "is there already" in cli("checkpoints", "export", run, "weights.safetensors", expect=1).stderr
    assert "there is no folder /nope" in cli("checkpoints", "export", run, "/nope/x.safetensors", expect=2).stderr
    assert "no FILE is given" in cli("checkpoints", "export", run, "6", expect=2).stderr
    assert cli.json("checkpoints", "export", run, "6", "at6.safetensors")["step"] == 6
    check_the_store(cli, run)


def check_the_store(cli: Cli, run: str) -> None:
    """It has one of the newest; damage there is found there, and it goes without the folder's."""
    listed = cli.json("checkpoints", "ls", run)["checkpoints"]
    assert [[place["tier"] for place in c["places"] if place["state"] == "available"] for c in listed] == [
        ["folder", "store"],
        ["folder"],
    ]
    assert "folder, store" in cli("checkpoints", "ls", run).stdout
    looked = [cli.json("checkpoints", "verify", run, "--all", *tier) for tier in ((), ("--tier", "store"))]
    assert [[r["checkpoint"]["tier"] for r in results] for results in looked] == [
        ["folder", "store", "folder"],
        ["store"],
    ]
    assert "'folder', 'store'" in cli("checkpoints", "verify", run, "--tier", "cloud", expect=2).stderr
    # What the attempt that died had begun to send is removed later.
    (kept,) = [path.parent for path in (cli.folder / "store" / run).glob("*/manifest.json")]
    assert f"store       file://{kept}" in cli("checkpoints", "show", run).stdout
    path = kept / ".metadata"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    results = cli.json("checkpoints", "verify", run, expect=1)
    assert [(r["finding"], r["checkpoint"]["tier"]) for r in results] == [("good", "folder"), ("corrupt", "store")]
    assert [c["step"] for c in cli.json("checkpoints", "ls", run)["checkpoints"]] == [7, 6]
    cli("checkpoints", "rm", run, "7", "--tier", "store", "--yes")
    assert not kept.exists()
    assert [r["finding"] for r in cli.json("checkpoints", "verify", run, "7")] == ["good"]


# Knows nothing of Windlass.
PLAIN = """
import os, time
os.makedirs("out", exist_ok=True)
for step in (1, 2):
    with open(f"out/model-{step}.pt.tmp", "wb") as file:
        file.write(os.urandom(1000 * step))
    os.rename(f"out/model-{step}.pt.tmp", f"out/model-{step}.pt")
"""


@pytest.mark.timeout(400)
def test_what_a_program_saves_by_itself_is_catalogued_and_stored(cli: Cli, home: Path) -> None:
    pytest.importorskip("obstore")
    (cli.folder / "train.py").write_text(PLAIN)
    wanted = {"watch": "out/*.pt", "store": f"file://{cli.folder}/store"}
    (cli.folder / "spec.yaml").write_text(json.dumps({"name": "plain", "script": "train.py", "checkpoint": wanted}))
    cli("submit", "spec.yaml", "-f")
    run = cli.json("ps", "-a", "-n", "1")[0]["id"]
    listed = cli.json("checkpoints", "ls", run)["checkpoints"]
    assert [(c["step"], c["format"], c["size_bytes"]) for c in listed] == [(2, "files", 2000), (1, "files", 1000)]
    assert {place["tier"] for place in listed[0]["places"]} == {"folder", "store"}
    assert [r["finding"] for r in cli.json("checkpoints", "verify", run, "2")] == ["good", "good"]
    refused = cli("checkpoints", "export", run, "weights.safetensors", expect=None)
    assert "was saved as 'files', and only dcp can be exported" in refused.stderr
