"""Streams of tokens for language models: memory-mapped files, the bytes of a text, or a language made up on the spot.

What a step reads depends on the seed, the step and the size of the whole batch, not on how many processes share it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from windlass.core.errors import InvalidInput

_KINDS = {".bin": None, ".u16": np.uint16, ".u32": np.uint32, ".npy": None, ".txt": np.uint8}


class TokenStream:
    """Windows of `length` tokens, each inside one file. A token that is not below `vocabulary` is refused when it is
    read: nobody looks through all files before."""

    def __init__(self, files: list[NDArray[Any]], length: int, vocabulary: int | None = None) -> None:
        self._vocabulary = vocabulary
        self._files = [tokens for tokens in files if len(tokens) >= length]
        self._length = length
        starts = np.cumsum([len(tokens) - length + 1 for tokens in self._files])
        self._starts: list[int] = starts.tolist()
        if not self._files:
            longest = max((len(tokens) for tokens in files), default=0)
            raise InvalidInput(f"no file has the {length} tokens of one sample; the longest has {longest}")

    def __len__(self) -> int:
        return sum(len(tokens) for tokens in self._files)

    def window(self, number: int) -> NDArray[Any]:
        file = bisect_right(self._starts, number)
        start = number - (self._starts[file - 1] if file else 0)
        return self._files[file][start : start + self._length]

    def batches(self, *, batch: int, part: slice, seed: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets for ever, from step `first` on: of `batch` samples a step, the ones in `part`."""
        step = first
        while True:
            draw = np.random.default_rng((seed, step))
            chosen = draw.integers(self._starts[-1], size=batch)[part]
            windows = [self.window(number) for number in chosen.tolist()]
            rows = torch.from_numpy(np.stack(windows).astype(np.int64))
            if self._vocabulary is not None:
                self._check(rows, windows, self._vocabulary)
            yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
            step += 1

    def _check(self, rows: Tensor, windows: list[NDArray[Any]], vocabulary: int) -> None:
        lowest, highest = (int(one) for one in rows.aminmax())
        if lowest >= 0 and highest < vocabulary:
            return
        wrong = highest if highest >= vocabulary else lowest
        source = next(window for window in windows if (window == wrong).any())
        raise InvalidInput(
            f"{getattr(source, 'filename', None) or 'the data'} has the token {wrong}, but tokens are from 0 to "
            f"{vocabulary - 1}",
            hint=f"give a vocabulary of {wrong + 1} or more" if wrong > 0 else None,
        )


def open_tokens(path: Path, vocabulary: int) -> list[NDArray[Any]]:
    """One file, or all of a folder in the order of their names; nothing is read yet.

    `.bin` holds 16-bit tokens if the vocabulary fits into them, else 32-bit ones; `.txt` is read as bytes.
    """
    found = [path] if path.is_file() else sorted(file for file in path.glob("*") if file.suffix in _KINDS)
    if not found:
        raise InvalidInput(f"there are no tokens at {path}", hint=f"a file or a folder of files {', '.join(_KINDS)}")
    return [_open(file, vocabulary) for file in found]


def _open(file: Path, vocabulary: int) -> NDArray[Any]:
    if not file.stat().st_size:
        raise InvalidInput(f"{file} is empty")
    if file.suffix == ".npy":
        tokens = np.load(file, mmap_mode="r").reshape(-1)
        if tokens.dtype.kind not in "iu":
            raise InvalidInput(f"{file} has numbers of type {tokens.dtype}, but tokens are whole numbers")
        return tokens  # type: ignore[no-any-return]
    kind = _KINDS.get(file.suffix) or (np.uint16 if vocabulary <= 2**16 else np.uint32)
    if file.suffix not in _KINDS:
        kind = np.uint8  # whatever it is, it has bytes
    size, each = file.stat().st_size, np.dtype(kind).itemsize
    if size % each:
        raise InvalidInput(f"{file} has {size} bytes, which are no whole number of tokens of {each} bytes each")
    return np.memmap(file, dtype=kind, mode="r")


def made_up_tokens(count: int, vocabulary: int, seed: int) -> NDArray[Any]:
    """A language to try things with: common and rare words, and half of the words follow from the one before."""
    lanes = 64
    draw = np.random.default_rng(seed)
    length = -(-count // lanes)
    common = 1 / np.arange(1, vocabulary + 1)  # Zipf's law
    words = draw.choice(vocabulary, size=(lanes, length), p=common / common.sum())
    follows = draw.random((lanes, length)) < 0.5
    for at in range(1, length):
        words[:, at] = np.where(follows[:, at], (words[:, at - 1] * 31 + 7) % vocabulary, words[:, at])
    return words.reshape(-1)[:count].astype(np.uint16 if vocabulary <= 2**16 else np.uint32)


def held_apart(files: list[NDArray[Any]], share: float, length: int) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """The files without their ends, and the ends: `share` of each, and long enough for one sample of `length`. Files
    that are too short for both are left out."""
    cuts = [len(tokens) - max(length, int(len(tokens) * share)) for tokens in files]
    kept = [(tokens, cut) for tokens, cut in zip(files, cuts, strict=True) if cut >= length]
    if not kept:
        longest = max(len(tokens) for tokens in files)
        raise InvalidInput(
            f"no file has the {length} tokens of one sample beside its end that is kept aside (held_out={share:g}, and "
            f"{length} at least); the longest has {longest}"
        )
    return [tokens[:cut] for tokens, cut in kept], [tokens[cut:] for tokens, cut in kept]
