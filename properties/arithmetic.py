"""Arithmetic: what a subject declares about its rounding, and the named presets. Bounds are derived from this alone."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from oracles.reference import FloatFormat


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """The roundings a kernel may make. Formats are `FloatFormat` names; None takes what the input dtype implies.

    out             format of outputs and gradients; None: the input's
    accumulate      format in which dot products, row sums and P V are accumulated, in any order, fused or not
    elementwise     format of exp, scaling, subtraction, rescaling, tanh
    probabilities   format to which P (and dS) are rounded before they enter a matrix product; None: `elementwise`
    scores          format in which scores are stored before the softmax; None: `accumulate`
    lse             format of the returned log-sum-exp; None: float64 for float64 inputs, else float32
    gradient        format in which partial gradients are kept between blocks; None: `accumulate`
    gradient_blocks how many partial gradients of that format are added at most (matters only with `gradient`)
    row_sum_rounded the softmax's denominator sums the *rounded* probabilities
    truncating      accumulation may truncate instead of rounding to nearest, as tensor cores do
    scaled_q        q is multiplied by scale and rounded to its own format before the product
    recomputes      a backward pass recomputes out and lse itself instead of reading those handed in
    flush_to_zero   subnormal results may become zero
    exp_ulps, log_ulps, tanh_ulps   largest error of the function, in units of `elementwise` roundoff of its value
    tile_min        smallest number of keys between two rescalings of the accumulator (online softmax)

    >>> Arithmetic().resolve("bfloat16").out
    'bfloat16'
    >>> Arithmetic.preset("flash_gpu").probabilities is None
    True
    """

    out: str | None = None
    accumulate: str | None = None
    elementwise: str | None = None
    probabilities: str | None = None
    scores: str | None = None
    lse: str | None = None
    gradient: str | None = None
    gradient_blocks: int = 1
    row_sum_rounded: bool = False
    truncating: bool = False
    scaled_q: bool = False
    recomputes: bool = False
    flush_to_zero: bool = False
    exp_ulps: float = 4.0
    log_ulps: float = 4.0
    tanh_ulps: float = 4.0
    tile_min: int = 16
