"""The Python SDK: `Client` submits and finds runs, `Run` follows and steers one. Both are loaded on first use: what a
run consists of takes long to load, and to submit one needs none of it."""

from typing import TYPE_CHECKING, Any

__all__ = ["Client", "Metric", "Run", "Update"]

if TYPE_CHECKING:
    from windlass.client.client import Client
    from windlass.client.metrics import Metric
    from windlass.client.run import Run, Update


def __getattr__(name: str) -> Any:
    import importlib

    if name in __all__:
        return getattr(
            importlib.import_module("windlass.client.client" if name == "Client" else "windlass.client.run"), name
        )
    raise AttributeError(f"module 'windlass.client' has no attribute {name!r}")
