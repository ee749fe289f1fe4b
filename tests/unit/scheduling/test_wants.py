"""What a run asks for, as the alternatives that the scheduler tries in order."""

from __future__ import annotations

from windlass.core.resources import Resources
from windlass.scheduling.core.types import Want
from windlass.scheduling.wants import wants_of


def test_a_plain_request_is_one_want() -> None:
    asked = Resources(nodes=2, cpus=4, memory_bytes=10, gpus=8, gpu_type="h100", labels=frozenset({"a=b"}))
    assert wants_of(asked, engines=frozenset({"hpc"}), most_nodes=4) == (
        Want(
            gpus=8,
            gpu_type="h100",
            cpus=4,
            memory_bytes=10,
            nodes=2,
            most_nodes=4,
            engines=frozenset({"hpc"}),
            labels=frozenset({"a=b"}),
        ),
    )


def test_types_and_numbers_of_gpus_are_alternatives_the_type_first() -> None:
    asked = Resources(gpus=4, gpu_type="h100", gpu_types=("h100", "a100"), least_gpus=3)
    found = [(want.gpus, want.gpu_type) for want in wants_of(asked, engines=None)]
    assert found == [(4, "h100"), (3, "h100"), (4, "a100"), (3, "a100")]


def test_a_type_without_gpus_says_nothing() -> None:
    assert [want.gpu_type for want in wants_of(Resources(gpu_type="h100"), engines=None)] == [None]


def test_a_part_of_a_gpu_stays_one() -> None:
    assert [want.gpus for want in wants_of(Resources(gpus=0.5), engines=None)] == [0.5]


def test_runs_that_ask_for_the_same_share_one_object() -> None:
    first = wants_of(Resources(gpus=2, gpu_types=("h100",)), engines=frozenset({"a", "b"}))
    assert first is wants_of(Resources(gpus=2, gpu_types=("h100",)), engines=frozenset({"b", "a"}))


def test_requests_in_words() -> None:
    asked = Resources(gpus=4, gpu_type="h100", gpu_types=("h100", "a100"), least_gpus=2, labels=frozenset({"zone=b"}))
    assert asked.describe() == "1 CPU + 2 to 4 h100 or a100 with zone=b"
    assert Resources(gpus=0.5, spot_ok=False).describe() == "1 CPU + 0.5 GPU, not on spot"
