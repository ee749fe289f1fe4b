"""What a node shows to the API. Made from the server's key, so that every API server can check it and none keeps it."""

from __future__ import annotations

import hmac

from windlass.runs.sealing import Seal

_PURPOSE = "windlass node tokens 1"


class NodeTokens:
    def __init__(self, seal: Seal) -> None:
        self._seal = seal
        self._key: bytes | None = None  # made on first use: a server without such nodes needs none

    def token(self, attempt_id: str, node_rank: int) -> str:
        if self._key is None:
            self._key = self._seal.derive(_PURPOSE)
        return hmac.digest(self._key, f"{attempt_id}/{node_rank}".encode(), "sha256").hex()

    def is_valid(self, token: str, attempt_id: str, node_rank: int) -> bool:
        return hmac.compare_digest(token.encode(), self.token(attempt_id, node_rank).encode())
