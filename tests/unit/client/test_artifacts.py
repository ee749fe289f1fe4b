"""How files are cut into parts."""

from __future__ import annotations

import pytest

from windlass.artifacts.uploads import MOST_PARTS
from windlass.client.artifacts import PART_BYTES, part_bytes


@pytest.mark.parametrize("size", [1, PART_BYTES * MOST_PARTS, PART_BYTES * MOST_PARTS + 1, 5 << 40, (5 << 40) + 12_345])
def test_no_file_has_more_parts_than_the_server_takes(size: int) -> None:
    parts = -(-size // part_bytes(size))
    assert parts <= MOST_PARTS
    assert part_bytes(size) >= PART_BYTES
    assert size <= PART_BYTES * MOST_PARTS or parts > MOST_PARTS * 0.9, "no larger than they have to be"
