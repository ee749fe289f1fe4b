"""A spool that is written to without a pause."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from windlass.job.spool import Spool


def test_who_logs_without_a_pause_is_written_down_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "metrics-0.jsonl"
    spool = Spool(str(path))
    stop = threading.Event()

    def log() -> None:
        step = 0
        while not stop.is_set():
            spool.add((0.0, step, None, {"loss": 1.0, "accuracy": 0.5}))
            step += 1
            if step % 50 == 0:
                time.sleep(0)

    logging = threading.Thread(target=log)
    logging.start()
    try:
        deadline = time.monotonic() + 30
        while not (path.exists() and path.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert path.exists()
        assert path.stat().st_size > 0
    finally:
        stop.set()
        logging.join()
        spool.flush()
