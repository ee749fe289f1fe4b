"""Secrets at rest: sealed with a key that is in the home folder or the environment, never in the database."""

from __future__ import annotations

import base64
import contextlib
import hmac
import importlib.util
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, insert, select

from windlass.core.errors import BadSeal, InvalidInput
from windlass.runs.tables import secrets

if TYPE_CHECKING:  # costly to import, and needed only by runs that have secrets
    from cryptography.fernet import Fernet

KEY_VARIABLE = "WINDLASS_SECRET_KEY"


class Seal:
    def __init__(self, key_file: Path | None) -> None:
        self._key_file = key_file

    def store(self, tx: Connection, run_id: str, values: Mapping[str, str]) -> None:
        if not values:
            return
        box = self._box()
        rows = [
            {"run_id": run_id, "name": name, "sealed": box.encrypt(value.encode())} for name, value in values.items()
        ]
        tx.execute(insert(secrets), rows)

    def open(self, tx: Connection, run_id: str) -> dict[str, str]:
        rows = tx.execute(select(secrets.c.name, secrets.c.sealed).where(secrets.c.run_id == run_id)).all()
        if not rows:
            return {}
        from cryptography.fernet import InvalidToken

        box = self._box()
        try:
            return {row.name: box.decrypt(bytes(row.sealed)).decode() for row in rows}
        except InvalidToken as error:
            raise BadSeal(
                f"the secrets of run {run_id} were sealed with another key",
                hint=f"set {KEY_VARIABLE} to the key they were sealed with, or submit the run again",
            ) from error

    def wrap(self, values: Mapping[str, str]) -> bytes | None:
        """Sealed for whoever keeps them elsewhere; None where there is nothing to seal."""
        return self._box().encrypt(json.dumps(dict(values)).encode()) if values else None

    def unwrap(self, sealed: bytes | None) -> dict[str, str]:
        if sealed is None:
            return {}
        from cryptography.fernet import InvalidToken

        try:
            values: dict[str, str] = json.loads(self._box().decrypt(sealed))
        except InvalidToken as error:
            raise BadSeal("secrets were sealed with another key", hint=f"set {KEY_VARIABLE} to that key") from error
        return values

    def is_ready(self) -> bool:
        """Whether there is what it takes to seal anything."""
        return importlib.util.find_spec("cryptography") is not None

    def derive(self, purpose: str) -> bytes:
        """Another key for another purpose, the same on every server; it does not tell what it was made from."""
        return hmac.digest(self._key(), purpose.encode(), "sha256")

    def _box(self) -> Fernet:
        try:
            from cryptography.fernet import Fernet
        except ImportError as error:
            raise InvalidInput(
                "secrets need the `cryptography` package on the server", hint="pip install 'windlass[secrets]'"
            ) from error
        key = self._key()
        try:
            return Fernet(key)
        except ValueError as error:
            where = KEY_VARIABLE if os.environ.get(KEY_VARIABLE) else self._key_file
            raise BadSeal(f"{where} is not a key: it takes 32 bytes in url-safe base64") from error

    def _key(self) -> bytes:
        if text := os.environ.get(KEY_VARIABLE):
            return text.encode()
        if self._key_file is None:
            raise BadSeal(f"no key for secrets: set {KEY_VARIABLE}")
        if not self._key_file.exists():
            _create_once(self._key_file, base64.urlsafe_b64encode(os.urandom(32)))  # Fernet's form of a key
        return self._key_file.read_bytes()


def _create_once(path: Path, content: bytes) -> None:
    """Created whole or not at all: threads and servers that come together must agree on one key."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # readable by its owner only
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
