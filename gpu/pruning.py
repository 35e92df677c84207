"""Two of every four weights on a GPU: the mask, and the packed form that sparse tensor cores multiply (kernels/prune_2_4.cu)."""

from __future__ import annotations

import math
from typing import Any

from . import arguments
from .launching import Backend, Launcher, ceil_div, cpp_type

THREADS = 256


def prune_2_4(w: Any, *, axis: int, backend: str | Backend = "cuda") -> Any:
    """A mask that keeps the two largest magnitudes of every four consecutive weights along an axis.

    Of equals the lowest index stays. A short last group stands by itself: of one or two weights none goes, of three the smallest.
    w of any shape in float32, float16 or bfloat16; the mask has its shape, bool.

    >>> prune_2_4(np.array([4, -1, 2, -3, 5, 6], np.float32), axis=0, backend="emulated").tolist()
    [True, False, False, True, True, True]

    Raises ValueError for NaN and infinities and for an axis that w has not, RuntimeError where there is no device.
    Exact. Source: Mishra et al. 2021 (arXiv 2104.08378), section 2.
    """
    w = arguments.floats("w", w)
    if not -w.ndim <= axis < w.ndim:
        raise ValueError(f"axis: got {axis} for {w.ndim} axes; want -{w.ndim}..{w.ndim - 1}")
    axis %= w.ndim
    before, n, behind = math.prod(w.shape[:axis]), w.shape[axis], math.prod(w.shape[axis + 1 :])
    fours, run = before * ceil_div(n, 4) * behind, Launcher(backend, w=w)
    mask, bad = run.new(w.shape, "bool"), run.new((1,), "int32", fill=0)
    run.launch("prune_2_4.cu", f"prune_2_4<{cpp_type(w)}>", (ceil_div(fours, THREADS),), (THREADS,),
               [run.take(w), mask, bad, fours, n, behind], outputs=("mask",))
    if int(bad[0]):
        raise ValueError("w: got NaN or an infinity; want finite numbers")
    return run.give(mask, "bool")


def pack_2_4(w: Any, mask: Any, *, backend: str | Backend = "cuda") -> tuple[Any, Any]:
    """The weights that stay, and where in their four each of them stood: two values and two places of 2 bits a four.

    w (..., n), n a multiple of 4, mask True at at most two of every four along the last axis. Returns values (..., n / 2) in the
    format of w and places (..., n / 4), uint8: the first in bits 0 and 1, the second in bits 2 and 3, in rising order. Fours with
    fewer than two are filled up with zeros at the lowest places that are free. What is not kept may be NaN.

    >>> values, places = pack_2_4(np.array([0, 5, 0, 7], np.float32), [False, True, False, True], backend="emulated")
    >>> values.tolist(), [bin(i) for i in places]
    ([5.0, 7.0], ['0b1101'])

    Raises ValueError for a mask of another shape or of more than two, RuntimeError where there is no device.
    Exact. Source: Mishra et al. 2021 (arXiv 2104.08378), figure 2.
    """
    w, mask = arguments.floats("w", w), arguments.booleans("mask", mask)
    if w.ndim == 0 or w.shape[-1] % 4:
        raise ValueError(f"w: got shape {tuple(w.shape)}; want a last axis that is a multiple of 4")
    if tuple(mask.shape) != tuple(w.shape):
        raise ValueError(f"mask: got shape {tuple(mask.shape)}; want that of w, {tuple(w.shape)}")
    run, dtype, (*rows, n) = Launcher(backend, w=w, mask=mask), w.dtype.name, w.shape
    fours = math.prod(rows) * n // 4
    values, places, bad = run.new((*rows, n // 2), dtype), run.new((*rows, n // 4), "uint8"), run.new((1,), "int32", fill=0)
    run.launch("prune_2_4.cu", f"pack_2_4<{cpp_type(w)}>", (ceil_div(fours, THREADS),), (THREADS,),
               [run.take(w), run.take(mask), values, places, bad, fours], outputs=("values", "places"))
    if int(bad[0]):
        raise ValueError("mask: got more than two of a four; want at most 2")
    return run.give(values, dtype), run.give(places, "uint8")
