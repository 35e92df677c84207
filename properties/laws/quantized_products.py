"""Laws of what is done with codes: dequantization, products added up in int32, and values of a table times a block's maximum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..bounds.sums import roundings
from ..case import Case
from ..law import NOTHING, Judgement, Law, law, within
from ..trial import Trial
from .every_operation import (
    agreement,
    answers,
    buffers_are_fully_written,
    inputs_stay_untouched,
    pinned,
    repeats_give_the_same_bits,
    strides_are_respected,
)

_COMMON: tuple[Law, ...] = (strides_are_respected, inputs_stay_untouched, buffers_are_fully_written, repeats_give_the_same_bits)


# Dequantization -----------------------------------------------------------------------------------------------------------


def _powers(case: Case) -> Case | None:
    scale = case.arrays["scale"]
    places = np.arange(scale.size).reshape(scale.shape)
    return case.with_arrays(scale=np.exp2((places % 3 - 1).astype(np.float64)).astype(scale.dtype)) if case.arrays["q"].size else None


@law(prepare=_powers, every=2)
def scales_of_two_are_exact(trial: Trial) -> Judgement:
    """With scales 1/2, 1 and 2 the difference of whole numbers only moves its point. Allowed: one rounding of `out`, 0 where it fits."""
    r, wanted = roundings(trial.arithmetic), trial.wanted["out"]
    fits = np.abs(wanted) * 2.0 * r.out.u <= 1.0                                # twice it is a whole number of few enough bits
    return within(trial.answer, {"out": wanted}, {"out": np.where(fits, 0.0, r.out.bound(wanted))})


def _codes_of_zero(case: Case) -> Case | None:
    q, zero = case.arrays["q"], case.arrays["zero"]
    if not q.size or zero.size == 0:
        return None
    return case.with_arrays(q=np.full_like(q, 3), zero=np.full_like(zero, 3))


@law(prepare=_codes_of_zero, every=2)
def the_code_of_zero_comes_back_as_zero(trial: Trial) -> Judgement:
    """q = zero gives 0, whatever the scale. Allowed: 0."""
    zeros = np.zeros(trial.wanted["out"].shape)
    return within(trial.answer, {"out": zeros}, {"out": zeros})


def _zero_points_of_zero(case: Case) -> Case | None:
    return case.with_arrays(zero=np.zeros_like(case.arrays["zero"])) if case.arrays["q"].size and case.arrays["zero"].any() else None


@law(prepare=_zero_points_of_zero)
def a_zero_point_of_zero_is_no_other(trial: Trial) -> Judgement:
    """zero = 0 of unsigned codes subtracts nothing: formats that store it less one must not wrap it around. Allowed: the bound."""
    return within(trial.answer, trial.wanted, trial.allowed)


@law(every=2, minimise=False)
def codes_and_zero_points_move_together(trial: Trial) -> Judgement:
    """q + 1 and zero + 1 (or - 1, where 8 bits hold no more) stand for the numbers q and zero stand for.

    Allowed: the bounds of both calls.
    """
    q, zero = trial.case.arrays["q"], trial.case.arrays["zero"]
    if not trial.answer or not q.size:
        return NOTHING
    least, most = (int(pick([edge(q), edge(zero)])) for pick, edge in ((min, np.min), (max, np.max)))
    step = 1 if most < (127 if least < 0 else 255) else -1
    if least + step < (-127 if least < 0 else 0):
        return NOTHING
    other = trial.on(trial.case.with_arrays(q=(q + step).astype(q.dtype), zero=zero + step))
    return pinned(within(other.answer, {"out": trial.answer["out"].astype(np.float64)},
                         {"out": trial.allowed["out"] + other.allowed["out"]}), trial, other)  # fmt: skip


# Products -----------------------------------------------------------------------------------------------------------------


def _cancelling(case: Case) -> Case | None:
    """1,200 products of 127 127, a hundred ones, and the 1,200 back: past 2^24 in between, a small sum at the end."""
    dtype = case.arrays["scale"].dtype
    row = np.concatenate([np.full(1200, 127), np.ones(100), np.full(1200, 127)])
    column = np.concatenate([np.full(1200, 127), np.ones(100), np.full(1200, -127)])
    x, q = np.tile(row, (2, 1)).astype(np.int8), np.tile(column[:, None], (1, 2)).astype(np.int8)
    x[1, 1200:1230] = -1
    one = np.ones((), dtype)
    return replace(case, arrays={"x": x, "q": q, "scale": one, "x_scale": one.copy()}, options={})


@law(prepare=_cancelling, every=4)
def integer_sums_are_exact_past_two_to_24(trial: Trial) -> Judgement:
    """Sums that pass 2^24 on the way and come back keep their last unit: int32 does, float32 does not, nor does int16.

    2 x 2 sums of 2,500 products, 100 and 40 in the end, scales 1. Allowed: one rounding of `out`, 0 where it holds 100.
    """
    r, wanted = roundings(trial.arithmetic), trial.wanted["out"]
    fits = np.abs(wanted) * r.out.u <= 0.5
    return within(trial.answer, {"out": wanted}, {"out": np.where(fits, 0.0, r.out.bound(wanted))})


def _nothing_but_bias(case: Case) -> Case | None:
    return case.with_arrays(x=np.zeros_like(case.arrays["x"])) if "bias" in case.arrays and len(case.arrays["x"]) else None


@law(prepare=_nothing_but_bias)
def a_bias_is_added_once_unscaled(trial: Trial) -> Judgement:
    """x = 0 gives the bias, to the bit: it is a float of its own scale, not a code, and is added once. Allowed: one rounding of `out`."""
    bias = trial.case.arrays["bias"].astype(np.float64)
    wanted = np.broadcast_to(bias, trial.wanted["out"].shape)
    r = roundings(trial.arithmetic)
    return within(trial.answer, {"out": wanted}, {"out": np.where(r.out.u <= r.inputs.u, 0.0, r.out.bound(wanted))})


def _one_hot_rows(case: Case) -> Case | None:
    N, C = case.arrays["x"].shape
    if not N or not C or not case.arrays["q"].size:
        return None
    x = (np.arange(C) == (np.arange(N) % C)[:, None]).astype(np.int8)
    arrays = {name: np.ones_like(case.arrays[name]) for name in ("scale", "x_scale")}
    kept = {name: array for name, array in case.arrays.items() if name != "bias"}
    return replace(case, arrays={**kept, "x": x, **arrays})


@law(prepare=_one_hot_rows, every=2)
def a_one_hot_row_reads_its_weights(trial: Trial) -> Judgement:
    """x = one-hot rows and scales of 1 give the codes of q themselves: rows and columns are where they belong. Allowed: 0 where it fits."""
    r, wanted = roundings(trial.arithmetic), trial.wanted["out"]
    return within(trial.answer, {"out": wanted}, {"out": np.where(np.abs(wanted) * r.out.u <= 0.5, 0.0, r.out.bound(wanted))})


@law(every=2, minimise=False)
def scales_may_trade_a_factor_of_two(trial: Trial) -> Judgement:
    """Twice x_scale and half of scale leave the product as it is. Allowed: the bounds of both calls."""
    if not trial.answer or trial.case.arrays["scale"].size == 0 or trial.case.arrays["x_scale"].size == 0:
        return NOTHING
    scale, x_scale = trial.case.arrays["scale"], trial.case.arrays["x_scale"]
    changed = {"scale": np.asarray(scale / scale.dtype.type(2)), "x_scale": np.asarray(x_scale * x_scale.dtype.type(2))}
    if (changed["scale"].astype(np.float64) * 2.0 != scale.astype(np.float64)).any():
        return NOTHING
    other = trial.on(trial.case.with_arrays(**changed))
    return pinned(within(other.answer, {"out": trial.answer["out"].astype(np.float64)},
                         {"out": trial.allowed["out"] + other.allowed["out"]}), trial, other)  # fmt: skip


# Tables -------------------------------------------------------------------------------------------------------------------


def _plain_maxima(case: Case) -> Case | None:
    """Maxima 1 and 2 in turn, none of them quantized."""
    absmax = case.arrays["absmax"]
    if not case.arrays["codes"].size:
        return None
    ones = (1.0 + np.arange(absmax.size) % 2).reshape(absmax.shape).astype(absmax.dtype)
    kept = {name: array for name, array in case.arrays.items() if name != "absmax_scale"}
    options = {name: value for name, value in case.options.items() if name != "absmax_offset"}
    return replace(case, arrays={**kept, "absmax": ones}, options=options)


@law(prepare=_plain_maxima, every=2)
def a_maximum_of_one_reads_the_table(trial: Trial) -> Judgement:
    """Block maxima of 1 and 2 give the values of the table and their doubles, to the bit. Allowed: one rounding of `out`, or 0."""
    r, wanted = roundings(trial.arithmetic), trial.wanted["out"]
    return within(trial.answer, {"out": wanted}, {"out": np.where(r.out.u <= r.inputs.u, 0.0, r.out.bound(wanted))})


@law(every=2, minimise=False)
def blocks_may_change_places(trial: Trial) -> Judgement:
    """Whole blocks in reverse order give their values in reverse order. Allowed: the bounds of both calls."""
    arrays, block = trial.case.arrays, trial.case.options["block"]
    n = arrays["codes"].shape[-1]
    assert isinstance(block, int)
    if not trial.answer or n % block or n // block < 2 or not arrays["codes"].size:
        return NOTHING

    def moved(a: Any, size: int) -> Any:
        return np.ascontiguousarray(a.reshape(*a.shape[:-1], -1, size)[..., ::-1, :].reshape(a.shape))

    other = trial.on(trial.case.with_arrays(codes=moved(arrays["codes"], block), absmax=moved(arrays["absmax"], 1)))
    return pinned(within(other.answer, {"out": moved(trial.answer["out"].astype(np.float64), block)},
                         {"out": 2.0 * other.allowed["out"]}), trial, other)  # fmt: skip


def _quantized_maxima(case: Case) -> Case | None:
    return case if "absmax_scale" in case.arrays and case.arrays["codes"].size else None


@law(prepare=_quantized_maxima)
def quantized_maxima_are_numbers_again_first(trial: Trial) -> Judgement:
    """Maxima that are codes are scaled and shifted before they scale a block: a = absmax_scale absmax + absmax_offset.

    Allowed: the bound.
    """
    return within(trial.answer, trial.wanted, trial.allowed)


DEQUANTIZE_LAWS: tuple[Law, ...] = (
    answers,
    agreement("out"),
    scales_of_two_are_exact,
    the_code_of_zero_comes_back_as_zero,
    a_zero_point_of_zero_is_no_other,
    codes_and_zero_points_move_together,
    *_COMMON,
)
MATMUL_LAWS: tuple[Law, ...] = (
    answers,
    agreement("out"),
    integer_sums_are_exact_past_two_to_24,
    a_bias_is_added_once_unscaled,
    a_one_hot_row_reads_its_weights,
    scales_may_trade_a_factor_of_two,
    *_COMMON,
)
BLOCKWISE_LAWS: tuple[Law, ...] = (
    answers,
    agreement("out"),
    a_maximum_of_one_reads_the_table,
    blocks_may_change_places,
    quantized_maxima_are_numbers_again_first,
    *_COMMON,
)
