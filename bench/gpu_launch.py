"""On a machine with a GPU: does a warm launch give the script a working device, is the device accounted for, and how
much sooner does the script run than with a cold `python`?

Uses the local engine directly, so that it needs nothing but Python and PyTorch. Alternates the arms; prints JSON last.

    PYTHONPATH=src python bench/gpu_launch.py
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from windlass.core.clock import SystemClock
from windlass.core.resources import NodeShare, Placement
from windlass.engines.contract import Launch, Observation, Phase
from windlass.engines.local import LocalEngine, stop_launchers

REPEATS = 5
SCRIPT = """
import time
import torch
print("first line", time.time(), flush=True)
torch.cuda.set_device(0)
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
torch.cuda.synchronize()
print("device ready", time.time(), torch.cuda.get_device_name(), torch.cuda.is_initialized(), flush=True)
until = time.time() + SECONDS
while time.time() < until:
    b = a @ a
    torch.cuda.synchronize()
print("products are finite:", bool(torch.isfinite(b.float()).all()) if SECONDS else True, flush=True)
"""


def moments(lines: list[str]) -> dict[str, float]:
    return {line.split()[0]: float(line.split()[2]) for line in lines if line.startswith(("first", "device"))}


def run_cold(script: Path) -> dict[str, float]:
    began = time.time()
    output = subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True).stdout
    return {name: at - began for name, at in moments(output.splitlines()).items()}


class Engine:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.engine = LocalEngine(home, home / "blobs", notify=lambda: None, clock=SystemClock())
        self.node = self.engine.inventory()[0]
        self.count = 0

    def run(self, script: Path) -> tuple[dict[str, float], list[str], Observation, float]:
        """(seconds to each moment, output, last observation, highest GPU utilisation seen)."""
        self.count += 1
        share = NodeShare(node=self.node.name, cpus=1, memory_bytes=0, gpu_indices=(0,))
        launch = Launch(
            run_id=f"r-gpu{self.count}",
            attempt_id=f"r-gpu{self.count}.1",
            attempt=1,
            placement=Placement(engine="local", shares=(share,)),
            argv=("python", str(script)),
            workers_per_node=1,
            self_launching=False,
            env={"HOME": os.environ.get("HOME", "/root")},
            workdir=str(script.parent),
            search_path=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        )
        began = time.time()
        self.engine.launch(launch)
        busiest = 0.0
        while True:
            seen = self.engine.poll([launch.attempt_id])[launch.attempt_id]
            for gpu in (seen.usage or {}).get("gpus", []):
                busiest = max(busiest, float(gpu.get("utilization_percent") or 0))
            if seen.phase is Phase.ENDED:
                break
            time.sleep(0.005)
        log = Path(seen.log_dirs[0], "rank-0.log").read_text().splitlines()
        lines = [line.split(" ", 2)[2] for line in log]
        return {name: at - began for name, at in moments(lines).items()}, lines, seen, busiest


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        quick, long = Path(folder, "quick.py"), Path(folder, "long.py")
        quick.write_text(SCRIPT.replace("SECONDS", "0"))
        long.write_text(SCRIPT.replace("SECONDS", "6"))
        home = Path(folder, "home")
        engine = Engine(home)
        try:
            print("node:", engine.node)
            engine.run(quick)  # starts the warm launcher
            warm, cold = [], []
            for _ in range(REPEATS):
                warm.append(engine.run(quick)[0])
                cold.append(run_cold(quick))
            _, lines, seen, busiest = engine.run(long)
            print("\n".join(lines))
            print("exit:", seen.exit)
            print("last sample:", json.dumps(seen.usage))
            print("device in the record:", (seen.environment or {}).get("gpus"))
        finally:
            engine.engine.close()
            stop_launchers(home)
    figures = {}
    for moment in ("first", "device"):
        ours, theirs = (statistics.median(run[moment] for run in arm) for arm in (warm, cold))
        print(f"{moment}: warm {ours:.3f} s, cold python {theirs:.3f} s")
        figures[f"gpu_{moment}_vs_python"] = {"value": round(ours / theirs, 4), "target": 0.5, "better": "lower"}
    figures["gpu_utilization_seen_percent"] = {"value": busiest, "target": 80, "better": "higher"}
    print(json.dumps({"bench": "gpu_launch", "figures": figures}))


if __name__ == "__main__":
    main()
