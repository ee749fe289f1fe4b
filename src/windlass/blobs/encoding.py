"""Files at rest, compressed and encrypted, chunk by chunk: `Encoder`, and `read_plain`, which reads either kind.

    WINDENC1  length of the header  header (JSON)  then of each chunk: its length, its bytes

A file that is encoded has `.enc` after its name. Encryption is AES-256 in GCM with a key per file, made from the given
one and the file's salt; a chunk's number is its nonce, and the header is part of what is authenticated, so no chunk
can be changed, moved, left out or put into another file.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import os
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass.core.errors import InvalidInput

SUFFIX = ".enc"
KEY_VARIABLE = "WINDLASS_CHECKPOINT_KEY"
CHUNK_BYTES = 8 << 20
COMPRESSIONS = ("zstd", "zlib")
_MAGIC = b"WINDENC1"
_LENGTH = struct.Struct("<I")
_KEY_BYTES = 32
_LEVEL = 1  # weights hardly shrink at any; the saver must keep up with the disk

Transform = Callable[[bytes | memoryview], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    compress: str | None = None
    key: bytes | None = None

    @property
    def name(self) -> str:
        """As a manifest says it: `zstd+aes`; empty for plain files."""
        return "+".join(word for word in (self.compress, "aes" if self.key else None) if word)


def choose_encoding(wanted: Mapping[str, Any], environ: Mapping[str, str]) -> Encoding:
    """From a spec's `checkpoint`. Raises InvalidInput, also for a package that is missing: better now than at the first
    save."""
    compress = wanted.get("compress")
    if compress == "none":
        compress = None
    if compress is not None:
        _compressor(compress)
    key = read_key(environ) if wanted.get("encrypt") else None
    if key is not None:
        _cipher(key)
    return Encoding(compress=compress, key=key)


_NEW_KEY = "for a new training make one: openssl rand -base64 32; to go on, set the one that it saved with"


def read_key(environ: Mapping[str, str], hint: str = _NEW_KEY) -> bytes:
    text = environ.get(KEY_VARIABLE, "").strip()
    key = b""
    with contextlib.suppress(ValueError, binascii.Error):
        key = bytes.fromhex(text) if len(text) == 2 * _KEY_BYTES else base64.b64decode(text, validate=True)
    if len(key) != _KEY_BYTES:
        what = "is not set" if not text else f"is not {_KEY_BYTES} bytes in base64 or hexadecimal digits"
        raise InvalidInput(f"checkpoints are encrypted, and {KEY_VARIABLE} {what}", hint=hint)
    return key


class Encoder:
    """One file on its way to the disk: `begin`, then each chunk of CHUNK_BYTES in order, the last may be shorter."""

    def __init__(self, encoding: Encoding, name: str, size_bytes: int) -> None:
        salt = os.urandom(16)
        about = {
            "name": name,
            "size": size_bytes,
            "chunk": CHUNK_BYTES,
            "compress": encoding.compress,
            "salt": salt.hex(),
            "key": key_id(encoding.key) if encoding.key else None,
        }
        self._header = json.dumps(about, sort_keys=True).encode()
        self._compress = _compressor(encoding.compress) if encoding.compress else bytes
        self._cipher = _cipher(_file_key(encoding.key, salt)) if encoding.key else None
        self._number = 0

    def begin(self) -> bytes:
        return _MAGIC + _LENGTH.pack(len(self._header)) + self._header

    def chunk(self, data: bytes | memoryview) -> bytes:
        content = self._compress(data)
        if self._cipher is not None:
            content = self._cipher.encrypt(_nonce(self._number), content, self._header)
        self._number += 1
        return _LENGTH.pack(len(content)) + content


def encode(content: bytes, encoding: Encoding, name: str) -> bytes:
    """A small file, whole."""
    encoder = Encoder(encoding, name, len(content))
    parts = [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]
    return b"".join([encoder.begin(), *map(encoder.chunk, parts)])


def is_plain(folder: Path, name: str) -> bool:
    return (folder / name).exists() or not (folder / f"{name}{SUFFIX}").exists()


def read_plain(folder: Path, name: str, environ: Mapping[str, str]) -> bytearray:
    """What was in the file before it was encoded, if it was. Raises InvalidInput without its key, or for damage."""
    if is_plain(folder, name):
        return bytearray((folder / name).read_bytes())
    path = folder / f"{name}{SUFFIX}"
    try:
        return _decode(path, name, environ)
    except (struct.error, ValueError, KeyError, zlib.error) as error:
        raise InvalidInput(f"{path} cannot be decoded: {error!r}") from None


def _decode(path: Path, name: str, environ: Mapping[str, str]) -> bytearray:
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("it does not begin as an encoded file does")
        header = file.read(_LENGTH.unpack(file.read(_LENGTH.size))[0])
        about = json.loads(header)
        if about["name"] != name:
            raise ValueError(f"it is {about['name']}")
        cipher = None
        if about["key"] is not None:
            hint = f"set {KEY_VARIABLE} to the key that it was saved with, a new one opens nothing"
            key = read_key(environ, hint)
            if key_id(key) != about["key"]:
                other = f"{path} was encrypted with another key, {about['key']}, than {KEY_VARIABLE}"
                raise InvalidInput(other, hint=hint)
            cipher = _cipher(_file_key(key, bytes.fromhex(about["salt"])))
        expand = _decompressor(about["compress"], about["chunk"])
        plain, at = bytearray(about["size"]), 0
        for number in range(-(-about["size"] // about["chunk"])):
            content = file.read(_LENGTH.unpack(file.read(_LENGTH.size))[0])
            if cipher is not None:
                content = _opened(cipher, number, content, header, path)
            data = expand(content)
            plain[at : at + len(data)] = data
            at += len(data)
        if at != about["size"]:
            raise ValueError(f"it has {at} bytes, not {about['size']}")
        return plain


def _opened(cipher: Any, number: int, content: bytes, header: bytes, path: Path) -> bytes:
    from cryptography.exceptions import InvalidTag

    try:
        opened: bytes = cipher.decrypt(_nonce(number), content, header)
        return opened
    except InvalidTag:
        raise InvalidInput(f"{path}: chunk {number} is not what was encrypted") from None


def key_id(key: bytes) -> str:
    """Tells keys apart, and nothing of them."""
    return hashlib.sha256(b"windlass key id\n" + key).hexdigest()[:12]


def _file_key(key: bytes, salt: bytes) -> bytes:
    return hmac.new(key, b"windlass file key\n" + salt, hashlib.sha256).digest()


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "little")


def _cipher(key: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        hint = "pip install 'windlass[secrets]' where jobs run"
        raise InvalidInput("encrypted checkpoints need the `cryptography` package", hint=hint) from error
    return AESGCM(key)


def _compressor(name: str) -> Transform:
    if name == "zlib":
        return lambda data: zlib.compress(data, _LEVEL)
    if name == "zstd":
        zstd = _zstd()
        return lambda data: zstd.ZstdCompressor(level=_LEVEL).compress(data)
    raise InvalidInput(f"unknown compression '{name}'; known: {', '.join(COMPRESSIONS)}, none")


def _decompressor(name: str | None, most: int) -> Transform:
    if name is None:
        return bytes
    if name == "zlib":
        return zlib.decompress
    zstd = _zstd()
    return lambda data: zstd.ZstdDecompressor().decompress(data, max_output_size=most)


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError as error:
        hint = "pip install 'windlass[compress]' where jobs run, or `compress: zlib`"
        raise InvalidInput("zstd needs the `zstandard` package", hint=hint) from error
    return zstandard
