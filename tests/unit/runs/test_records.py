from __future__ import annotations

import json
import signal

from windlass.core.exits import Exit, ExitReason
from windlass.runs.records import exit_from_json, exit_to_json

OLD_KEYS = {"reason", "exit_code", "signal", "rank", "message", "fingerprint"}


def test_exits_come_back_as_they_were_written() -> None:
    for reason in ExitReason:
        full = Exit(reason=reason, rank=1, traceback="Traceback", trouble="network", node_rank=0, node="n")
        for exit in (full, Exit(reason=reason)):
            assert exit_from_json(json.loads(json.dumps(exit_to_json(exit)))) == exit


def test_a_server_of_an_older_version_understands_them() -> None:
    """It knows these keys and no hangs; what it does not know is left out by it, or was never written."""
    plain = exit_to_json(Exit(reason=ExitReason.LOST))
    assert plain is not None
    assert plain.keys() == OLD_KEYS
    hang = exit_to_json(Exit(reason=ExitReason.HANG, node="n"))
    assert hang is not None
    assert hang["reason"] == "signal"
    assert hang["signal"] not in (signal.SIGSEGV, signal.SIGABRT)  # so that it is tried again there too
