"""The weights of a checkpoint as one safetensors file: `export_weights`. Reads a folder; needs no torch.

What is written is whole or not there; the files that it is made from are hashed first.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from windlass.blobs.encoding import SUFFIX, is_plain, read_plain
from windlass.core.dcp import ITEM_BYTES, METADATA, Chunk, Tensor, bytes_of_record, read_index
from windlass.core.errors import Conflict, InvalidInput, NotFound
from windlass.core.integrity import path_of, problem_of
from windlass.core.manifest import Manifest
from windlass.core.safetensors import Plan, render_header

MODEL = "model."
FORMAT = "dcp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    path: Path
    tensors: int
    size_bytes: int


def export_weights(
    folder: Path, manifest: Manifest, target: Path, *, bring: Callable[[list[str]], None] | None = None
) -> Exported:
    """`bring` has these files of the checkpoint in the folder before they are read. Raises Conflict if they are not
    what the manifest says, NotFound if there are no weights among them."""
    if not manifest.format.startswith(FORMAT):
        raise InvalidInput(
            f"step {manifest.step} was saved as '{manifest.format}', and only {FORMAT} can be exported",
            hint="what its program saved by itself lies in the folder as it is",
        )
    _have(folder, manifest, [METADATA], bring)
    index = read_index(bytes(read_plain(folder, METADATA, os.environ)))
    weights = {name.removeprefix(MODEL): tensor for name, tensor in index.items() if name.startswith(MODEL)}
    if not weights:
        raise NotFound(f"{folder.name} has no tensors that are a model's: their names begin with '{MODEL}'")
    _have(folder, manifest, sorted({chunk.file for tensor in weights.values() for chunk in tensor.chunks}), bring)
    about = {"format": "pt", "run": manifest.run_id or "", "step": str(manifest.step)}
    plan = render_header({name: (tensor.dtype, tensor.shape) for name, tensor in weights.items()}, about)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        _write(folder, weights, plan, temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return Exported(path=target, tensors=len(weights), size_bytes=plan.size_bytes)


def _have(folder: Path, manifest: Manifest, names: list[str], bring: Callable[[list[str]], None] | None) -> None:
    known = {file.name.removesuffix(SUFFIX): file for file in manifest.files}
    if missing := [name for name in names if name not in known]:
        raise InvalidInput(f"{missing[0]} is no file of the checkpoint's manifest")
    if bring is not None:
        bring([known[name].name for name in names])
    for name in names:
        if problem := problem_of(folder, known[name]):
            raise Conflict(f"the checkpoint is damaged: {problem}", hint="export another one")
        path_of(folder, known[name])


def _write(folder: Path, weights: Mapping[str, Tensor], plan: Plan, path: Path) -> None:
    with path.open("wb+") as file:
        file.truncate(plan.size_bytes)
        with mmap.mmap(file.fileno(), plan.size_bytes) as target:
            target[: len(plan.header)] = plan.header
            chunks = [(name, tensor, chunk) for name, tensor in weights.items() for chunk in tensor.chunks]
            for file_name, of_file in itertools.groupby(sorted(chunks, key=_file_of), key=_file_of):
                with _opened(folder, file_name) as read:
                    for name, tensor, chunk in of_file:
                        content = read(chunk.start, chunk.length)
                        _place(target, plan.starts[name], tensor, chunk, content)
            target.flush()
        os.fsync(file.fileno())


def _file_of(part: tuple[str, Tensor, Chunk]) -> str:
    return part[2].file


@contextlib.contextmanager
def _opened(folder: Path, name: str) -> Iterator[Callable[[int, int], bytes]]:
    """To read from it so many bytes from there. What is encoded is decoded once."""
    if not is_plain(folder, name):
        content = read_plain(folder, name, os.environ)
        yield lambda start, length: bytes(content[start : start + length])
        return
    with (folder / name).open("rb") as file:

        def read(start: int, length: int) -> bytes:
            file.seek(start)
            return file.read(length)

        yield read


def _place(target: mmap.mmap, start: int, tensor: Tensor, chunk: Chunk, content: bytes) -> None:
    """Lay a box of a tensor into the whole of it, run by run."""
    at = 0
    content = content if chunk.is_bare else bytes_of_record(content)
    for offset, length in runs_of(tensor.shape, chunk.offsets, chunk.sizes):
        begin, size = start + offset * ITEM_BYTES[tensor.dtype], length * ITEM_BYTES[tensor.dtype]
        target[begin : begin + size] = content[at : at + size]
        at += size


def runs_of(shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Where the rows of a box lie in the whole tensor, in its order: position and length of each, in items."""
    if 0 in sizes:
        return
    # Trailing dimensions that the box fills go in one run with the one before them.
    split = len(shape)
    while split > 0 and sizes[split - 1] == shape[split - 1]:
        split -= 1
    inner = 1
    for length in shape[split:]:
        inner *= length
    if split == 0:
        yield 0, inner
        return
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    run = sizes[split - 1] * inner
    outer = sizes[: split - 1]
    counters = [0] * len(outer)
    base = sum(offset * stride for offset, stride in zip(offsets, strides, strict=True))
    while True:
        yield base + sum(count * strides[dim] for dim, count in enumerate(counters)), run
        for dim in range(len(outer) - 1, -1, -1):
            counters[dim] += 1
            if counters[dim] < outer[dim]:
                break
            counters[dim] = 0
        else:
            return
