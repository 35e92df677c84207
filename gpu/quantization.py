"""Codes of a few bits with their scales, and products of 8-bit codes (kernels/quantize.cu, kernels/matmul_int8.cu)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import arguments
from .launching import Backend, Launcher, ceil_div, cpp_type

THREADS, A_SHARE, MOST_SHARES = 256, 4096, 1024                                 # numbers of a block that one thread block reads
TILE = 32                                                                       # rows and columns of a product in one thread block
MOST_PRODUCTS = (2**31 - 1) // 128**2                                           # as many as int32 holds whatever the codes
INFINITY_BITS = 0x7F800000
SMALL_CODES = {"signed char": "int8", "unsigned char": "uint8", "int": "int32"}


def quantize(
    x: Any, *, bits: int, axis: int | None = None, group: int | None = None, symmetric: bool = True, scale: Any = None, zero: Any = None,
    backend: str | Backend = "cuda",
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Numbers as codes of a few bits and a scale: x ~ (q - zero) scale.

        symmetric   scale = max |x| / (2^(bits-1) - 1),               zero = 0,                   q = clip(rint(x / scale))
        affine      scale = (max(x, 0) - min(x, 0)) / (2^bits - 1),   zero = rint(-min(x, 0) / scale),
                    q = clip(rint(x / scale) + zero)

    `axis`: the axis along which scales vary; `group`: one scale for each run of so many along the last axis, the last may be short;
    neither: one for all. Given `scale` (and `zero`, for affine), those are used. A block of zeros has scale 1.
    x of any shape in float32, float16 or bfloat16, computed in float32. Returns q in int8 (symmetric) or uint8 (affine) up to 8 bits,
    else int32; scale in float32 and zero in int64, (1,), (channels,) or (..., ceil(n / group)).

    >>> q, scale, zero = quantize(np.array([[1, -2], [0.5, 127]], np.float32), bits=8, axis=0, backend="emulated")
    >>> q.tolist(), scale.tolist()
    ([[64, -127], [0, 127]], [0.01574803143739700..., 1.0])

    Raises ValueError for NaN and infinities, axis beside group, scales that are not positive; RuntimeError where there is no device.
    Error bound: `properties.bounds.quantize_bound`. Source: Jacob et al. 2018 (arXiv 1712.05877), section 2.1.
    """
    x = arguments.floats("x", x)
    bits = arguments.whole_number("bits", bits, least=2)
    if bits > 16:
        raise ValueError(f"bits: got {bits}; want 2..16")
    per_block, layout = _blocks(tuple(x.shape), axis, group)
    high, blocks = (2 ** (bits - 1) - 1 if symmetric else 2**bits - 1), math.prod(per_block)
    code = "int" if bits > 8 else "signed char" if symmetric else "unsigned char"
    run = Launcher(backend, x=x)
    given = _given(run, scale, zero, per_block, high, symmetric)
    sizes, taken = run.new((blocks, 2), "uint32", fill=0), run.take(x)
    q, s, z = run.new(x.shape, SMALL_CODES[code]), run.new(per_block, "float32"), run.new(per_block, "int64")
    grid = (blocks, min(MOST_SHARES, max(1, ceil_div(ceil_div(math.prod(x.shape), max(blocks, 1)), A_SHARE))))
    run.launch("quantize.cu", f"extremes<{cpp_type(x)}>", grid, (THREADS,), [taken, sizes, *layout])
    if blocks and int(sizes.max()) >= INFINITY_BITS:
        raise ValueError("x: got NaN or an infinity; want finite numbers")
    run.launch("quantize.cu", f"quantize<{cpp_type(x)}, {code}>", grid, (THREADS,),
               [taken, sizes, *given, q, s, z, *layout, -float(high) if symmetric else 0.0, float(high), bool(symmetric)],
               outputs=("q", "scale", "zero"))
    return run.give(q, SMALL_CODES[code]), run.give(s, "float32"), run.give(z, "int64")


def quantized_matmul(x: Any, q: Any, scale: Any, *, x_scale: Any, bias: Any = None, backend: str | Backend = "cuda") -> Any:
    """The product of two matrices of 8-bit codes, in the format of the scales.

        out = x_scale scale (x q) + bias,      x q in int32

    x (N, C) and q (C, M) int8; scale () or (M,), x_scale () or (N,), bias (M,), in float32, float16 or bfloat16, one for all.
    C up to 131,071: int32 holds every such sum. C = 0 gives the bias.

    >>> x, q = np.array([[1, 2]], np.int8), np.array([[3], [4]], np.int8)
    >>> quantized_matmul(x, q, np.float32(0.5), x_scale=np.float32(2), backend="emulated").tolist()
    [[11.0]]

    Raises ValueError or TypeError that names the argument, NotImplementedError for a larger C, RuntimeError where there is no device.
    Error bound: `properties.bounds.quantized_matmul_bound`. Source: Jacob et al. 2018 (arXiv 1712.05877), section 2.2.
    """
    x, q = (_int8(name, codes) for name, codes in (("x", x), ("q", q)))
    (N, C), M = x.shape, q.shape[1]
    if q.shape[0] != C:
        raise ValueError(f"q: got shape {tuple(q.shape)} beside x {tuple(x.shape)}; want (C, M) beside (N, C)")
    if C > MOST_PRODUCTS:
        raise NotImplementedError(f"x: got {C:,} columns; the kernel takes at most {MOST_PRODUCTS:,}, whose sums int32 always holds")
    scale, x_scale = _factor("scale", scale, M), _factor("x_scale", x_scale, N, like=scale)
    bias = None if bias is None else arguments.floats("bias", bias, (M,), like=scale)
    arrays = {"x": x, "q": q, "scale": scale, "x_scale": x_scale} | ({} if bias is None else {"bias": bias})
    run, dtype = Launcher(backend, **arrays), scale.dtype.name
    out = run.new((N, M), dtype)
    run.launch("matmul_int8.cu", f"matmul_int8<{cpp_type(scale)}>", (ceil_div(M, TILE), ceil_div(N, TILE)), (THREADS,),
               [run.take(x), run.take(q), run.take(scale), run.take(x_scale), None if bias is None else run.take(bias), out, N, C, M,
                int(scale.size > 1), int(x_scale.size > 1)], outputs=("out",))
    return run.give(out, dtype)


def _blocks(shape: tuple[int, ...], axis: int | None, group: int | None) -> tuple[tuple[int, ...], list[int]]:
    """The shape of one number a block, and (before, n, behind, group) as the kernel takes them."""
    if axis is not None and group is not None:
        raise ValueError(f"axis, group: got {axis} and {group}; want one of them, or none")
    if group is not None:
        group = arguments.whole_number("group", group, least=1)
        if not shape:
            raise ValueError("group: got a number without axes; want at least one axis")
        return (*shape[:-1], ceil_div(shape[-1], group)), [math.prod(shape[:-1]), shape[-1], 1, group]
    if axis is None:
        return (1,), [1, 1, math.prod(shape), 0]
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"axis: got {axis} for {len(shape)} axes; want -{len(shape)}..{len(shape) - 1}")
    axis %= len(shape)
    return (shape[axis],), [math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]), 0]


def _given(run: Launcher, scale: Any, zero: Any, per_block: tuple[int, ...], high: int, symmetric: bool) -> tuple[Any, Any]:
    """scale and zero where the kernels run, None where they are the kernel's to find."""
    if scale is None:
        if zero is not None:
            raise ValueError("zero: got one without a scale; want both, or none")
        return None, None
    scale = arguments.floats("scale", scale, per_block)
    host = np.asarray(scale.get() if hasattr(scale, "get") else scale, np.float32)
    if not (np.isfinite(host) & (host > 0)).all():
        raise ValueError(f"scale: got {host[~(np.isfinite(host) & (host > 0))][0]}; want finite numbers > 0")
    if symmetric:
        if zero is not None and arguments.integers("zero", zero, least=-(2**31), most=2**31 - 1).any():
            raise ValueError("zero: got one with symmetric=True; want None, or zeros")
        return run.take(host), None
    if zero is None:
        raise ValueError("zero: got None beside a scale with symmetric=False; want the codes of 0")
    return run.take(host), run.take(arguments.integers("zero", zero, least=0, most=high, shape=per_block), "int64")


def _int8(name: str, codes: Any) -> Any:
    codes = codes if hasattr(codes, "dtype") else np.asarray(codes)
    if codes.dtype != np.int8:
        raise TypeError(f"{name}: got dtype {codes.dtype}; want int8")
    if codes.ndim != 2:
        raise ValueError(f"{name}: got shape {tuple(codes.shape)}; want 2 axes")
    return codes


def _factor(name: str, scale: Any, n: int, like: Any = None) -> Any:
    scale = arguments.floats(name, scale, like=like)
    if tuple(scale.shape) not in ((), (1,), (n,)):
        raise ValueError(f"{name}: got shape {tuple(scale.shape)}; want () or ({n},)")
    return scale
