"""GPUs and TPUs are told apart by the names of their types."""

from __future__ import annotations

import pytest

from windlass.core.accelerators import ANY_TPU, is_tpu, resource_of, serves, title_of, tpu


@pytest.mark.parametrize(
    ("name", "type"),
    [
        ("v5e", "tpu:v5e"),
        ("TPU-V5E", "tpu:v5e"),
        ("tpu-v5-lite-podslice", "tpu:v5e"),
        ("tpu-v5-lite-device", "tpu:v5e"),
        ("tpu-v5p-slice", "tpu:v5p"),
        ("tpu-v4-podslice", "tpu:v4"),
        ("tpu-v6e-slice", "tpu:v6e"),
        ("tpu7x", "tpu:v7x"),
        ("v9", "tpu:v9"),
        ("tpu:v5e", "tpu:v5e"),
        (None, ANY_TPU),
    ],
)
def test_a_type_of_tpus_has_one_name(name: str | None, type: str) -> None:
    assert tpu(name) == type
    assert is_tpu(type)


@pytest.mark.parametrize(
    ("offered", "wanted", "does"),
    [
        ("h100", None, True),
        (None, None, True),
        ("h100", "h100", True),
        ("a100", "h100", False),
        (None, "h100", False),
        ("tpu:v5e", None, False),
        ("tpu:v5e", "tpu:v5e", True),
        ("tpu:v4", "tpu:v5e", False),
        ("tpu:v4", ANY_TPU, True),
        (ANY_TPU, ANY_TPU, True),
        (ANY_TPU, "tpu:v5e", False),
        ("h100", ANY_TPU, False),
        (None, ANY_TPU, False),
    ],
)
def test_who_asks_for_one_kind_does_not_get_the_other(offered: str | None, wanted: str | None, does: bool) -> None:
    assert serves(offered, wanted) is does


def test_names_for_quotas_and_for_people() -> None:
    assert [resource_of(each) for each in ("h100", "tpu:v5e")] == ["gpu:h100", "tpu:v5e"]
    assert [title_of(each) for each in (None, "h100", ANY_TPU, "tpu:v5e")] == ["GPU", "h100", "TPU", "TPU v5e"]
