"""Which files of a folder count as code: nested .gitignore and .windlassignore files, as git reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from windlass.core.errors import InvalidInput

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

# The later file wins, so what git leaves out can be brought in again for a run, and the other way round.
IGNORE_FILES = (".gitignore", ".windlassignore")
ALWAYS_OUT = frozenset((".git", "__pycache__", ".venv", "node_modules", ".windlass"))


@dataclass(frozen=True, slots=True)
class Rules:
    """The ignore files that apply inside one folder, outermost first. Paths are relative to the outermost folder."""

    levels: tuple[tuple[str, GitIgnoreSpec], ...] = ()

    def inside(self, folder: Path, at: str) -> Rules:
        """The rules with those of `folder`'s own ignore files added; `at` is its path ("" or ending in a slash)."""
        added = []
        for name in IGNORE_FILES:
            try:
                text = (folder / name).read_text(errors="replace")
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                continue
            except OSError as error:
                raise InvalidInput(f"{folder / name} cannot be read: {error.strerror}") from error
            from pathspec import GitIgnoreSpec  # many folders have no such file

            added.append((at, GitIgnoreSpec.from_lines(text.splitlines())))
        return Rules(self.levels + tuple(added)) if added else self

    def exclude(self, path: str, *, is_dir: bool) -> bool:
        name = PurePosixPath(path).name
        if name in ALWAYS_OUT:
            return True
        for base, spec in reversed(self.levels):
            inner = path.removeprefix(base)
            verdict = spec.check_file(inner + "/" if is_dir else inner).include
            if verdict is not None:
                return verdict
        return False


def outer_rules(root: Path) -> tuple[Rules, str]:
    """The rules from the folders above `root` in its git repository, and `root`'s path inside it."""
    top = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), root)
    rules, at = Rules(), ""
    for folder, part in zip((top, *_below(top, root)), root.relative_to(top).parts, strict=False):
        rules = rules.inside(folder, at)
        at += part + "/"
    return rules, at


def _below(top: Path, root: Path) -> list[Path]:
    folders, folder = [], top
    for part in root.relative_to(top).parts:
        folder = folder / part
        folders.append(folder)
    return folders
