"""Can blobs be written, read and deleted, and does the bucket have the right time?"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime

from windlass.blobs.contract import Blobs
from windlass.core.clock import Clock
from windlass.server.checks.clocks import compare
from windlass.wire.checks import CheckView, Status
from windlass.wire.config import BlobsSection

_SLOW_S = 2.0
_TIMEOUT_S = 5.0


def check(config: BlobsSection, blobs: Blobs, clock: Clock, environ: Mapping[str, str]) -> Iterator[CheckView]:
    yield _write(blobs)
    if config.url and config.url.startswith("s3://"):
        yield from _clock(config, clock, environ)


def _write(blobs: Blobs) -> CheckView:
    """With a blob that nobody else has; nothing of it is left."""
    data = f"windlass doctor {secrets.token_hex(16)}".encode()
    began = time.perf_counter()
    digest = blobs.put(data)
    same = blobs.get(digest) == data
    blobs.delete(digest)
    took_s = time.perf_counter() - began
    status: Status = "fail" if not same else "warn" if took_s > _SLOW_S else "ok"
    advice = {
        "fail": "the store gives back something else than it was given: do not use it",
        "warn": "submissions wait for it: have it nearer to the server",
    }
    found = f"{blobs.describe()}, written, read and deleted in {1000 * took_s:.0f} ms"
    return CheckView(code="blobs.write", name="blobs", status=status, found=found, advice=advice.get(status, ""))


def _clock(config: BlobsSection, clock: Clock, environ: Mapping[str, str]) -> Iterator[CheckView]:
    """From the date of any answer, a refusal too: it needs no signature, which a wrong clock would spoil."""
    import httpx

    region = config.region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    url = config.endpoint or f"https://s3.{region}.amazonaws.com"
    before = clock.now()
    try:
        date = httpx.head(url, timeout=_TIMEOUT_S).headers.get("Date")
    except httpx.HTTPError as error:
        yield CheckView(code="blobs.clock", name="bucket clock", status="warn", found=f"{url} does not answer: {error}")
        return
    if date is not None:
        there = parsedate_to_datetime(date).timestamp()
        yield compare("blobs.clock", "bucket clock", there=there, before=before, after=clock.now(), exact_s=1.0)
