"""Attention over two disjoint sets of keys merged into attention over their union (kernels/merge_attention.cu)."""

from __future__ import annotations

import math
from typing import Any

from . import arguments
from .launching import Backend, Launcher, ceil_div, cpp_type


def merge_attention(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any, *, backend: str | Backend = "cuda") -> tuple[Any, Any]:
    """out (..., Dv) in the format of out_a, lse (...) in float32, of the union of a's and b's keys.

        lse = ln(e^lse_a + e^lse_b)
        out = e^(lse_a - lse) out_a + e^(lse_b - lse) out_b

    A part with lse = -inf adds nothing, whatever its out; two of them give 0 and -inf. An lse of NaN or +inf makes the row NaN.

    >>> one = np.ones((1, 2), np.float32)
    >>> merge_attention(one, np.zeros(1, np.float32), 3 * one, np.zeros(1, np.float32), backend="emulated")[0]
    array([[2., 2.]], dtype=float32)

    Raises ValueError where the shapes differ, RuntimeError where there is no device.
    Error bound: `properties.bounds.merge_attention_bound` under the default Arithmetic.
    Source: Milakov and Gimelshein 2018 (arXiv 1805.02867), section 3.1.
    """
    out_a = arguments.floats("out_a", out_a)
    if out_a.ndim == 0:
        raise ValueError("out_a: got a number; want (..., Dv)")
    out_b = arguments.floats("out_b", out_b, out_a.shape, like=out_a)
    lse_a, lse_b = (arguments.floats(name, lse, out_a.shape[:-1]) for name, lse in (("lse_a", lse_a), ("lse_b", lse_b)))
    run, dtype = Launcher(backend, out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b), out_a.dtype.name
    rows, Dv = math.prod(out_a.shape[:-1]), out_a.shape[-1]
    out, lse = run.new(out_a.shape, dtype), run.new(lse_a.shape, "float32")
    run.launch("merge_attention.cu", f"merge_attention<{cpp_type(out_a)}>", (ceil_div(rows, 4),), (32, 4),
               [run.take(out_a), run.take(lse_a, "float32"), run.take(out_b), run.take(lse_b, "float32"), out, lse, rows, Dv],
               outputs=("out", "lse"))
    return run.give(out, dtype), run.give(lse, "float32")
