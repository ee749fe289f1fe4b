from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any, cast

import pytest

from windlass.agent.command import CannotStart
from windlass.agent.courier import Courier
from windlass.agent.fetch import blob_path, fetch_code


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


SCRIPT = b"print('training')\n"
ENTRY: dict[str, Any] = {"path": "train.py", "mode": 0o644, "size": len(SCRIPT), "sha256": digest_of(SCRIPT)}
MANIFEST = json.dumps({"version": 1, "files": [ENTRY]}).encode()


class Server:
    """Gives the archive that it has, as often as it is asked."""

    def __init__(self, *contents: bytes) -> None:
        self.contents = contents
        self.asked = 0

    def open(self, _name: str) -> io.BytesIO:
        self.asked += 1
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w|") as archive:
            for content in self.contents:
                member = tarfile.TarInfo(digest_of(content))
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        stream.seek(0)
        return stream

    def close(self) -> None:
        """There is no connection."""

    def fetch(self, blobs: Path) -> None:
        fetch_code(cast(Courier, self), digest_of(MANIFEST), str(blobs))


def test_what_is_here_whole_is_not_fetched_again(tmp_path: Path) -> None:
    server = Server(MANIFEST, SCRIPT)
    server.fetch(tmp_path)
    server.fetch(tmp_path)
    assert server.asked == 1


@pytest.mark.parametrize("cut", [MANIFEST, SCRIPT], ids=["manifest", "file"])
@pytest.mark.parametrize("left", [0, 7])
def test_what_lost_power_has_cut_short_is_fetched_again(tmp_path: Path, cut: bytes, left: int) -> None:
    server = Server(MANIFEST, SCRIPT)
    server.fetch(tmp_path)
    path = Path(blob_path(str(tmp_path), digest_of(cut)))
    path.write_bytes(cut[:left])
    server.fetch(tmp_path)
    assert server.asked == 2
    assert path.read_bytes() == cut


def test_a_file_that_the_server_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match=r"it lacks the content of 'train\.py'"):
        Server(MANIFEST).fetch(tmp_path)
