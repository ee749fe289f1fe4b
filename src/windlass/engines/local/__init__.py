"""The local engine: runs attempts as processes of this machine, under supervisors that outlive the server."""

from windlass.engines.local.engine import LocalEngine
from windlass.engines.local.warmpool import stop_launchers

__all__ = ["LocalEngine", "stop_launchers"]
