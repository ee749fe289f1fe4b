"""Streams of tokens: what files hold, and that a step's batch does not depend on who reads it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from windlass.core.errors import InvalidInput  # noqa: E402
from windlass.job.tokens import TokenStream, held_apart, made_up_tokens, open_tokens  # noqa: E402

pytestmark = pytest.mark.torch


def test_files_of_a_folder_in_their_widths(tmp_path: Path) -> None:
    np.arange(50, dtype=np.uint16).tofile(tmp_path / "a.bin")
    np.arange(100_000, 100_060, dtype=np.uint32).tofile(tmp_path / "b.u32")
    np.save(tmp_path / "c.npy", np.arange(40))
    (tmp_path / "d.txt").write_bytes(b"text")
    (tmp_path / "notes.md").write_text("no tokens")
    assert [(len(tokens), int(tokens[1])) for tokens in open_tokens(tmp_path, vocabulary=50_304)] == [
        (50, 1),
        (60, 100_001),
        (40, 1),
        (4, ord("e")),
    ]
    np.arange(7, dtype=np.uint32).tofile(tmp_path / "a.bin")
    assert len(open_tokens(tmp_path / "a.bin", vocabulary=100_000)[0]) == 7


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no tokens at"):
        open_tokens(tmp_path, vocabulary=256)
    with pytest.raises(InvalidInput, match="the longest has 9"):
        TokenStream([np.arange(9)], 10)


def test_windows_stay_within_their_files() -> None:
    stream = TokenStream([np.arange(5), np.arange(2), np.arange(100, 104)], 3)
    assert [stream.window(number).tolist() for number in range(5)] == [
        [0, 1, 2],
        [1, 2, 3],
        [2, 3, 4],
        [100, 101, 102],
        [101, 102, 103],
    ]


def test_parts_make_up_the_batch_and_later_attempts_go_on() -> None:
    stream = TokenStream([made_up_tokens(1000, 50, seed=1)], 9)
    whole = list(islice(stream.batches(batch=6, part=slice(None), seed=3), 4))
    parts = [list(islice(stream.batches(batch=6, part=slice(at, at + 2), seed=3), 4)) for at in (0, 2, 4)]
    for step, (inputs, targets) in enumerate(whole):
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        assert torch.equal(torch.cat([part[step][0] for part in parts]), inputs)
    later, _ = next(stream.batches(batch=6, part=slice(None), seed=3, first=2))
    assert torch.equal(later, whole[2][0])


def test_ends_are_kept_apart() -> None:
    training, held_out = held_apart([np.arange(100), np.arange(5)], 0.2, length=4)
    assert [len(tokens) for tokens in training] == [80]
    assert held_out[0][0] == 80


@pytest.mark.parametrize(("count", "share"), [(26, 0.05), (129, 0.05), (200, 0.9)])
def test_files_that_are_too_short_are_told_with_the_tokens_they_have(count: int, share: float) -> None:
    with pytest.raises(InvalidInput) as refused:
        held_apart([np.arange(count), np.arange(5)], share, length=65)
    assert refused.value.message == (
        f"no file has the 65 tokens of one sample beside its end that is kept aside (held_out={share:g}, and 65 at "
        f"least); the longest has {count}"
    )
    assert len(held_apart([np.arange(130)], 0.05, length=65)[0][0]) == 65


def test_made_up_words_are_the_same_every_time_and_follow_from_each_other() -> None:
    words = made_up_tokens(64 * 500, 1000, seed=5).astype(int).reshape(64, 500)
    assert (words == made_up_tokens(64 * 500, 1000, seed=5).reshape(64, 500)).all()
    following = words[:, 1:] == (words[:, :-1] * 31 + 7) % 1000
    assert 0.45 < following.mean() < 0.55


def test_tokens_that_the_vocabulary_lacks_are_refused_with_their_file(tmp_path: Path) -> None:
    np.array([3, 9, 700, 5] * 5, dtype=np.uint16).tofile(tmp_path / "a.bin")
    files = open_tokens(tmp_path / "a.bin", vocabulary=512)
    whole = slice(None)
    with pytest.raises(InvalidInput, match=r"a\.bin has the token 700, but tokens are from 0 to 511") as refused:
        next(TokenStream(files, 4, 512).batches(batch=2, part=whole, seed=1))
    assert refused.value.hint == "give a vocabulary of 701 or more"
    assert next(TokenStream(files, 4, 701).batches(batch=2, part=whole, seed=1))
    with pytest.raises(InvalidInput, match="the data has the token -1"):
        next(TokenStream([np.full(9, -1)], 4, 512).batches(batch=2, part=whole, seed=1))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.bin", b"", "a.bin is empty"),
        ("a.txt", b"", "a.txt is empty"),
        ("a.bin", b"123", "a.bin has 3 bytes, which are no whole number of tokens of 2 bytes"),
    ],
)
def test_files_that_hold_no_tokens_are_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=words):
        open_tokens(tmp_path / name, vocabulary=512)


def test_numbers_that_are_no_tokens_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones(9))
    with pytest.raises(InvalidInput, match=r"a\.npy has numbers of type float64"):
        open_tokens(tmp_path / "a.npy", vocabulary=512)
