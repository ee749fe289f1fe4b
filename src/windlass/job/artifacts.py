"""`job.artifact`: have a file or folder kept with the run."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path, PurePosixPath

from windlass.agent.layout import DRAFT
from windlass.job.session import session


def artifact(path: str | os.PathLike[str], name: str | None = None) -> Path:
    """Put a file or folder among the run's results, as `name`, by default its own. What is there is replaced, whole or
    not at all. Results become artifacts of the run when it is over; outside a run they stay in `output`. Returns the
    place. Raises FileNotFoundError, and ValueError for a name that leads elsewhere."""
    source = Path(path).absolute()
    if not source.exists():
        raise FileNotFoundError(f"there is no file or folder '{source}' to keep")
    wanted = PurePosixPath(name or source.name)
    if wanted.is_absolute() or ".." in wanted.parts or not wanted.parts:
        raise ValueError(f"{name!r} is no name of an artifact; write for example 'plots/loss.png'")
    folder = session().output_dir
    place = folder.joinpath(*wanted.parts)
    if source.resolve() == place.resolve():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=DRAFT, dir=folder))
    try:
        copy = draft / "copy"
        if source.is_dir():
            shutil.copytree(source, copy, symlinks=True)
            if place.is_dir():
                os.rename(place, draft / "before")
        else:
            shutil.copy2(source, copy)
        os.replace(copy, place)
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(draft)
    return place
