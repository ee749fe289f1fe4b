"""Secrets at rest: sealed with a key that is in the home folder or the environment, never in the database."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, insert, select

from windlass.core.errors import InvalidInput, Unavailable
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
            raise Unavailable(
                f"the secrets of run {run_id} were sealed with another key",
                hint=f"set {KEY_VARIABLE} to the key they were sealed with, or submit the run again",
            ) from error

    def _box(self) -> Fernet:
        try:
            from cryptography.fernet import Fernet
        except ImportError as error:
            raise InvalidInput(
                "secrets need the `cryptography` package on the server", hint="pip install 'windlass[secrets]'"
            ) from error
        return Fernet(self._key(Fernet.generate_key))

    def _key(self, generate: Callable[[], bytes]) -> bytes:
        if text := os.environ.get(KEY_VARIABLE):
            return text.encode()
        if self._key_file is None:
            raise Unavailable(f"no key for secrets: set {KEY_VARIABLE}")
        try:
            # Created whole or not at all: two servers that start together must agree on one key.
            temporary = self._key_file.with_suffix(f".{os.getpid()}")
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(generate())
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, self._key_file)
        except FileExistsError:
            pass
        finally:
            temporary.unlink(missing_ok=True)
        return self._key_file.read_bytes()
