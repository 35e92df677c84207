"""Recheck: golden values against double-double arithmetic, within what its roundings may do. NumPy alone; the proof is `certified`'s.

    |dd - (hi + lo)| <= 16 u bound(u) + 2^-107 |hi| + 2^-960,   u = 2^-53, and 0 where the bound is 0

bound(u) is the bound that `properties` derives for a float64 kernel of the textbook form. Double-double obeys the same model of every
operation, fl(x op y) = (x op y)(1 + d), with |d| <= u' = 16 u^2 (`double_double.WORST`), and its functions are within the multiples of u'
that `ARITHMETIC` declares. Every term of the bound is convex in the roundoffs with value 0 at 0, so bound(u') <= (u' / u) bound(u).
2^-107 |hi| is the rounding of lo. 2^-960 is what underflow may add where numbers fall below the reach of exact products: 2^-1074 a product,
of less than 2^50 products, times numbers below 2^60. Smaller values are held to no more than that.
A weight rounded to a narrow format has a bound of that format's roundoff, which does not vanish: 16 u of it is below half a unit of hi.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from oracles.properties.arithmetic import Arithmetic
from oracles.properties.case import Case
from oracles.properties.conventions import declared
from oracles.properties.operations import operation_named

from . import (
    double_double_attention,
    double_double_collectives,
    double_double_experts,
    double_double_losses,
    double_double_optimizers,
    double_double_pipeline,
    double_double_quantization,
    double_double_ring,
    double_double_rows,
    double_double_shards,
)
from .certified import Float64, Limbs
from .double_double import DD, WORST, U
from .double_double_functions import EXP_BOUND, LOG_BOUND, TANH_BOUND, TRIG_BOUND

ARITHMETIC = Arithmetic(exp_ulps=EXP_BOUND / WORST, log_ulps=LOG_BOUND / WORST, tanh_ulps=TANH_BOUND / WORST,
                        trig_ulps=TRIG_BOUND / WORST, recomputes=True).resolve("float64")  # fmt: skip
UNDERFLOW = 2.0**-960

DOUBLE_DOUBLE: dict[str, Callable[..., Mapping[str, DD]]] = {
    "softmax": double_double_rows.softmax,
    "log_sum_exp": double_double_rows.log_sum_exp,
    "merge_attention": double_double_rows.merge_attention,
    "attention": double_double_attention.attention,
    "attention_backward": double_double_attention.attention_backward,
    "attention_packed": double_double_attention.attention_packed,
    "attention_packed_backward": double_double_attention.attention_packed_backward,
    "rope": double_double_rows.rope,
    "paged_attention": double_double_attention.paged_attention,
    "mla_attention": double_double_attention.mla_attention,
    "filter_probabilities": double_double_rows.filter_probabilities,
    "mtp_loss": double_double_rows.mtp_loss,
    "cross_entropy": double_double_losses.cross_entropy,
    "cross_entropy_backward": double_double_losses.cross_entropy_backward,
    "vocab_parallel_cross_entropy": double_double_losses.vocab_parallel_cross_entropy,
    "distillation_loss": double_double_losses.distillation_loss,
    "distillation_loss_backward": double_double_losses.distillation_loss_backward,
    "quantize": double_double_quantization.quantize,
    "dequantize": double_double_quantization.dequantize,
    "dequantize_blockwise": double_double_quantization.dequantize_blockwise,
    "quantized_matmul": double_double_quantization.quantized_matmul,
    "adamw_step": double_double_optimizers.adamw_step,
    "master_weight_step": double_double_optimizers.master_weight_step,
    "clip_grad_norm": double_double_optimizers.clip_grad_norm,
    "all_reduce": double_double_collectives.all_reduce,
    "reduce_scatter": double_double_collectives.reduce_scatter,
    "all_gather": double_double_collectives.all_gather,
    "bucketed_all_reduce": double_double_collectives.bucketed_all_reduce,
    "accumulate_gradients": double_double_collectives.accumulate_gradients,
    "tied_gradients": double_double_collectives.tied_gradients,
    "column_parallel": double_double_shards.column_parallel,
    "row_parallel": double_double_shards.row_parallel,
    "shard_qkv": double_double_shards.shard_qkv,
    "vocab_parallel_embedding": double_double_shards.vocab_parallel_embedding,
    "vocab_parallel_cross_entropy_backward": double_double_shards.vocab_parallel_cross_entropy_backward,
    "norm_backward_sharded": double_double_shards.norm_backward_sharded,
    "clip_grad_norm_sharded": double_double_shards.clip_grad_norm_sharded,
    "ring_attention": double_double_ring.ring_attention,
    "ring_attention_backward": double_double_ring.ring_attention_backward,
    "sharded_cache_attention": double_double_ring.sharded_cache_attention,
    "exchanged_norm_backward": double_double_ring.exchanged_norm_backward,
    "route": double_double_experts.route,
    "balance_loss": double_double_experts.balance_loss,
    "balance_loss_backward": double_double_experts.balance_loss_backward,
    "moe_layer": double_double_experts.moe_layer,
    "expert_parallel_backward": double_double_experts.expert_parallel_backward,
    "pipeline_loss": double_double_pipeline.pipeline_loss,
    "pipeline_step": double_double_pipeline.pipeline_step,
}


@dataclass(frozen=True)
class Recheck:
    """What one case's recheck saw.

    values       elements held against double-double
    to_an_ulp    of these, elements at which hi off by one unit in the last place would have been seen
    left_out     elements for which the bound gives no promise
    worst_ratio  largest error / allowed
    failed       the places beyond what is allowed, for people
    """

    values: int
    to_an_ulp: int
    left_out: int
    worst_ratio: float
    failed: tuple[str, ...]


def recheck(case: Case, limbs: Mapping[str, Limbs]) -> Recheck:
    """Compute a case in double-double and hold its golden values against that."""
    results = DOUBLE_DOUBLE[case.operation](**case.arguments())
    bounds = allowed(case, limbs)
    values = to_an_ulp = left_out = 0
    worst, failed = 0.0, []
    for name, value in limbs.items():
        if results[name].shape != value.hi.shape:
            raise ValueError(f"{name}: double-double gives shape {results[name].shape} beside {value.hi.shape}; want one shape")
        ratio, promised = _ratios(results[name], value, bounds[name]), np.isfinite(bounds[name])
        values += int(promised.sum())
        left_out += int((~promised).sum())
        finite = np.isfinite(value.hi)
        to_an_ulp += int((promised & (np.spacing(np.where(finite, np.abs(value.hi), 1.0)) > 2.0 * bounds[name])).sum())
        worst = max(worst, float(ratio.max(initial=0.0)))
        failed += [f"{name}{at.tolist()} is {value.hi[tuple(at)]!r}, {ratio[tuple(at)]:.3g} of what is allowed from double-double"
                   for at in np.argwhere(ratio > 1.0)]  # fmt: skip
    return Recheck(values, to_an_ulp, left_out, worst, tuple(failed))


def allowed(case: Case, limbs: Mapping[str, Limbs]) -> dict[str, Float64]:
    """What each element may differ from double-double; see the module."""
    bounds = operation_named(case.operation).bound(ARITHMETIC, case, declared({}, case.operation))
    return {name: _scaled(bounds[name], value.hi) for name, value in limbs.items()}


def _scaled(bound: Float64, hi: Float64) -> Float64:
    size = np.where(np.isfinite(hi), np.abs(hi), 0.0)
    return np.where(bound == 0.0, 0.0, WORST * U * bound + 2.0**-107 * size + UNDERFLOW)


def _ratios(result: DD, value: Limbs, bound: Float64) -> Float64:
    """|dd - (hi + lo)| / allowed; infinities have to be equal; 0 where nothing is promised."""
    with np.errstate(invalid="ignore"):
        error: Any = np.abs((result.hi - value.hi) + (result.lo - value.lo))    # the difference of the his is exact where they are close
    same = (result.hi == value.hi) & ((result.lo == value.lo) | ~np.isfinite(value.hi))
    ratio = np.where(same, 0.0, np.where(bound > 0.0, error / np.where(bound > 0.0, bound, 1.0), np.inf))
    ratio = np.where(~same & ~np.isfinite(error), np.inf, ratio)
    return np.asarray(np.where(np.isposinf(bound), 0.0, ratio))
