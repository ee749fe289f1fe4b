"""Run pytest with the given arguments. The few tests that failed beside others are run once more, alone.

Clusters, clocks and two cores shared by several test processes are not always to blame on the code: what fails alone
fails. What passes alone is named at the end, since a test that minds its neighbours is a defect too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

_BYTECODE = Path(__file__).parents[1] / ".make" / "bytecode"
_MOST = 3  # more than this is no accident
_TESTS_FAILED = 1  # pytest's exit code


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="windlass-tests-") as folder:
        code = _pytest(*arguments, cache=folder)
        failed = _failed(Path(folder))
        if code != _TESTS_FAILED or not 0 < len(failed) <= _MOST:
            return code
        _say("trying alone what failed beside others:", failed)
        code = _pytest(*failed, cache=folder)
        if code == 0:
            _say("PASSED ALONE, FAILED BESIDE OTHERS (see above why):", failed)
        return code


def _pytest(*arguments: str, cache: str) -> int:
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments]
    return subprocess.run(command, env=_environment(), check=False).returncode


def _environment() -> dict[str, str]:
    """Tests start many processes. Who wants no bytecode beside the sources has it elsewhere: without any, each of them
    would compile all that it loads."""
    found = dict(os.environ)
    if found.pop("PYTHONDONTWRITEBYTECODE", ""):
        found.setdefault("PYTHONPYCACHEPREFIX", str(_BYTECODE))
    return found


def _failed(cache: Path) -> list[str]:
    try:
        found = json.loads((cache / "v" / "cache" / "lastfailed").read_text())
    except FileNotFoundError:
        return []  # it did not come as far as that
    return sorted(found)


def _say(what: str, tests: list[str]) -> None:
    print(f"\n{what}", *tests, "", sep="\n  ", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
