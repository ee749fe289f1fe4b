"""One file up and down through the unmodified client of MLflow, against any server that it can talk to.

For bench/tracking.py, which alternates servers; by itself: python -m bench.artifacts_arm URL --mlflow-python PYTHON
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = """
import hashlib, json, os, shutil, sys, time
import mlflow
from mlflow import MlflowClient
url, source, folder, rounds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
mlflow.set_tracking_uri(url)
client = MlflowClient(url)
run = client.create_run("0").info.run_id
client.log_artifact(run, __file__)  # connections and imports are nobody's affair
client.download_artifacts(run, os.path.basename(__file__), folder)
up, down = [], []
for number in range(rounds):
    began = time.perf_counter()
    client.log_artifact(run, source, str(number))
    up.append(time.perf_counter() - began)
    began = time.perf_counter()
    fetched = client.download_artifacts(run, f"{number}/{os.path.basename(source)}", folder)
    down.append(time.perf_counter() - began)
    assert os.path.getsize(fetched) == os.path.getsize(source)
    if number == 0:
        hashes = [hashlib.file_digest(open(path, "rb"), "sha256").hexdigest() for path in (source, fetched)]
        assert hashes[0] == hashes[1]
    os.remove(fetched)
client.set_terminated(run)
print(json.dumps({"up_s": up, "down_s": down}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    size_bytes: int
    up_s: list[float]
    down_s: list[float]

    def mb_per_s(self, seconds: float) -> float:
        return self.size_bytes / 1e6 / seconds


def measure_transfer(
    url: str, python: Path, folder: Path, *, size_mb: int = 200, rounds: int = 3, token: str | None = None
) -> Transfer:
    """`python` is that of an environment with mlflow; `folder` takes the file and what is fetched."""
    folder.mkdir(parents=True, exist_ok=True)
    source, program = folder / f"{size_mb}mb.bin", folder / "transfer.py"
    program.write_text(_PROGRAM)
    if not source.exists():
        with source.open("wb") as file:
            for _ in range(size_mb):
                file.write(os.urandom(1_000_000))
    (folder / "fetched").mkdir(exist_ok=True)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "PYTHON"))}
    environ |= {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "GIT_PYTHON_REFRESH": "quiet",
    }
    if token:
        environ["MLFLOW_TRACKING_TOKEN"] = token
    words = [str(python), str(program), url, str(source), str(folder / "fetched"), str(rounds)]
    done = subprocess.run(words, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"MLflow's client failed against {url}:\n{done.stderr[-2_000:]}")
    return Transfer(size_bytes=source.stat().st_size, **json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--mlflow-python", type=Path, default=Path(sys.executable))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--size-mb", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    found = measure_transfer(given.url, given.mlflow_python, given.folder, size_mb=given.size_mb, rounds=given.rounds)
    for name, times in (("up", found.up_s), ("down", found.down_s)):
        print(f"{name:5}", "  ".join(f"{found.mb_per_s(seconds):.0f} MB/s" for seconds in times))
    return 0


if __name__ == "__main__":
    sys.exit(main())
