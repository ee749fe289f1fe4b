"""The Python SDK: `Client` submits and finds runs, `Run` follows and steers one."""

from windlass.client.client import Client
from windlass.client.run import Metric, Run, Update

__all__ = ["Client", "Metric", "Run", "Update"]
