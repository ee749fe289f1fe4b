"""What a run can ask of its nodes: a range, a part, one of several types, labels; and the moment it should be done."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from windlass.core.errors import InvalidSpec
from windlass.wire.spec import RunSpec, parse_spec


def spec_of(resources: dict[str, Any], **keys: Any) -> RunSpec:
    return parse_spec({"command": "x", "resources": resources, **keys})


@pytest.mark.parametrize(
    ("written", "gpus", "fewest", "kept"),
    [(8, 8, None, 8), (0.5, 0.5, None, 0.5), ("4..8", 8, 4, 8), (" 2 .. 2 ", 2, 2, 2), (1.0, 1, None, 1)],
)
def test_gpus_are_a_number_a_part_or_a_range(written: Any, gpus: float, fewest: int | None, kept: float) -> None:
    spec = spec_of({"gpus": written})
    assert (spec.resources.gpus, spec.resources.min_gpus) == (gpus, fewest)
    dumped = spec.model_dump(mode="json")
    assert repr(dumped["resources"]["gpus"]) == repr(kept)
    assert parse_spec(dumped) == spec


@pytest.mark.parametrize(
    ("written", "types", "kept"),
    [
        (None, (), None),
        ("h100", ("h100",), "h100"),
        (["h100"], ("h100",), "h100"),
        (["h100", "a100"], ("h100", "a100"), ["h100", "a100"]),
    ],
)
def test_types_of_gpus_are_in_order_of_preference(written: Any, types: tuple[str, ...], kept: Any) -> None:
    spec = spec_of({"gpus": 1, "gpu_type": written})
    assert spec.resources.gpu_type == types
    dumped = spec.model_dump(mode="json")
    assert dumped["resources"]["gpu_type"] == kept
    assert parse_spec(dumped) == spec


@pytest.mark.parametrize(
    ("written", "kept"), [(None, None), ("v5e", "v5e"), (["v5p", "v5e"], ["v5p", "v5e"]), (["v4"], "v4")]
)
def test_tpus_are_asked_for_like_gpus(written: Any, kept: Any) -> None:
    spec = spec_of({"tpus": 4, "tpu_type": written})
    dumped = spec.model_dump(mode="json")
    assert (dumped["resources"]["tpus"], dumped["resources"]["tpu_type"], spec.resources.gpus) == (4, kept, 0)
    assert parse_spec(dumped) == spec


def test_labels_are_text_whatever_yaml_makes_of_them() -> None:
    labels = yaml.safe_load("{zone: eu-1a, generation: 3, nvlink: yes}")
    assert spec_of({"labels": labels}).resources.labels == {"zone": "eu-1a", "generation": "3", "nvlink": "true"}


@pytest.mark.parametrize(
    ("resources", "problem"),
    [
        ({"gpus": "8..4"}, "`resources.gpus`: '8..4' is no range: write the fewest first, 1 or more, as in 4..8"),
        ({"gpus": "0..2"}, "`resources.gpus`: '0..2' is no range: write the fewest first, 1 or more, as in 4..8"),
        ({"gpus": 2.5}, "`resources.gpus`: 2.5 GPUs: give a whole number, a part of one such as 0.5"),
        ({"gpus": 0.5, "nodes": 2}, "`resources.gpus`: a part of a GPU (0.5) is for runs on one node, not 2"),
        ({"gpus": 2, "min_gpus": 3}, "`resources.min_gpus`: is 3, more than `gpus`, 2"),
        ({"gpu_type": ["h100", "h100"]}, "`resources.gpu_type`: names h100 twice"),
        ({"gpu_type": "h 100"}, "`resources.gpu_type`: write letters, digits and . _ - only"),
        ({"gpu_type": ["h 100"]}, "`resources.gpu_type.0`: write letters, digits and . _ - only"),
        ({"gpus": 8, "tpus": 4}, "`resources.tpus`: a node has GPUs or TPUs, not 8 and 4: ask for one kind"),
        ({"tpu_type": "v5e"}, "`resources.tpu_type`: is v5e, and no `tpus` are asked for: say how many"),
        ({"tpus": 0.5}, "`resources.tpus`: input should be a valid integer"),
        ({"tpus": 4, "tpu_type": ["v4", "v4"]}, "`resources.tpu_type`: names v4 twice"),
        ({"spot": "maybe"}, "`resources.spot`: input should be a valid boolean"),
    ],
)
def test_what_cannot_be_meant_is_refused(resources: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        spec_of(resources)
    [told] = refused.value.problems
    assert told.startswith(problem)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("12h", 43_200),
        ("90", 90),
        ("2026-11-20T18:00+01:00", 1_795_194_000),
        ("2026-11-20 18:00:00", 1_795_197_600),
        ("2026-11-20", 1_795_132_800),
        ("1795132800", 1_795_132_800),
    ],
)
def test_a_deadline_is_a_moment_or_a_duration(text: str, at: float) -> None:
    spec = spec_of({}, deadline=yaml.safe_load(text))
    assert spec.deadline == at
    assert parse_spec(spec.model_dump(mode="json")) == spec


@pytest.mark.parametrize("deadline", ["soon", 0, True, [1], "2026-13-01", float("nan")])
def test_what_is_no_moment_is_refused(deadline: Any) -> None:
    with pytest.raises(InvalidSpec, match="`deadline`: "):
        spec_of({}, deadline=deadline)
