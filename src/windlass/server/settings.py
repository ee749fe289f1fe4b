"""What a server is told: from the command line and the environment, checked before anything starts."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from windlass.core.errors import InvalidInput
from windlass.db.database import database_url
from windlass.tenancy.prices import DEFAULT_CPU_USD, DEFAULT_GPU_USD, PriceBook

DEFAULT_PORT = 8470


class Role(StrEnum):
    """A server answers requests, moves runs forward, or does both in one process."""

    ALL = "all"
    API = "api"
    CONTROLLER = "controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    home: Path
    host: str = "127.0.0.1"
    port: int | None = None  # None: the usual one, or any free one if that is taken
    auth: bool = True
    role: Role = Role.ALL
    database_url: str = ""
    local_nodes: int = 1
    warm: bool = True
    prices: PriceBook = field(default_factory=PriceBook)

    @classmethod
    def from_environ(
        cls,
        environ: Mapping[str, str],
        *,
        home: Path,
        host: str = "127.0.0.1",
        port: int | None = None,
        auth: bool = True,
        role: Role = Role.ALL,
    ) -> Settings:
        if not auth and not _is_loopback(host):
            raise InvalidInput(
                f"--no-auth is for this machine only, not for {host}", hint="leave out --no-auth, or use 127.0.0.1"
            )
        return cls(
            home=home,
            host=host,
            port=port,
            auth=auth,
            role=role,
            database_url=database_url(dict(environ), home),
            local_nodes=_count(environ, "WINDLASS_LOCAL_NODES", 1),
            warm=environ.get("WINDLASS_WARM", "1") not in ("0", "false", "no"),
            prices=_prices(environ),
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _count(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, str(default))
    if not text.isdigit() or int(text) < 1:
        raise InvalidInput(f"{name}={text}: a number of at least 1 is needed")
    return int(text)


def _prices(environ: Mapping[str, str]) -> PriceBook:
    """WINDLASS_CPU_PRICE=0.03 and WINDLASS_GPU_PRICES=h100=2.1,a100=1.2, in dollars an hour."""
    try:
        cpu_usd = _price(environ.get("WINDLASS_CPU_PRICE", str(DEFAULT_CPU_USD)))
        pairs = [pair.split("=", 1) for pair in environ.get("WINDLASS_GPU_PRICES", "").split(",") if pair]
        own = {name.strip().lower(): _price(price) for name, price in pairs}
    except ValueError as error:
        raise InvalidInput(
            f"a price cannot be read: {error}", hint="WINDLASS_CPU_PRICE=0.03 WINDLASS_GPU_PRICES=h100=2.1,a100=1.2"
        ) from error
    return PriceBook(cpu_usd=cpu_usd, gpu_usd={**DEFAULT_GPU_USD, **own})


def _price(text: str) -> float:
    price = float(text)
    if not 0 <= price < math.inf:
        raise ValueError(f"{text} is not a price: prices are not negative")
    return price
