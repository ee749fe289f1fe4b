"""Files at rest, compressed and encrypted: what comes back, and what is noticed."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from windlass.blobs import encoding as module
from windlass.blobs.encoding import KEY_VARIABLE, Encoding, choose_encoding, encode, is_plain, key_id, read_plain
from windlass.core.errors import InvalidInput

KEY = base64.b64encode(bytes(range(32))).decode()
OTHER = "ab" * 32
CONTENT = b"weights " * 5_000 + os.urandom(1_000)
WANTED = [{"compress": "zlib"}, {"compress": "zstd"}, {"encrypt": True}, {"compress": "zstd", "encrypt": True}]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 10_000)


def put(folder: Path, content: bytes, wanted: dict[str, object], name: str = "file") -> Path:
    path = folder / f"{name}.enc"
    path.write_bytes(encode(content, choose_encoding(wanted, {KEY_VARIABLE: KEY}), name))
    return path


@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("content", [CONTENT, b"", b"x", b"y" * 20_000])
def test_what_is_encoded_comes_back(wanted: dict[str, object], content: bytes, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    pytest.importorskip("zstandard")
    path = put(tmp_path, content, wanted)
    assert not is_plain(tmp_path, "file")
    assert read_plain(tmp_path, "file", {KEY_VARIABLE: KEY}) == content
    if content == CONTENT:
        assert ("encrypt" in wanted) == (b"weights weights" not in path.read_bytes()) or "compress" in wanted
        if "compress" in wanted:
            assert path.stat().st_size < len(content) / 2


def test_a_plain_file_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    assert is_plain(tmp_path, "file")
    assert read_plain(tmp_path, "file", {}) == CONTENT


@pytest.mark.parametrize("wanted", [{"encrypt": True}, {"compress": "zlib", "encrypt": True}])
def test_without_the_right_key_it_stays_closed(wanted: dict[str, object], tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    put(tmp_path, CONTENT, wanted)
    with pytest.raises(InvalidInput, match=f"{KEY_VARIABLE} is not set"):
        read_plain(tmp_path, "file", {})
    with pytest.raises(InvalidInput, match=f"another key, {key_id(base64.b64decode(KEY))}"):
        read_plain(tmp_path, "file", {KEY_VARIABLE: OTHER})
    with pytest.raises(InvalidInput, match="is not 32 bytes"):
        read_plain(tmp_path, "file", {KEY_VARIABLE: "short"})


def test_who_reads_needs_the_key_that_there_is(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    put(tmp_path, CONTENT, {"encrypt": True})
    for environ in ({}, {KEY_VARIABLE: "short"}, {KEY_VARIABLE: bytes(32).hex()}):
        with pytest.raises(InvalidInput) as refused:
            read_plain(tmp_path, "file", environ)
        assert refused.value.hint == f"set {KEY_VARIABLE} to the key that it was saved with, a new one opens nothing"
    with pytest.raises(InvalidInput) as refused:
        choose_encoding({"encrypt": True}, {})
    assert "for a new training make one: openssl rand -base64 32" in str(refused.value.hint)


def test_no_byte_of_an_encrypted_file_can_be_changed(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    path = put(tmp_path, b"z" * 25_000, {"encrypt": True})
    whole = path.read_bytes()
    for at in [*range(300), *range(300, len(whole), 997), len(whole) - 1]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(InvalidInput):
            read_plain(tmp_path, "file", {KEY_VARIABLE: KEY})
    path.write_bytes(whole[:-5_016])
    with pytest.raises(InvalidInput):
        read_plain(tmp_path, "file", {KEY_VARIABLE: KEY})
    path.write_bytes(whole)
    path.rename(tmp_path / "other.enc")
    with pytest.raises(InvalidInput, match="it is file"):
        read_plain(tmp_path, "other", {KEY_VARIABLE: KEY})


def test_two_files_of_the_same_content_are_not_alike(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    wanted = choose_encoding({"encrypt": True}, {KEY_VARIABLE: KEY})
    assert encode(CONTENT, wanted, "file")[-1_000:] != encode(CONTENT, wanted, "file")[-1_000:]


def test_what_cannot_be_done_is_said_before_anything_is_saved() -> None:
    with pytest.raises(InvalidInput, match="unknown compression 'rar'; known: zstd, zlib, none"):
        choose_encoding({"compress": "rar"}, {})
    with pytest.raises(InvalidInput, match="is not set"):
        choose_encoding({"encrypt": True}, {})
    assert choose_encoding({"compress": "none", "encrypt": False}, {}) == Encoding()
    assert Encoding().name == ""
    assert Encoding(compress="zstd", key=bytes(32)).name == "zstd+aes"
