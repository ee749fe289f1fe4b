"""What the driver's library is asked, by a library that stands in for it."""

from __future__ import annotations

from typing import Any

from windlass.agent.nvml import Nvml

RECEIVED, SENT = 198, 197


class Library:
    """Has the two calls under the driver's names for them."""

    def __init__(self, answers: dict[int, tuple[int, int, int]], error: int = 0) -> None:
        def get_fields(_handle: Any, _count: int, fields: Any) -> int:
            for field in fields:
                field.error, field.kind, field.value.large = answers[field.id]  # by field: error, kind, value
            return error

        self.nvmlDeviceGetHandleByIndex_v2 = lambda _index, _handle: 0
        self.nvmlDeviceGetFieldValues = get_fields


def pcie_bytes(library: Library) -> dict[str, int]:
    return Nvml(library).pcie_bytes(0)  # type: ignore[arg-type]


def test_what_a_device_has_received_and_sent() -> None:
    library = Library({RECEIVED: (0, 3, 2**40), SENT: (0, 1, 7)})
    assert pcie_bytes(library) == {"pcie_in_bytes": 2**40, "pcie_out_bytes": 7}


def test_what_is_not_counted_is_left_out() -> None:
    not_supported, unknown_kind = (3, 3, 5), (0, 99, 5)
    assert pcie_bytes(Library({RECEIVED: not_supported, SENT: unknown_kind})) == {}
    assert pcie_bytes(Library({RECEIVED: (0, 3, 1), SENT: (0, 3, 1)}, error=1)) == {}
