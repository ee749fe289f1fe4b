"""The file that metrics go to, and a disk that takes its time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from windlass.job.spool import Spool


def test_the_last_values_are_there_while_the_disk_takes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "metrics"
    os.mkfifo(path)  # opening it to write waits for a reader, as a file may wait for its server
    spool = Spool(str(path))
    spool._waiting.append((1.0, 1, None, {"loss": 2.0}))
    writer = threading.Thread(target=spool.flush)
    writer.start()
    while not spool._writing.locked() or spool._waiting or spool._unwritten:
        pass
    spool._waiting.append((2.0, 2, None, {"acc": 0.5}))
    asked: list[dict[str, float]] = []
    reader = threading.Thread(target=lambda: asked.append(spool.last()), daemon=True)
    reader.start()
    reader.join(20)
    said = list(asked)
    with path.open("rb") as file:  # only now does the write go on
        writer.join()
        assert file.read().count(b"\n") == 1
    assert said == [{"loss": 2.0, "acc": 0.5}]


def test_what_the_disk_refused_comes_first_the_next_time(tmp_path: Path, capfd: object) -> None:
    spool = Spool(str(tmp_path / "gone" / "metrics"))
    spool._waiting.append((1.0, 1, None, {"loss": 2.0}))
    spool.flush()
    (tmp_path / "gone").mkdir()
    spool._waiting.append((2.0, 2, None, {"loss": 1.0}))
    spool.flush()
    steps = [line.split('"s":')[1][0] for line in (tmp_path / "gone" / "metrics").read_text().splitlines()]
    assert steps == ["1", "2"]
