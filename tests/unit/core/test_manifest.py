from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from windlass.core.manifest import (
    VERSION,
    InvalidManifest,
    Manifest,
    NewerManifest,
    PartFile,
    SaveReason,
    folder_name,
    parse_manifest,
    render_manifest,
)

MANIFEST = Manifest(
    run_id="r-q28vvm6vj2",
    attempt=1,
    step=20,
    created_at=1_763_582_400.125,
    reason=SaveReason.INTERVAL,
    world_size=2,
    plan="data=2",
    files=(PartFile(name="__0_0.distcp", size_bytes=1_000, sha256="ab" * 32),),
    metrics={"loss": 0.1 + 0.2, "höhe": 1e-9},
)


def old(**changes: Any) -> str:
    """As it was written before it had a checksum of its own."""
    return json.dumps({**asdict(MANIFEST), **changes}, indent=1, sort_keys=True) + "\n"


def newer(**changes: Any) -> str:
    text = render_manifest(Manifest(**{**asdict(MANIFEST), "version": VERSION + 1, "files": (), **changes}))
    assert "sha256" in text
    return text


def test_a_bit_flipped_anywhere_is_found() -> None:
    content = render_manifest(MANIFEST).encode()
    refused = 0
    for at in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[at] ^= 1 << bit
            try:
                assert parse_manifest(bytes(flipped)) == MANIFEST  # space between words, which says nothing
            except NewerManifest:
                raise AssertionError(f"bit {bit} of byte {at} makes it another version's") from None
            except InvalidManifest:
                refused += 1
    assert refused > 0.8 * 8 * len(content)


def test_what_was_saved_before_there_was_a_checksum_is_read() -> None:
    assert parse_manifest(old()) == MANIFEST
    assert parse_manifest(old(), name=folder_name(20)) == MANIFEST


@pytest.mark.parametrize("text", [old(step=28), render_manifest(Manifest(**{**asdict(MANIFEST), "step": 28}))])
@pytest.mark.parametrize("name", ["step-0000000020", ".part-step-0000000020-1f2e", "step-0000000020-1f2e3d4c5b6a"])
def test_the_name_of_the_folder_says_the_step_too(text: str, name: str) -> None:
    with pytest.raises(InvalidManifest, match=f"the manifest in {name} is of step 28"):
        parse_manifest(text, name=name)


@pytest.mark.parametrize("text", [newer(), old(version=7), '{"version": 99}'])
def test_what_a_newer_version_has_saved_is_not_called_damaged(text: str) -> None:
    with pytest.raises(NewerManifest, match="saved by a newer version of Windlass: its manifest has version"):
        parse_manifest(text)


def test_a_version_that_is_none_is_refused() -> None:
    for version in (0, "1.0", None):
        with pytest.raises(InvalidManifest, match="options: 1") as refused:
            parse_manifest(old(version=version))
        assert not isinstance(refused.value, NewerManifest)
