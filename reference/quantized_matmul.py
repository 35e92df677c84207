"""Matrix products of codes: whole numbers added up in int32, scales and bias applied in floating point; and outliers kept apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Bool, Float64, Int64
from .quantization import dequantize, quantize

INT32_MAX = 2**31 - 1


def quantized_matmul(
    x: ArrayLike, q: ArrayLike, scale: ArrayLike, *, x_scale: ArrayLike, bias: ArrayLike | None = None
) -> Float64:
    """The product of two matrices of 8-bit codes.

        out = x_scale scale (x q) + bias,      x q in int32

    x (N, C) and q (C, M) in -128..127; scale () or (M,), x_scale () or (N,); bias (M,), a float, added once to the scaled sum.
    Returns out (N, M) in float64; C = 0 gives the bias.

    The sum is exact where int32 holds it, whatever the order: partial sums may wrap around and come back. Raises ValueError where
    int32 does not hold it, which takes C > 131,071 products (2^31 / 128^2).
    Error bound: `properties.bounds.quantized_matmul_bound`.
    Source: Jacob et al. 2018 (arXiv 1712.05877), section 2.2; one scale a row and a column: Dettmers et al. 2022 (arXiv 2208.07339).

    >>> quantized_matmul([[1, 2]], [[3], [4]], 0.5, x_scale=2.0, bias=[0.25]).tolist()
    [[11.25]]
    """
    a, b = int8_codes("x", x), int8_codes("q", q)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"q: got shape {b.shape} beside x {a.shape}; want (C, M) beside (N, C)")
    (N, _), M = a.shape, b.shape[1]
    total = integer_product(a, b)
    if total.size and int(np.abs(total).max()) > INT32_MAX:
        at = np.unravel_index(int(np.abs(total).argmax()), total.shape)
        raise ValueError(f"x, q: the sum of products at {[int(i) for i in at]} is {total[at]}; want one that int32 holds")
    s = _scales("scale", scale, M)
    xs = _scales("x_scale", x_scale, N)
    out = (xs.reshape(-1, 1) * s.reshape(1, -1)) * total.astype(np.float64)
    return out if bias is None else out + arguments.widen("bias", bias, (M,))


def integer_product(a: Int64, b: Int64) -> Int64:
    """The exact product of two matrices of 8-bit codes, by float64, which holds every sum below 2^53.

    >>> integer_product(np.array([[127, -128]]), np.array([[127], [1]])).tolist()
    [[16001]]
    """
    return np.asarray((a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64))


def int8_codes(name: str, q: ArrayLike) -> Int64:
    """Codes in -128..127 as int64.

    >>> int8_codes("q", [-128, 127]).tolist()
    [-128, 127]
    """
    return arguments.integers(name, q, least=-128, most=127)


def matmul_with_outliers(x: ArrayLike, w: ArrayLike, *, threshold: float = 6.0) -> tuple[Float64, Bool]:
    """x w with the columns of x that hold an outlier in floating point, and the rest in 8 bits.

        outlier = columns c with max_n |x[n, c]| >= threshold
        out = x[:, outlier] w[outlier] + dequantized(int8(x[:, rest]) int8(w[rest]))

    x (N, C), w (C, M); x is quantized by rows and w by columns, symmetric, each over the rest alone. Returns out (N, M), and which
    columns are outliers, (C,).
    Source: Dettmers et al. 2022 (arXiv 2208.07339), section 3.2.

    >>> out, outlier = matmul_with_outliers([[1.0, 100.0]], [[1.0], [0.37]], threshold=6.0)
    >>> out.tolist(), outlier.tolist()
    ([[38.0]], [False, True])
    """
    x, w = arguments.widen("x", x, ndim=2), arguments.widen("w", w, ndim=2)
    if x.shape[1] != w.shape[0]:
        raise ValueError(f"w: got shape {w.shape} beside x {x.shape}; want (C, M) beside (N, C)")
    threshold = arguments.real_number("threshold", threshold, positive=True)
    outlier = np.abs(x).max(axis=0, initial=0.0) >= threshold                   # (C,)
    rows, row_scale, _ = quantize(x[:, ~outlier], bits=8, axis=0)
    columns, column_scale, _ = quantize(w[~outlier], bits=8, axis=1)
    rest = quantized_matmul(rows, columns, column_scale, x_scale=row_scale)
    return np.asarray(x[:, outlier] @ w[outlier] + rest), outlier


def quantization_errors(w: ArrayLike, x: ArrayLike, *, bits: int = 8, axis: int | None = None) -> tuple[float, float]:
    """What quantized weights cost: the largest error of a weight, and the relative error of w x in the Frobenius norm.

        max |w - w'|,      ||w x - w' x|| / ||w x||,      w' = dequantize(quantize(w))

    w (M, C), x (C, N). `axis=0`: one scale a row.

    >>> quantization_errors([[1.27, 0.014]], [[0.0], [1.0]])
    (0.004, 0.2857142857142857)
    """
    w, x = arguments.widen("w", w, ndim=2), arguments.widen("x", x, ndim=2)
    q, scale, _ = quantize(w, bits=bits, axis=axis)
    back = dequantize(q, scale, axis=axis)
    exact = w @ x
    size = float(np.linalg.norm(exact))
    return float(np.abs(w - back).max(initial=0.0)), float(np.linalg.norm(exact - back @ x)) / size if size else 0.0


def _scales(name: str, scale: ArrayLike, n: int) -> Float64:
    s = arguments.widen(name, scale)
    if s.shape not in ((), (n,), (1,)):
        raise ValueError(f"{name}: got shape {s.shape}; want () or ({n},)")
    if not np.isfinite(s).all():
        raise ValueError(f"{name}: got {s[~np.isfinite(s)][0]}; want finite numbers")
    return s
