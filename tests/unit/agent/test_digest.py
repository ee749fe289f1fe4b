"""Digests without OpenSSL are those that everybody else makes."""

from __future__ import annotations

import hashlib

from windlass.agent.digest import sha256_of


def test_it_is_sha256() -> None:
    for text in ("", "/home/jo/.windlass/runs/r-1", "größer"):
        assert sha256_of(text) == hashlib.sha256(text.encode()).hexdigest()
