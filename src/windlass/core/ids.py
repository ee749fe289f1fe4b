"""Identifiers: a prefix that tells the kind and random characters that are easy to read out and to shorten."""

from __future__ import annotations

import re
import secrets
import zlib

# No vowels (no accidental words), nothing that looks like something else.
ALPHABET = "23456789bcdfghjkmnpqrstvwxyz"
SLOTS = 64
RUN_ID = re.compile(rf"^r-[{ALPHABET}]{{10}}$")


def _token(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))


def new_run_id() -> str:
    return f"r-{_token(10)}"


def attempt_id(run_id: str, number: int) -> str:
    """Attempts are named after their run, so the same decision taken twice names the same attempt."""
    return f"{run_id}.{number}"


def slot_of(run_id: str) -> int:
    """A fixed part of all runs that this one belongs to: controllers divide slots among themselves."""
    return zlib.crc32(run_id.encode()) % SLOTS


def new_holder_nonce() -> str:
    return _token(8)
