"""Products of bf16 matrices whose last stage is GELU or its derivative, by the cuBLASLt that torch brings along.

Torch offers the plain product and then a pass over its result; cuBLASLt does both while the result is still in
registers. Nothing is built or installed for it: the library is in the process already, and is called as it is.
"""

from __future__ import annotations

import ctypes
import functools
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

_BF16, _FP32, _COMPUTE_FP32 = 14, 0, 68  # cudaDataType, cublasComputeType_t
_TRANSPOSE_A, _EPILOGUE, _AUX_POINTER, _AUX_STRIDE = 3, 7, 11, 12  # cublasLtMatmulDescAttributes_t
_MOST_WORKSPACE = 1  # cublasLtMatmulPreferenceAttributes_t
_WORKSPACE_BYTES = 64 << 20  # what NVIDIA recommends for Hopper is half of it
_CANDIDATES = 8
_TURNS = 3
_ALIGNED = 8  # elements: 16 bytes


class Epilogue(IntEnum):
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


def usable(x: Tensor, weight: Tensor) -> bool:
    """Whether these can be multiplied here: bf16 on a GPU where it has been tried, sizes that fit 16-byte accesses."""
    return (
        x.is_cuda
        and x.dtype == weight.dtype == torch.bfloat16
        and torch.cuda.get_device_capability(x.device) >= (9, 0)
        and all(size % _ALIGNED == 0 for size in weight.shape)
        and _library() is not None
    )


def linear_gelu(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """`gelu(x @ weight.T)` and `x @ weight.T`, for contiguous x[rows, in] and weight[out, in]."""
    (rows, inner), columns = x.shape, weight.shape[0]
    result, before = x.new_empty(rows, columns), x.new_empty(rows, columns)
    product = _product(columns, rows, inner, Epilogue.GELU_AUX, x.device)
    product.run(weight, x, result, before)
    return result, before


def product_dgelu(gradient: Tensor, weight: Tensor, before: Tensor) -> Tensor:
    """`(gradient @ weight) * gelu'(before)`, for contiguous gradient[rows, in], weight[in, out], before[rows, out]."""
    (rows, inner), columns = gradient.shape, weight.shape[1]
    result = gradient.new_empty(rows, columns)
    product = _product(columns, rows, inner, Epilogue.DGELU, gradient.device)
    product.run(weight, gradient, result, before)
    return result


class _Product:
    """One shape. The library counts columns first, so what are rows here are columns there, and the other way round."""

    def __init__(self, columns: int, rows: int, inner: int, epilogue: Epilogue, device: torch.device) -> None:
        library = _library()
        assert library is not None
        self._library: Any = library
        self._description = ctypes.c_void_p()
        self._call("MatmulDescCreate", ctypes.byref(self._description), _COMPUTE_FP32, _FP32)
        transposed = epilogue is Epilogue.GELU_AUX
        self._set(_TRANSPOSE_A, ctypes.c_int32(1 if transposed else 0))
        self._set(_EPILOGUE, ctypes.c_int32(epilogue))
        self._set(_AUX_STRIDE, ctypes.c_int64(columns))
        self._a = self._layout(inner, columns) if transposed else self._layout(columns, inner)
        self._b, self._d = self._layout(inner, rows), self._layout(columns, rows)
        self._candidates = self._ask(device)
        self._chosen: _Heuristic | None = None

    def run(self, a: Tensor, b: Tensor, d: Tensor, aux: Tensor) -> None:
        if self._chosen is None:
            # The library's first guess is up to a fifth slower than its best. In turns, since the clock of a GPU that
            # warms up falls meanwhile.
            turns = [[self._time(candidate, a, b, d, aux) for candidate in self._candidates] for _ in range(_TURNS)]
            times = [min(of_one) for of_one in zip(*turns, strict=True)]
            self._chosen = self._candidates[times.index(min(times))]
        self._launch(self._chosen, a, b, d, aux)

    def _launch(self, how: _Heuristic, a: Tensor, b: Tensor, d: Tensor, aux: Tensor) -> None:
        self._set(_AUX_POINTER, ctypes.c_void_p(aux.data_ptr()))
        workspace = torch.empty(how.workspace, dtype=torch.uint8, device=a.device)
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        at_a, at_b, at_d = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (a, b, d))
        self._call(
            "Matmul",
            _handle(),
            self._description,
            ctypes.byref(one),
            *(at_a, self._a, at_b, self._b),
            ctypes.byref(zero),
            *(at_d, self._d, at_d, self._d),
            ctypes.byref(how.algorithm),
            ctypes.c_void_p(workspace.data_ptr()),
            ctypes.c_size_t(how.workspace),
            ctypes.c_void_p(torch.cuda.current_stream(a.device).cuda_stream),
        )

    def _time(self, candidate: _Heuristic, *tensors: Tensor) -> float:
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self._launch(candidate, *tensors)
        began.record()
        for _ in range(4):
            self._launch(candidate, *tensors)
        ended.record()
        ended.synchronize()
        return float(began.elapsed_time(ended))

    def _ask(self, device: torch.device) -> list[_Heuristic]:
        preference, workspace = ctypes.c_void_p(), ctypes.c_size_t(_WORKSPACE_BYTES)
        self._call("MatmulPreferenceCreate", ctypes.byref(preference))
        self._call("MatmulPreferenceSetAttribute", preference, _MOST_WORKSPACE, ctypes.byref(workspace), 8)
        self._set(_AUX_POINTER, ctypes.c_void_p(256))  # any that is aligned; the real one comes with each call
        found, count = (_Heuristic * _CANDIDATES)(), ctypes.c_int()
        layouts = (self._a, self._b, self._d, self._d)
        with torch.cuda.device(device):
            self._call(
                "MatmulAlgoGetHeuristic",
                *(_handle(), self._description, *layouts, preference, _CANDIDATES),
                *(found, ctypes.byref(count)),
            )
        self._call("MatmulPreferenceDestroy", preference)
        if not count.value:
            raise RuntimeError(f"cuBLASLt knows no way to multiply {layouts} with {self._description}")
        return list(found[: count.value])

    def _layout(self, rows: int, columns: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
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


@functools.lru_cache(maxsize=64)
def _product(columns: int, rows: int, inner: int, epilogue: Epilogue, device: torch.device) -> _Product:
    return _Product(columns, rows, inner, epilogue, device)


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
