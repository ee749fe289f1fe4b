"""The code of a run, packed: a list of files by content, and a stream of the contents that the server lacks."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from windlass.client.ignore import Rules, outer_rules
from windlass.core.errors import InvalidInput, TooLarge
from windlass.core.quantities import format_size, parse_size

DEFAULT_LIMIT_BYTES = 100_000_000
MOST_FILES = 20_000
# A folder that is over the limit is looked at no further than this: enough to name what is large.
_MOST_LOOKED_AT = 200_000
_CHUNK = 1 << 20


class Changed(InvalidInput):
    """Something else lies there than when the folder was looked at: another look helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    path: str  # relative, with slashes
    mode: int = 0o644
    size: int = 0
    sha256: str | None = None
    link: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    root: Path
    entries: tuple[Entry, ...]

    @property
    def size_bytes(self) -> int:
        return sum(entry.size for entry in self.entries)


def limit_bytes() -> int:
    text = os.environ.get("WINDLASS_CODE_LIMIT")
    if not text:
        return DEFAULT_LIMIT_BYTES
    try:
        return parse_size(text)
    except ValueError as error:
        raise InvalidInput(f"WINDLASS_CODE_LIMIT: {error}") from None


def take_snapshot(root: Path, *, limit: int | None = None, home: Path | None = None) -> Snapshot:
    """Files and links under `root` that no ignore file leaves out, in a fixed order. The server's own `home` is never
    code, wherever it lies; nor is what vanishes meanwhile. Raises TooLarge over the limit and InvalidInput for what
    cannot be read."""
    root = root.absolute()
    if not root.is_dir():
        raise InvalidInput(f"the code folder {root} {'is not a folder' if root.exists() else 'does not exist'}")
    found = []
    total = 0
    most = limit_bytes() if limit is None else limit
    for entry in _walk(root, None if home is None else str(home.absolute())):
        found.append(entry)
        total += entry.size
        if len(found) >= _MOST_LOOKED_AT:
            break
    if total > most or len(found) > MOST_FILES:
        raise _too_large(root, found, total, most)
    found.sort(key=lambda entry: entry.path)
    return Snapshot(root=root, entries=tuple(here for entry in found if (here := _still_there(root, entry))))


def take_files(root: Path, paths: Iterable[str]) -> Snapshot:
    """These files of `root`, whatever ignore files say."""
    return Snapshot(root=root, entries=tuple(_hashed(root, Entry(path=path)) for path in paths))


def _walk(root: Path, home: str | None) -> Iterator[Entry]:
    outer, prefix = outer_rules(root)
    folders: list[tuple[str, Rules]] = [("", outer)]
    while folders:
        at, rules = folders.pop()
        items = _scan(root / at, is_root=not at)
        rules = rules.inside(root / at, prefix + at)
        for item in items:
            path = at + item.name
            try:
                path.encode()
            except UnicodeEncodeError:
                raise InvalidInput(f"the name of {root / path!r} is not UTF-8 text; rename or ignore it") from None
            is_dir = item.is_dir(follow_symlinks=False)
            if rules.exclude(prefix + path, is_dir=is_dir) or item.path == home:
                continue
            if is_dir:
                folders.append((path + "/", rules))
            elif entry := _entry(item, path):
                yield entry


def _entry(item: os.DirEntry[str], path: str) -> Entry | None:
    """Of a file or a link. None of anything else, and of what is no longer there."""
    try:
        if item.is_symlink():
            return Entry(path=path, mode=0o777, link=os.readlink(item.path))
        if not item.is_file(follow_symlinks=False):
            return None
        status = item.stat(follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    # Umasks differ between machines; whether it can be executed is what matters.
    return Entry(path=path, mode=0o755 if status.st_mode & stat.S_IXUSR else 0o644, size=status.st_size)


def _scan(folder: Path, *, is_root: bool) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as items:
            return list(items)
    except OSError as error:
        if not is_root and isinstance(error, FileNotFoundError | NotADirectoryError):
            return []  # it was there a moment ago
        raise InvalidInput(
            f"the folder {folder} cannot be read: {error.strerror}", hint="exclude it in .windlassignore"
        ) from error


def _still_there(root: Path, entry: Entry) -> Entry | None:
    try:
        return _hashed(root, entry)
    except Changed:
        return None


def _hashed(root: Path, entry: Entry) -> Entry:
    if entry.link is not None:
        return entry
    digest, size = hashlib.sha256(), 0
    for chunk in _contents(root / entry.path):
        digest.update(chunk)
        size += len(chunk)
    return Entry(path=entry.path, mode=entry.mode, size=size, sha256=digest.hexdigest())


def _contents(path: Path) -> Iterator[bytes]:
    try:
        with open(path, "rb", buffering=0) as file:
            while chunk := file.read(_CHUNK):
                yield chunk
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Changed(f"the file {path} is no longer there", hint="try again once nothing removes it") from error
    except OSError as error:
        raise InvalidInput(
            f"the file {path} cannot be read: {error.strerror}", hint="exclude it in .windlassignore"
        ) from error


def tar_of(snapshot: Snapshot, wanted: Sequence[str]) -> Iterator[bytes]:
    """The contents `wanted` (by sha256), as an uncompressed tar stream with the sha256 as member names. Raises Changed
    where one of them is not there any more."""
    paths = {entry.sha256: entry for entry in snapshot.entries if entry.sha256}
    for sha256 in wanted:
        entry = paths[sha256]
        header = tarfile.TarInfo(sha256)
        header.size = entry.size
        yield header.tobuf(tarfile.USTAR_FORMAT if entry.size < 8 << 30 else tarfile.GNU_FORMAT)
        digest, sent = hashlib.sha256(), 0
        for chunk in _contents(snapshot.root / entry.path):
            digest.update(chunk)
            sent += len(chunk)
            if sent <= entry.size:
                yield chunk
        if sent != entry.size or digest.hexdigest() != sha256:
            raise Changed(
                f"{snapshot.root / entry.path} changed while it was being sent",
                hint="try again once nothing writes to it",
            )
        yield bytes(-sent % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _too_large(root: Path, entries: Sequence[Entry], total: int, most: int) -> TooLarge:
    by_size = total > most
    weights: Counter[str] = Counter()
    for entry in entries:
        top, slash, _ = entry.path.partition("/")
        weights[top + slash] += entry.size if by_size else 1
    largest = [
        (name, f"{format_size(weight)}" if by_size else f"{weight:,} files") for name, weight in weights.most_common(5)
    ]
    if by_size:
        what = f"is {format_size(total)}, over the limit of {format_size(most)}"
    else:
        what = f"has {len(entries):,} files, over the limit of {MOST_FILES:,}"
    listed = ", ".join(f"{name} ({weight})" for name, weight in largest)
    hint = f"write what the run does not need into {root / '.windlassignore'}, e.g. `/{largest[0][0]}`"
    if by_size:
        hint += "; or raise WINDLASS_CODE_LIMIT, e.g. to 1GB; or run in place with --no-snapshot"
    return TooLarge(f"the code folder {root} {what}. Largest: {listed}", hint=hint)
