"""Where the tensors of a DCP checkpoint lie, read without torch: `read_index`.

Its `.metadata` is a pickle of torch's own classes. They are stood in for by empty ones, and nothing else is let in, so
reading a file of unknown origin runs no code of its making.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windlass.core.errors import InvalidInput

METADATA = ".metadata"


class InvalidIndex(InvalidInput):
    """The index of a checkpoint that cannot be read, or is none that DCP wrote."""

    code = "invalid_index"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A box of a tensor, in one piece in one file: its bytes from `start`, or as `torch.save` wrote them there."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int
    is_bare: bool  # the bytes themselves, not a record of torch.save


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    dtype: str  # as torch calls it: bfloat16
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


ITEM_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2"), 1),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    "complex128": 16,
}


def read_index(metadata: bytes) -> dict[str, Tensor]:
    """Every tensor by its name, such as `model.layers.0.weight`. What is no tensor is left out."""
    try:
        index = _Unpickler(io.BytesIO(metadata)).load()
        places = {(key.fqn, _numbers(key.offset)): info for key, info in index.storage_data.items()}
        return {
            name: _tensor(name, saved, places)
            for name, saved in index.state_dict_metadata.items()
            if isinstance(saved, _StoodIn) and "chunks" in saved.__dict__
        }
    except (pickle.UnpicklingError, AttributeError, KeyError, TypeError, ValueError, EOFError, IndexError) as error:
        raise InvalidIndex(f"the checkpoint's {METADATA} cannot be read: {error!r}") from None


def bytes_of_record(record: bytes) -> bytes:
    """A tensor's bytes in what `torch.save` wrote of it alone. Raises InvalidIndex if they are not in its order."""
    with zipfile.ZipFile(io.BytesIO(record)) as archive:
        root = archive.namelist()[0].partition("/")[0]
        tensor = _Unpickler(io.BytesIO(archive.read(f"{root}/data.pkl"))).load()
        _, offset, size, strides, *_ = tensor.args
        if offset != 0 or not _is_in_order(_numbers(size), _numbers(strides)):
            raise InvalidIndex("a tensor was saved in another order than its own; torch has to read it")
        return archive.read(f"{root}/data/0")


def _is_in_order(size: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    wanted = 1
    for length, stride in zip(reversed(size), reversed(strides), strict=True):
        if length != 1 and stride != wanted:
            return False
        wanted *= length
    return True


def _tensor(name: str, saved: Any, places: Mapping[Any, Any]) -> Tensor:
    dtype = str(saved.properties.state[0])
    if dtype not in ITEM_BYTES:
        raise InvalidIndex(f"{name} is of the unknown type {dtype}; known: {', '.join(ITEM_BYTES)}")
    chunks = []
    for chunk in saved.chunks:
        offsets, sizes = _numbers(chunk.offsets), _numbers(chunk.sizes)
        info = places[(name, offsets)]
        start = getattr(info, "data_start", None)
        chunks.append(
            Chunk(
                offsets=offsets,
                sizes=sizes,
                file=str(info.relative_path),
                start=int(info.offset if start is None else start),
                length=int(info.length) if start is None else _count(sizes) * ITEM_BYTES[dtype],
                is_bare=start is not None,
            )
        )
    return Tensor(dtype=dtype, shape=_numbers(saved.size), chunks=tuple(chunks))


def _numbers(size: Any) -> tuple[int, ...]:
    return tuple(int(number) for number in size)


def _count(sizes: tuple[int, ...]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


class _StoodIn:
    """Any of torch's classes: takes what it is made of, and does nothing."""

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)
        else:
            self.state = state

    def __hash__(self) -> int:
        # A key of a dictionary is hashed before its state is there.
        return id(self)


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, _: Any) -> Any:
        """A tensor's storage, which is read otherwise."""
        return None

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch", "Size"):
            return tuple
        if module == "torch" and name in ITEM_BYTES:
            return name
        if module in ("torch", "pathlib") or module.startswith("torch."):
            return _StoodIn
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        raise InvalidIndex(f"the checkpoint's {METADATA} wants {module}.{name}, which is nothing of DCP's")
