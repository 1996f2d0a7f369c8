"""Corrects Triton's interpreter, which gives correct kernels wrong numbers on a CPU.

The worker calls `correct_interpreter()` once, before it loads a Triton solution, if TRITON_INTERPRET=1. The interpreter
(triton.runtime.interpreter, 3.6 to 3.9) stores bfloat16 as uint16 bit patterns, but often treats them as integers:

- `tl.dot` multiplies the bit patterns of bfloat16 operands; so do `+`, `*`, `<` and others on bfloat16 tensors;
- `tl.dot` uses a BLAS, which may round an element depending on its place in the matrix; no GPU does that;
- conversion from float32 to bfloat16 truncates, but every GPU rounds to nearest even; other types (float64, integers)
  become
  bfloat16 by writing their integer value into the bits;
- conversion from float32 to e4m3 does not round to nearest, and does not saturate;
- Triton 3.6 converts a one-element array by `int(array)`, which NumPy 2.4 refuses, so a loop over `range(tensor)`
fails.

tests/build/test_interpreter.py shows each of them. Not corrected: reductions of bfloat16 tensors (convert to float32
before `tl.sum`, as an accurate kernel does anyway), and rounding to 8-bit floats other than e4m3.
"""

import inspect
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdnspec.build.e4m3 import E4M3, to_e4m3

MARK = "_gdnspec_corrected"


def correct_interpreter() -> None:
    """Patch Triton's interpreter in this process; calling it again changes nothing."""
    import triton.language as tl
    from triton.runtime import interpreter

    if getattr(interpreter, MARK, False):
        return
    builder = _attribute(interpreter, "InterpreterBuilder")
    handle = _attribute(interpreter, "TensorHandle")
    _attribute(builder, "create_fp_trunc")  # it calls cast_impl; without it, our rounding would not be used
    # All attributes are looked up before the first is replaced: a Triton that lacks one stays unchanged.
    replaced: list[tuple[Any, str, Any]] = [
        (builder, "cast_impl", _casting(_attribute(builder, "cast_impl"), handle, tl, interpreter)),
        (builder, "create_fp_to_fp", _rounding(_attribute(builder, "create_fp_to_fp"), handle, tl, interpreter)),
        (builder, "create_dot", _multiplying(_attribute(builder, "create_dot"), handle, tl)),
        (builder, "binary_op", _computing(_attribute(builder, "binary_op"), handle, tl)),
        (builder, "unary_op", _computing(_attribute(builder, "unary_op"), handle, tl)),
        (interpreter, "_get_np_dtype", _looking_up(_attribute(interpreter, "_get_np_dtype"), tl)),
        (tl.core, "_type_for_tuple_values", _typing(_attribute(tl.core, "_type_for_tuple_values"))),
        (interpreter, "_patch_builtin", _patching(_attribute(interpreter, "_patch_builtin"), tl)),
        (interpreter, "_patch_lang_tensor", _indexing(_attribute(interpreter, "_patch_lang_tensor"))),
    ]
    for owner, name, correction in replaced:
        setattr(owner, name, correction)
    setattr(interpreter, MARK, True)


def _attribute(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        import triton

        where = getattr(owner, "__name__", str(owner))
        raise RuntimeError(
            f"Triton {triton.__version__}: gdnspec cannot correct its interpreter, because {where} has no {name}; "
            "install Triton 3.6 to 3.9, or run Triton solutions on a GPU"
        ) from None


# --- bfloat16 as bits -------------------------------------------------------------------------------------------


def bfloat16_values(bits: NDArray[Any]) -> NDArray[np.float32]:
    """The exact float32 values of bfloat16 bit patterns."""
    return (np.asarray(bits).view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def bfloat16_bits(values: NDArray[Any], truncate: bool = False) -> NDArray[np.uint16]:
    """Values rounded to bfloat16 (to nearest, ties to even; or toward zero), as bit patterns."""
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinity, as on a GPU
        single = np.ascontiguousarray(values, dtype=np.float32).reshape(np.shape(values))
    bits = single.view(np.uint32)
    upper = bits >> np.uint32(16)
    # Add half a unit, less one bit if the result is even. The carry runs into the exponent, which also handles
    # subnormals and the overflow to infinity correctly. Infinities have no low bits and stay.
    nearest = (bits + np.uint32(0x7FFF) + (upper & np.uint32(1))) >> np.uint32(16)
    rounded = upper if truncate else nearest
    # A NaN may have its whole payload in the low bits. The quiet bit keeps it a NaN.
    return np.where(np.isnan(single), upper | np.uint32(0x40), rounded).astype(np.uint16)


def _widened(value: Any, handle: Any, tl: ModuleType) -> Any:
    """A bfloat16 handle as a float32 one with equal values; others unchanged."""
    if value.dtype.scalar != tl.bfloat16:
        return value
    return handle(bfloat16_values(value.data), tl.float32)


# --- the corrections --------------------------------------------------------------------------------------------


def _casting(original: Callable[..., Any], handle: Any, tl: ModuleType, interpreter: ModuleType) -> Callable[..., Any]:
    numpy_type = _attribute(interpreter, "_get_np_dtype")

    def cast_impl(self: Any, src: Any, dst_type: Any, *args: Any, **kwargs: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if source == target or tl.bfloat16 not in (source, target):
            return original(self, src, dst_type, *args, **kwargs)
        values = bfloat16_values(src.data) if source == tl.bfloat16 else src.data
        if target == tl.bfloat16:
            return handle(bfloat16_bits(values), target)
        with np.errstate(over="ignore", invalid="ignore"):
            return handle(values.astype(numpy_type(target)), target)

    return cast_impl


def _rounding(original: Callable[..., Any], handle: Any, tl: ModuleType, interpreter: ModuleType) -> Callable[..., Any]:
    modes = _attribute(_attribute(interpreter, "_ir"), "ROUNDING_MODE")

    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any = None, *args: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if target == tl.float8e4nv and source == tl.float32 and rounding_mode != modes.RTZ:
            return handle(to_e4m3(src.data), target)
        if source == tl.float8e4nv and target == tl.float32:
            return handle(E4M3[src.data], target)
        narrow = source.primitive_bitwidth == 8 or target.primitive_bitwidth == 8
        if source == target or narrow or tl.bfloat16 not in (source, target):
            return original(self, src, dst_type, rounding_mode, *args)
        if target == tl.bfloat16 and rounding_mode == modes.RTZ:
            return handle(bfloat16_bits(src.data, truncate=True), target)
        return self.cast_impl(src, dst_type)

    return create_fp_to_fp


def _multiplying(original: Callable[..., Any], handle: Any, tl: ModuleType) -> Callable[..., Any]:
    def create_dot(self: Any, a: Any, b: Any, d: Any, *args: Any, **kwargs: Any) -> Any:
        a, b = _widened(a, handle, tl), _widened(b, handle, tl)
        if d.data.dtype != np.float32 or 8 in (a.dtype.primitive_bitwidth, b.dtype.primitive_bitwidth):
            return original(self, a, b, d, *args, **kwargs)
        return handle(product(a.data, b.data) + d.data, d.dtype.scalar)

    return create_dot


def product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float32]:
    """a b [.., M, N] in float32, for a [.., M, K] and b [.., K, N]. All elements use the same additions in the same
    order. A BLAS uses other code at the edges of its tiles, where the last bits differ (OpenBLAS on processors without
    AVX-512). An exact symmetry of a kernel would then not be exact."""
    a, b = (np.ascontiguousarray(x, dtype=np.float32) for x in (a, b))
    return np.einsum("...ik,...kj->...ij", a, b, optimize=False)  # type: ignore[no-any-return]


def _computing(original: Callable[..., Any], handle: Any, tl: ModuleType) -> Callable[..., Any]:
    def compute(self: Any, *args: Any) -> Any:
        """binary_op(lhs, rhs, op) and unary_op(arg, op), with bfloat16 operands as their values."""
        *operands, op = args
        if all(operand.dtype.scalar != tl.bfloat16 for operand in operands):
            return original(self, *args)
        result = original(self, *(_widened(operand, handle, tl) for operand in operands), op)
        if result.data.dtype == np.bool_:  # a comparison
            return result
        return handle(bfloat16_bits(result.data), tl.bfloat16)

    return compute


# --- speed: half of the time of a token was spent in these three ----------------------------------------------------


def _looking_up(original: Callable[..., Any], tl: ModuleType) -> Callable[..., Any]:
    """Caches the NumPy type of a Triton type: the original builds a table at each call."""
    of_scalar = cache(original)

    def get_np_dtype(dtype: Any) -> Any:
        scalar = dtype.scalar
        return original(scalar) if isinstance(scalar, tl.pointer_type) else of_scalar(scalar)

    return get_np_dtype


def _patching(original: Callable[..., None], tl: ModuleType) -> Callable[..., None]:
    """Each call of a device function, such as `tl.sum`, searches all names of the language for one that is not replaced
    yet. They are replaced together, so it is enough to test the first."""
    first: dict[Any, str | None] = {}

    def _patch_builtin(package: Any, *args: Any) -> None:
        if package not in first:
            names = (name for name, member in inspect.getmembers(package) if tl.core.is_builtin(member))
            first[package] = next(names, None)
        name = first[package]
        if name is None or tl.core.is_builtin(getattr(package, name)):
            original(package, *args)

    return _patch_builtin


def _typing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Caches the type of a tuple of integers: every intermediate result has such a shape."""
    of_integers = cache(lambda values: original(list(values)))

    def type_for_tuple_values(values: Any, fields: Any = None) -> Any:
        if fields is None and all(type(value) is int for value in values):
            return of_integers(tuple(values))
        return original(values, fields)

    return type_for_tuple_values


def _indexing(original: Callable[..., Any]) -> Callable[..., Any]:
    def patch_lang_tensor(tensor: Any, scope: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(tensor, scope, *args, **kwargs)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))
        return result

    return patch_lang_tensor
