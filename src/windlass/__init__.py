"""Windlass: a self-hosted ML training platform. `windlass.Client` submits and follows runs; `windlass.job` is for
scripts inside one. Both are loaded on first use, so importing the package costs nothing."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Client", "Run", "__version__", "job"]

if TYPE_CHECKING:
    from windlass import job
    from windlass.client import Client, Run


def __getattr__(name: str) -> Any:
    import importlib

    if name in ("Client", "Run"):
        return getattr(importlib.import_module("windlass.client"), name)
    if name == "job":
        return importlib.import_module("windlass.job")
    raise AttributeError(f"module 'windlass' has no attribute {name!r}")
