"""NVIDIA devices through the driver's own library, loaded if there is one; nothing to install."""

from __future__ import annotations

import ctypes
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_NAME_BYTES = 96
_TEMPERATURE_GPU = 0


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Nvml:
    """An open session with the driver. Values that a device does not tell are None."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    @staticmethod
    def open() -> Nvml | None:
        """None on a machine without NVIDIA devices or driver."""
        try:
            library = ctypes.CDLL(_LIBRARY)
        except OSError:
            return None
        return Nvml(library) if library.nvmlInit_v2() == 0 else None

    def devices(self) -> list[dict[str, Any]]:
        """Index, name and memory of every device, in PCI order."""
        count = ctypes.c_uint()
        if self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
            return []
        return [self._describe(index) for index in range(count.value)]

    def sample(self, index: int) -> dict[str, Any]:
        handle = self._handle(index)
        found: dict[str, Any] = {"index": index}
        if handle is None:
            return found
        memory, load = _Memory(), _Utilization()
        if self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
            found["memory_used_bytes"] = memory.used
            found["memory_total_bytes"] = memory.total
        if self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(load)) == 0:
            found["utilization_percent"] = load.gpu
        milliwatts, celsius = ctypes.c_uint(), ctypes.c_uint()
        if self._library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(milliwatts)) == 0:
            found["power_watts"] = milliwatts.value / 1000
        if self._library.nvmlDeviceGetTemperature(handle, _TEMPERATURE_GPU, ctypes.byref(celsius)) == 0:
            found["temperature_celsius"] = celsius.value
        return found

    def close(self) -> None:
        self._library.nvmlShutdown()

    def _describe(self, index: int) -> dict[str, Any]:
        handle = self._handle(index)
        name = ctypes.create_string_buffer(_NAME_BYTES)
        memory = _Memory()
        known = handle is not None and self._library.nvmlDeviceGetName(handle, name, _NAME_BYTES) == 0
        sized = handle is not None and self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
        return {
            "index": index,
            "name": name.value.decode() if known else "NVIDIA GPU",
            "memory_bytes": int(memory.total) if sized else 0,
        }

    def _handle(self, index: int) -> ctypes.c_void_p | None:
        handle = ctypes.c_void_p()
        found = self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) == 0
        return handle if found else None
