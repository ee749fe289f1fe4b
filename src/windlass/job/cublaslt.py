"""Products of bf16 matrices by the cuBLASLt that torch brings along, each in the way that is fastest here.

Torch takes the library's first guess of a way, which is up to a fifth slower than its best; here they are timed when a
shape is first seen on this kind of GPU, and the choice is kept for the next process. And where GELU or its derivative
follows, torch makes another pass over the result, which cuBLASLt does while that is still in registers. Nothing is
built or installed: the library is in the process already.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from windlass.job.choices import Choices, cache_folder

_BF16, _FP32, _COMPUTE_FP32 = 14, 0, 68  # cudaDataType, cublasComputeType_t
_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _AUX_POINTER, _AUX_STRIDE = 3, 4, 7, 11, 12  # cublasLtMatmulDescAttributes_t
_MOST_WORKSPACE = 1  # cublasLtMatmulPreferenceAttributes_t
_WORKSPACE_BYTES = 64 << 20  # what NVIDIA recommends for Hopper is half of it
_CANDIDATES = 8
_MOST_TIMED = 128  # shapes; more have lengths that vary, and take the library's first guess
_TURNS = 3
_CALLS = 4  # a turn
_PROMISING = 1.2  # how much slower than the fastest a way may be on a cool GPU, and still win under load
_ROUNDS = ((5, 150.0), (2, 300.0))  # how many ways, and how many ms each: after some the GPU slows to save power
_WORTH_MS = 0.05  # of a call: below it nothing is gained
_ALIGNED = 8  # elements: 16 bytes

T = TypeVar("T")


class Epilogue(IntEnum):
    NONE = 1
    GELU_AUX = 160  # writes gelu(product), and the product itself beside it
    DGELU = 192  # reads what went into the GELU and multiplies the product with the derivative there


class _Heuristic(ctypes.Structure):
    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class _Shape(NamedTuple):
    """As the library sees it, which counts columns first: what are rows here are columns there, and `a` is `b`."""

    columns: int
    rows: int
    inner: int
    transpose_a: bool
    transpose_b: bool = False
    epilogue: Epilogue = Epilogue.NONE
    adds: bool = False  # another matrix to it

    def __str__(self) -> str:
        turned = "".join("T" if is_turned else "N" for is_turned in (self.transpose_a, self.transpose_b))
        added = " added" if self.adds else ""
        return f"{self.columns}x{self.rows}x{self.inner} {turned} {self.epilogue.name}{added}"


def usable(x: Tensor, weight: Tensor) -> bool:
    """Whether these can be multiplied here: bf16 on the current GPU, of a kind where it has been tried, with sizes and
    places that fit 16-byte accesses. Not where runs are to be the same to the bit: time chooses the way."""
    return (
        x.is_cuda
        and x.dtype == weight.dtype == torch.bfloat16
        and x.device.index == torch.cuda.current_device()
        and torch.cuda.get_device_capability(x.device) >= (9, 0)
        and all(size and size % _ALIGNED == 0 for size in (*x.shape, *weight.shape))
        and not (x.data_ptr() % 16 or weight.data_ptr() % 16)
        and not torch.are_deterministic_algorithms_enabled()
        and _library() is not None
    )


def multiply(a: Tensor, b: Tensor, *, added: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """`a @ b`, plus `added`; both may be transposes of contiguous matrices. `out` is contiguous, and may be what is
    added."""
    (rows, inner), columns = a.shape, b.shape[1]
    a, a_turned = _as_it_lies(a)
    b, b_turned = _as_it_lies(b)
    result = a.new_empty(rows, columns) if out is None else out
    assert result.is_contiguous()
    added = None if added is None else added.contiguous()
    product = _product(_Shape(columns, rows, inner, b_turned, a_turned, adds=added is not None), a.device)
    if not product.is_known:
        a, b = a.t() if a_turned else a, b.t() if b_turned else b
        return torch.mm(a, b, out=result) if added is None else torch.addmm(added, a, b, out=result)
    product.run(b, a, result, added=added)
    return result


def linear_gelu(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """`gelu(x @ weight.T)` and `x @ weight.T`, for contiguous x[rows, in] and weight[out, in]."""
    (rows, inner), columns = x.shape, weight.shape[0]
    shape = _Shape(columns, rows, inner, transpose_a=True, epilogue=Epilogue.GELU_AUX)

    def at_once() -> tuple[Tensor, Tensor]:
        result, before = x.new_empty(rows, columns), x.new_empty(rows, columns)
        _product(shape, x.device).run(weight, x, result, aux=before)
        return result, before

    def one_by_one() -> tuple[Tensor, Tensor]:
        before = multiply(x, weight.t())
        return functional.gelu(before, approximate="tanh"), before

    return _by((shape,), x.device, at_once, one_by_one)


def product_dgelu(gradient: Tensor, weight: Tensor, before: Tensor) -> Tensor:
    """`(gradient @ weight) * gelu'(before)`, for contiguous gradient[rows, in], weight[in, out], before[rows, out]."""
    (rows, inner), columns = gradient.shape, weight.shape[1]
    shape = _Shape(columns, rows, inner, transpose_a=False, epilogue=Epilogue.DGELU)

    def at_once() -> Tensor:
        result = gradient.new_empty(rows, columns)
        _product(shape, gradient.device).run(weight, gradient, result, aux=before)
        return result

    def one_by_one() -> Tensor:
        result: Tensor = torch.ops.aten.gelu_backward(multiply(gradient, weight), before, approximate="tanh")
        return result

    return _by((shape,), gradient.device, at_once, one_by_one)


def joint_gradients(x: Tensor, weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Of layers that all take `x`: the gradient by `x`, and that by the weights, one below the other.

    To put the gradients side by side costs a pass over them, which products of each of them alone do without.
    """
    widths = [len(weight) for weight in weights]

    def at_once() -> tuple[Tensor, Tensor]:
        gradient = torch.cat(tuple(gradients), dim=1)
        return multiply(gradient, torch.cat(tuple(weights))), multiply(gradient.t(), x)

    def one_by_one() -> tuple[Tensor, Tensor]:
        d_x, d_weight = torch.empty_like(x), x.new_empty(sum(widths), x.shape[1])
        parts = zip(gradients, weights, torch.split(d_weight, widths), strict=True)
        for number, (gradient, weight, d_part) in enumerate(parts):
            multiply(gradient, weight, added=d_x if number else None, out=d_x)
            multiply(gradient.t(), x, out=d_part)
        return d_x, d_weight

    (rows, inner), device = x.shape, x.device
    shapes = tuple(_Shape(inner, rows, width, transpose_a=False, adds=True) for width in widths)
    return _by(shapes, device, at_once, one_by_one)


def _by(shapes: tuple[_Shape, ...], device: torch.device, at_once: Callable[[], T], one_by_one: Callable[[], T]) -> T:
    """Not every shape has a good way to do it at once: half the speed of the product alone has been seen."""
    if not all(_product(shape, device).is_known for shape in shapes):
        return one_by_one()
    ways = (at_once, one_by_one)
    return ways[_choose(("at once", *shapes), device, lambda: ways)]()


def _choose(
    what: tuple[str | _Shape, ...], device: torch.device, ways: Callable[[], Sequence[Callable[[], Any]]]
) -> int:
    """The fastest of the ways to do it: as it was found before, here or by another process, or as it is found now."""
    chosen = _chosen.get((what, device))
    if chosen is not None:
        return chosen
    if len(_chosen) >= _MOST_TIMED or torch.cuda.is_current_stream_capturing():
        return 0  # many lengths, each seen once; or a graph, in which nothing can be timed
    name, choices, found = " ".join(map(str, what)), _choices(device), ways()
    chosen = choices.get(name, len(found))
    if chosen is None:
        chosen = _fastest(found)
        choices.put(name, chosen)
    _chosen[what, device] = chosen
    return chosen


_chosen: dict[tuple[tuple[str | _Shape, ...], torch.device], int] = {}


@functools.cache
def _choices(device: torch.device) -> Choices:
    """By the kind of GPU, and by the library: another one may list its ways in another order."""
    version = _library().cublasLtGetVersion()  # type: ignore[union-attr]
    return Choices(cache_folder() / "products" / f"{torch.cuda.get_device_name(device)} {version}.json")


def _fastest(ways: Sequence[Callable[[], Any]]) -> int:
    """Which of these is the fastest when the GPU does nothing else for long.

    Under load it is slowed down to stay within its power, and then the way wins that takes the least energy: a tenth
    lies between that one and the winner of a short race.
    """
    # In turns, since the clock of a GPU that warms up falls meanwhile.
    turns = [[_time(way, _CALLS) for way in ways] for _ in range(_TURNS)]
    times = [min(of_one) for of_one in zip(*turns, strict=True)]
    left = sorted(range(len(ways)), key=times.__getitem__)
    first = times[left[0]]
    if first < _WORTH_MS:
        return left[0]
    left = [number for number in left if times[number] <= _PROMISING * first]
    for most, load in _ROUNDS:
        left = left[:most]
        if len(left) > 1:
            calls = max(_CALLS, round(load / 2 / first))
            for number in left:
                times[number] = _time(ways[number], calls, before=calls)
            left.sort(key=times.__getitem__)
    return left[0]


def _time(way: Callable[[], Any], calls: int, *, before: int = 1) -> float:
    """Milliseconds a call, after some `before`."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    for _ in range(before):
        way()
    began.record()
    for _ in range(calls):
        way()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended)) / calls


class _Product:
    def __init__(self, shape: _Shape, device: torch.device) -> None:
        library = _library()
        assert library is not None
        self._library: Any = library
        self._shape = shape
        self._description = ctypes.c_void_p()
        self._call("MatmulDescCreate", ctypes.byref(self._description), _COMPUTE_FP32, _FP32)
        self._set(_TRANSPOSE_A, ctypes.c_int32(shape.transpose_a))
        self._set(_TRANSPOSE_B, ctypes.c_int32(shape.transpose_b))
        self._set(_EPILOGUE, ctypes.c_int32(shape.epilogue))
        if shape.epilogue is not Epilogue.NONE:
            self._set(_AUX_STRIDE, ctypes.c_int64(shape.columns))
            self._set(_AUX_POINTER, ctypes.c_void_p(256))  # any that is aligned; the real one comes with each call
        self._a = self._layout(shape.columns, shape.inner, turned=shape.transpose_a)
        self._b = self._layout(shape.inner, shape.rows, turned=shape.transpose_b)
        self._d = self._layout(shape.columns, shape.rows)
        self._candidates = self._ask(device)

    @property
    def is_known(self) -> bool:
        """Whether the library has any way for it."""
        return bool(self._candidates)

    def run(self, a: Tensor, b: Tensor, d: Tensor, *, added: Tensor | None = None, aux: Tensor | None = None) -> None:
        def ways() -> list[Callable[[], Any]]:
            is_same = added is not None and added.data_ptr() == d.data_ptr()
            room = torch.empty_like(d) if is_same else d  # where every try would add to what is added
            return [functools.partial(self._launch, way, a, b, room, added, aux) for way in self._candidates]

        self._launch(self._candidates[_choose((self._shape,), a.device, ways)], a, b, d, added, aux)

    def _launch(
        self, how: _Heuristic, a: Tensor, b: Tensor, d: Tensor, added: Tensor | None, aux: Tensor | None
    ) -> None:
        if aux is not None:
            self._set(_AUX_POINTER, ctypes.c_void_p(aux.data_ptr()))
        workspace = torch.empty(how.workspace, dtype=torch.uint8, device=a.device)
        one, kept = ctypes.c_float(1.0), ctypes.c_float(self._shape.adds)
        c = d if added is None else added
        at_a, at_b, at_c, at_d = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (a, b, c, d))
        self._call(
            "Matmul",
            _handle(),
            self._description,
            ctypes.byref(one),
            *(at_a, self._a, at_b, self._b),
            ctypes.byref(kept),
            *(at_c, self._d, at_d, self._d),
            ctypes.byref(how.algorithm),
            ctypes.c_void_p(workspace.data_ptr()),
            ctypes.c_size_t(how.workspace),
            ctypes.c_void_p(torch.cuda.current_stream(a.device).cuda_stream),
        )

    def _ask(self, device: torch.device) -> list[_Heuristic]:
        preference, workspace = ctypes.c_void_p(), ctypes.c_size_t(_WORKSPACE_BYTES)
        self._call("MatmulPreferenceCreate", ctypes.byref(preference))
        self._call("MatmulPreferenceSetAttribute", preference, _MOST_WORKSPACE, ctypes.byref(workspace), 8)
        found, count = (_Heuristic * _CANDIDATES)(), ctypes.c_int()
        layouts = (self._a, self._b, self._d, self._d)
        with torch.cuda.device(device):
            self._call(
                "MatmulAlgoGetHeuristic",
                *(_handle(), self._description, *layouts, preference, _CANDIDATES),
                *(found, ctypes.byref(count)),
            )
        self._call("MatmulPreferenceDestroy", preference)
        return [way for way in found[: count.value] if way.status == 0]

    def _layout(self, rows: int, columns: int, *, turned: bool = False) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        if turned:
            rows, columns = columns, rows
        sizes = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows))
        self._call("MatrixLayoutCreate", ctypes.byref(layout), _BF16, *sizes)
        return layout

    def _set(self, attribute: int, value: Any) -> None:
        size = ctypes.sizeof(value)
        self._call("MatmulDescSetAttribute", self._description, attribute, ctypes.byref(value), size)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, f"cublasLt{name}")(*arguments)
        if status:
            raise RuntimeError(f"cublasLt{name} failed with status {status}")


@functools.cache
def _product(shape: _Shape, device: torch.device) -> _Product:
    return _Product(shape, device)


def _as_it_lies(matrix: Tensor) -> tuple[Tensor, bool]:
    """The same memory as a contiguous matrix, and whether that is the transpose of what was given."""
    if matrix.t().is_contiguous() and not matrix.is_contiguous():
        return matrix.t(), True
    return matrix.contiguous(), False


def _handle() -> ctypes.c_void_p:
    handle: int = torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call]
    return ctypes.c_void_p(handle)  # cuBLAS's is also cuBLASLt's


@functools.cache
def _library() -> ctypes.CDLL | None:
    """The very file that torch has loaded; None if there is none."""
    _handle()  # has torch load it
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "/libcublasLt.so" in line:
                return ctypes.CDLL(line.split(maxsplit=5)[5].strip())
    return None
