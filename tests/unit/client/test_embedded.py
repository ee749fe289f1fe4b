"""Starting the server of a home folder: what is said of one that does not come up."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.client.embedded import ensure_server
from windlass.core.errors import ServerUnreachable


def test_what_earlier_servers_said_is_not_the_reason_of_this_failure(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text("the disk was full\n" * 3)
    with pytest.raises(ServerUnreachable, match="ended at once with exit code 2") as refused:
        ensure_server(tmp_path, options=("--no-such-option",))
    assert "no-such-option" in str(refused.value)
    assert "the disk was full" not in str(refused.value)
