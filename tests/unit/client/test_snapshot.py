"""Packing a code folder: what is in, what is out, the order, the limits and the stream."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from windlass.client import Client
from windlass.client import snapshot as snapshots
from windlass.client.snapshot import take_snapshot, tar_of
from windlass.core.errors import InvalidInput, TooLarge


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def paths(root: Path) -> list[str]:
    return [entry.path for entry in take_snapshot(root).entries]


def test_files_come_in_a_fixed_order_with_their_contents_hash(tmp_path: Path) -> None:
    write(tmp_path, {"b.py": "b", "a/z.py": "z", "a/y.py": "y", "Z.txt": ""})
    (tmp_path / "run.sh").write_text("#!/bin/sh")
    (tmp_path / "run.sh").chmod(0o700)
    taken = take_snapshot(tmp_path)
    assert [entry.path for entry in taken.entries] == ["Z.txt", "a/y.py", "a/z.py", "b.py", "run.sh"]
    modes = {entry.path: entry.mode for entry in taken.entries}
    assert (modes["b.py"], modes["run.sh"]) == (0o644, 0o755)
    assert taken.entries[3].sha256 == hashlib.sha256(b"b").hexdigest()
    assert take_snapshot(tmp_path) == taken


def test_links_are_kept_as_links_and_not_followed(tmp_path: Path) -> None:
    write(tmp_path, {"data/big.bin": "x"})
    (tmp_path / "link").symlink_to("data")
    (tmp_path / "gone").symlink_to("/nowhere/at/all")
    found = {entry.path: entry.link for entry in take_snapshot(tmp_path).entries}
    assert found == {"data/big.bin": None, "link": "data", "gone": "/nowhere/at/all"}


def test_what_is_never_code_stays_out(tmp_path: Path) -> None:
    out = (".git/config", "a/__pycache__/x.pyc", ".venv/bin/python", "web/node_modules/x.js", ".windlass/db")
    write(tmp_path, dict.fromkeys((*out, "a/x.py"), "x"))
    assert paths(tmp_path) == ["a/x.py"]


def test_the_servers_home_stays_out(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": "", "state/windlass.db": "", "other/state/x.py": ""})
    taken = take_snapshot(tmp_path, home=tmp_path / "state")
    assert [entry.path for entry in taken.entries] == ["other/state/x.py", "train.py"]


def test_special_files_stay_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # reading it would hang
    write(tmp_path, {"a.py": ""})
    assert paths(tmp_path) == ["a.py"]


def test_ignore_files_hold_for_their_folder_and_deeper_ones_win(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            ".gitignore": "*.log\n/data/\nsub/only.txt\n",
            "a.log": "",
            "data/x": "",
            "deep/data/kept": "",
            "sub/.gitignore": "!keep.log\n",
            "sub/keep.log": "",
            "sub/other.log": "",
            "sub/only.txt": "",
        },
    )
    assert paths(tmp_path) == [".gitignore", "deep/data/kept", "sub/.gitignore", "sub/keep.log"]


def test_windlassignore_wins_over_gitignore(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "*.bin\n", ".windlassignore": "!needed.bin\nnotes/\n"})
    write(tmp_path, {"needed.bin": "", "other.bin": "", "notes/n.md": ""})
    assert paths(tmp_path) == [".gitignore", ".windlassignore", "needed.bin"]


def test_rules_of_the_repository_above_the_folder_hold_too(tmp_path: Path) -> None:
    write(tmp_path, {".git/HEAD": "", ".gitignore": "*.ckpt\nproject/out/\n"})
    write(tmp_path / "project", {"a.py": "", "m.ckpt": "", "out/x": "", "src/.gitignore": "tmp\n", "src/tmp": ""})
    assert paths(tmp_path / "project") == ["a.py", "src/.gitignore"]


def test_rules_above_a_folder_that_is_no_repository_do_not(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": "*.py\n", "project/a.py": ""})
    assert paths(tmp_path / "project") == ["a.py"]


def test_too_large_names_the_largest_and_how_to_leave_them_out(tmp_path: Path) -> None:
    write(tmp_path, {"data/a": "x" * 3000, "data/b": "x" * 3000, "model.bin": "x" * 2000, "train.py": "x"})
    with pytest.raises(TooLarge) as caught:
        take_snapshot(tmp_path, limit=5000)
    assert "8.0 KB, over the limit of 5.0 KB" in caught.value.message
    assert "Largest: data/ (6.0 KB), model.bin (2.0 KB), train.py (1 B)" in caught.value.message
    assert caught.value.hint is not None
    assert "`/data/`" in caught.value.hint
    (tmp_path / ".windlassignore").write_text("/data/\n")
    assert "model.bin" in [entry.path for entry in take_snapshot(tmp_path, limit=5000).entries]


def test_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MOST_FILES", 3)
    write(tmp_path, {f"frames/{number}.txt": "" for number in range(4)})
    with pytest.raises(TooLarge, match=r"4 files, over the limit of 3. Largest: frames/ \(4 files\)"):
        take_snapshot(tmp_path)


def test_the_limit_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"a": "x" * 2000})
    monkeypatch.setenv("WINDLASS_CODE_LIMIT", "1KB")
    with pytest.raises(TooLarge):
        take_snapshot(tmp_path)
    monkeypatch.setenv("WINDLASS_CODE_LIMIT", "lots")
    with pytest.raises(InvalidInput, match="WINDLASS_CODE_LIMIT: 'lots' is not a size"):
        take_snapshot(tmp_path)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="does not exist"):
        take_snapshot(tmp_path / "no")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="is not a folder"):
        take_snapshot(tmp_path / "file")


@pytest.mark.parametrize("unreadable", ["folder", "folder/file"])
def test_what_cannot_be_read_is_named(tmp_path: Path, unreadable: str) -> None:
    write(tmp_path, {"folder/file": "x"})
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    (tmp_path / unreadable).chmod(0)
    was_root = os.geteuid() == 0
    if was_root:
        os.seteuid(65_534)  # the superuser can read everything
    try:
        with pytest.raises(InvalidInput, match=f"{unreadable} cannot be read: Permission denied"):
            take_snapshot(tmp_path)
    finally:
        if was_root:
            os.seteuid(0)
        (tmp_path / unreadable).chmod(0o755)


def vanishing_after(name: str, gone: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """These are no longer there once `name` of the module has returned."""
    real = getattr(snapshots, name)

    def called(*given: Any, **named: Any) -> Any:
        found = real(*given, **named)
        for path in gone:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(snapshots, name, called)


@pytest.mark.parametrize(
    ("moment", "gone", "left"),
    [("_scan", ["b/goes", "link", "goes"], {"a/stays"}), ("_entry", ["goes"], {"a/stays", "b/goes/f", "link"})],
)
def test_what_vanishes_meanwhile_is_left_out(
    moment: str, gone: list[str], left: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"a/stays": "x", "b/goes/f": "y", "goes": "z"})
    (tmp_path / "link").symlink_to("nowhere")
    vanishing_after(moment, [tmp_path / name for name in gone], monkeypatch)
    assert set(paths(tmp_path)) == left


def test_a_folder_that_changes_while_it_is_sent_is_looked_at_again(tmp_path: Path) -> None:
    write(tmp_path / "code", {"a": "alpha", "b": "beta"})
    client = Client(url="http://127.0.0.1:1", home=tmp_path / "home")
    listed: list[list[str]] = []

    class Server:
        def post(self, _path: str, body: Any, **_: object) -> dict[str, Any]:
            listed.append([file["path"] for file in body["files"]])
            missing = [file["sha256"] for file in body["files"]] if len(listed) < 3 else []
            return {"missing": missing, "digest": "whole"}

        def send(self, _path: str, chunks: Any) -> None:
            (tmp_path / "code" / "b").unlink(missing_ok=True)
            b"".join(chunks())

    client.transport = Server()  # type: ignore[assignment]
    assert client._send_code(tmp_path / "code") == "whole"
    assert listed == [["a", "b"], ["a"], ["a"]]


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/\xff.py", "w"):
        pass
    with pytest.raises(InvalidInput, match="not UTF-8"):
        take_snapshot(tmp_path)


def test_the_stream_is_a_tar_of_what_is_wanted(tmp_path: Path) -> None:
    write(tmp_path, {"a": "alpha", "b": "x" * 3_000_000, "empty": "", "same": "alpha"})
    taken = take_snapshot(tmp_path)
    wanted = sorted({entry.sha256 for entry in taken.entries if entry.sha256 and entry.path != "empty"})
    with tarfile.open(fileobj=io.BytesIO(b"".join(tar_of(taken, wanted)))) as tar:
        members = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    assert sorted(members) == wanted
    assert all(hashlib.sha256(content).hexdigest() == name for name, content in members.items())


@pytest.mark.parametrize("new", ["alphA", "longer than before", "s"])
def test_a_file_that_changes_meanwhile_is_not_sent_as_the_old_one(tmp_path: Path, new: str) -> None:
    write(tmp_path, {"a": "alpha"})
    taken = take_snapshot(tmp_path)
    (tmp_path / "a").write_text(new)
    with pytest.raises(InvalidInput, match="changed while it was being sent"):
        list(tar_of(taken, [taken.entries[0].sha256 or ""]))
