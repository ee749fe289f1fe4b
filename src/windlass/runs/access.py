"""What programs of a run need to log to it by MLflow's client: where the server is, which run they are, and a token.
It is good for MLflow's API alone, for as long as the run lives and a while longer. Tokens are made from the server's
key, so that every API server can check them and none keeps them.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Mapping

from sqlalchemy import select

from windlass.core.chosenexperiment import CHOICES, TRACKING_URI
from windlass.core.clock import Clock
from windlass.core.ids import RUN_ID
from windlass.db.database import Database
from windlass.experiments.tables import tracked_runs
from windlass.runs.records import RunRecord
from windlass.runs.sealing import Seal
from windlass.runs.tables import runs

_PURPOSE = "windlass run tokens 1"
_AFTERWARDS_S = 3_600.0  # what was logged last may be sent after the end
_REMEMBERED_S = 10.0
_MOST_REMEMBERED = 10_000
_CREDENTIALS = ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME")


class RunTokens:
    """Safe from any thread."""

    def __init__(self, db: Database, seal: Seal, clock: Clock) -> None:
        self._db = db
        self._seal = seal
        self._clock = clock
        self._key: bytes | None = None  # made on first use: a server without tokens needs none
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, bool]] = {}  # by run: until when it is remembered, whether it may

    def token(self, run_id: str) -> str:
        return f"{run_id}.{self._proof(run_id)}"

    @property
    def may_be_sealed(self) -> bool:
        return self._seal.is_ready()

    def looks_like_one(self, token: str) -> bool:
        return RUN_ID.match(token.partition(".")[0]) is not None

    def is_valid(self, token: str) -> bool:
        """Asks the database now and then: not for an event loop."""
        run_id, _, proof = token.partition(".")
        if not self.looks_like_one(token) or not hmac.compare_digest(proof.encode(), self._proof(run_id).encode()):
            return False
        now = self._clock.now()
        until, may = self._known.get(run_id, (0.0, False))
        if now >= until:
            may = self._may_log(run_id, now)
            with self._lock:
                if len(self._known) >= _MOST_REMEMBERED:
                    self._known.clear()
                self._known[run_id] = (now + _REMEMBERED_S, may)
        return may

    def _may_log(self, run_id: str, now: float) -> bool:
        with self._db.read() as tx:
            row = tx.execute(select(runs.c.ended_at).where(runs.c.id == run_id)).first()
        return row is not None and (row.ended_at is None or now < row.ended_at + _AFTERWARDS_S)

    def _proof(self, run_id: str) -> str:
        if self._key is None:
            self._key = self._seal.derive(_PURPOSE)
        return hmac.digest(self._key, run_id.encode(), "sha256").hex()


class TrackingAccess:
    """`url`: where programs reach the API, by the type of their engine; None where that is not known."""

    def __init__(self, db: Database, tokens: RunTokens | None, *, url: Callable[[str], str | None]) -> None:
        self._db = db
        self._tokens = tokens
        self._url = url

    def tell(self, run: RunRecord, engine_type: str, own: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """For the environment of the run's ranks: variables, and those that are to go the way of secrets, not into
        plans, and masked in logs. Where nothing can be sealed they go with the others. `own`: what its user has set,
        which wins: a tracking server of theirs, an experiment, a run."""
        url = self._url(engine_type)
        if url is None or TRACKING_URI in own:
            return {}, {}
        told: dict[str, str] = {TRACKING_URI: url}
        secret: dict[str, str] = {}
        if self._tokens is not None and not any(name in own for name in _CREDENTIALS):
            (secret if self._tokens.may_be_sealed else told)["MLFLOW_TRACKING_TOKEN"] = self._tokens.token(run.id)
        if not any(name in own for name in CHOICES):  # else they want runs of their own, not the run that they are
            with self._db.read() as tx:
                mine = select(tracked_runs.c.experiment_id).where(tracked_runs.c.id == run.id)
                number = tx.execute(mine).scalar()
            if number is not None:
                told |= {"MLFLOW_RUN_ID": run.id, "MLFLOW_EXPERIMENT_ID": str(number)}
        return told, secret
