"""Removing a checkpoint's folder: exactly what its manifest names, so that a job which told of a wrong folder costs
nobody a file. Broken off anywhere and begun again it goes on; from its first step on no job takes the folder for a
checkpoint.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from windlass.core.integrity import path_of
from windlass.core.manifest import MANIFEST, InvalidManifest, parse_manifest


def remove_folder(folder: Path, *, run_id: str, step: int) -> str | None:
    """None once it is gone, or why it stays. Raises OSError."""
    # A name that jobs know for something on its way out, so that the run itself may finish what is left.
    hidden = folder.with_name(f".trash-{folder.name}-removed")
    _empty(hidden)  # what an earlier removal left
    try:
        manifest = parse_manifest((folder / MANIFEST).read_bytes(), name=folder.name)
    except FileNotFoundError:
        return f"{folder} has no {MANIFEST}" if folder.is_dir() else None
    except InvalidManifest as error:
        return error.message
    if (manifest.run_id, manifest.step) != (run_id, step):
        return f"{folder} now holds step {manifest.step} of {manifest.run_id or 'no run'}"
    os.rename(folder, hidden)
    _empty(hidden)
    return None


def _empty(hidden: Path) -> None:
    """The manifest goes last: it says what is still to go. Files that it does not name are not ours, and stay."""
    try:
        manifest = parse_manifest((hidden / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError, InvalidManifest):
        manifest = None
    inner: set[Path] = set()
    for part in manifest.files if manifest else ():
        with contextlib.suppress(FileNotFoundError, InvalidManifest):
            path = path_of(hidden, part)
            inner |= {hidden / above for above in path.parent.relative_to(hidden).parents} | {path.parent}
            path.unlink()
    for folder in sorted(inner - {hidden}, key=lambda path: len(path.parts), reverse=True):
        _remove_if_empty(folder)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        (hidden / MANIFEST).unlink()
    _remove_if_empty(hidden)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not there, or not empty
        folder.rmdir()
