"""Having the agent in the shared folder: nodes need an interpreter, not an installation of Windlass."""

from __future__ import annotations

import compileall
import hashlib
import os
import shutil
from pathlib import Path

from windlass.agent import kernel

_SOURCE = Path(kernel.__file__).parent


def deliver_agent(shared_dir: Path) -> Path:
    """The agent's __main__.py in `shared_dir`. A folder per version: attempts go on with the one they started with."""
    files = sorted(_SOURCE.glob("*.py"))
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    folder = shared_dir / "agent" / digest.hexdigest()[:16]
    if not folder.exists():
        draft = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for path in files:
            shutil.copyfile(path, draft / path.name)
        # For nodes with an interpreter like ours: the first jobs need not wait for it, nor all do the same.
        compileall.compile_dir(draft, ddir=str(folder), quiet=2, workers=1)
        try:
            draft.rename(folder)
        except OSError:  # another server was quicker
            shutil.rmtree(draft)
            if not folder.exists():
                raise
    return folder / "__main__.py"
