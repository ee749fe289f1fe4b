"""NVIDIA devices through the driver's own library, loaded if there is one; nothing to install."""

from __future__ import annotations

import ctypes
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_NAME_BYTES = 96
_TEMPERATURE_GPU = 0
# Counters since the driver was loaded. The library's own rates hold their caller up for 20 ms each.
_PCIE_SENT, _PCIE_RECEIVED = 197, 198


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Number(ctypes.Union):
    _fields_ = [("small", ctypes.c_uint), ("large", ctypes.c_ulonglong), ("fraction", ctypes.c_double)]


class _Field(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("at_us", ctypes.c_longlong),
        ("took_us", ctypes.c_longlong),
        ("kind", ctypes.c_int),
        ("error", ctypes.c_int),
        ("value", _Number),
    ]


_KINDS = {1: "small", 2: "large", 3: "large"}  # unsigned int, unsigned long, unsigned long long


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

    def pcie_bytes(self, index: int) -> dict[str, int]:
        """What the device has received and sent so far; nothing where device or driver do not count."""
        handle = self._handle(index)
        wanted = {"pcie_in_bytes": _PCIE_RECEIVED, "pcie_out_bytes": _PCIE_SENT}
        fields = (_Field * len(wanted))(*(_Field(id=number) for number in wanted.values()))
        ask = getattr(self._library, "nvmlDeviceGetFieldValues", None)  # not in every driver
        if handle is None or ask is None or ask(handle, len(wanted), fields) != 0:
            return {}
        names = {number: name for name, number in wanted.items()}
        return {
            names[field.id]: int(getattr(field.value, _KINDS[field.kind]))
            for field in fields
            if field.error == 0 and field.kind in _KINDS
        }

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
