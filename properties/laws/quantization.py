"""Laws of quantize: codes that follow the scale the subject returned, zeros, signs, powers of two, ranges, and blocks by themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from oracles.reference.quantization import blocks_of, spread_over

from ..bounds.quantization import code_interval, range_of, rounded, smallest_scale, zero_interval
from ..bounds.sums import roundings
from ..case import Case
from ..comparison import Float64
from ..declaration import Declaration
from ..law import NOTHING, Evidence, Judgement, Law, law, within
from ..safetensors_file import Array
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


def _form(case: Case) -> dict[str, Any]:
    return {name: case.options.get(name) for name in ("axis", "group")}


def _bits(case: Case) -> int:
    bits = case.options["bits"]
    assert isinstance(bits, int)
    return bits


def _symmetric(case: Case) -> bool:
    return bool(case.options.get("symmetric", True))


def _limits(trial: Trial) -> tuple[int, int]:
    return range_of(_bits(trial.case), _symmetric(trial.case), trial.conventions)


def _spread(case: Case, per_block: Array) -> Float64:
    x = case.arrays["x"]
    return np.broadcast_to(spread_over(np.asarray(per_block, np.float64), x.shape, **_form(case)), x.shape)


def _own(trial: Trial, name: str) -> Array | None:
    """The subject's own scale or zero point, else the one it was given; the zero point of symmetric codes is 0."""
    if name in trial.answer:
        return trial.answer[name]
    if name in trial.case.arrays:
        return trial.case.arrays[name]
    return np.zeros(trial.wanted["zero"].shape) if name == "zero" and _symmetric(trial.case) else None


def _own_scale_and_zero(trial: Trial) -> tuple[Float64, Float64] | None:
    scale, zero = _own(trial, "scale"), _own(trial, "zero")
    if "q" not in trial.answer or scale is None or zero is None:
        return None
    s = np.asarray(scale, np.float64)
    if not (np.isfinite(s) & (s > 0.0)).all():
        return None                                                             # the business of the law on the scale
    return _spread(trial.case, s), _spread(trial.case, np.asarray(zero, np.float64))


@law(minimise=False)
def codes_follow_the_returned_scale(trial: Trial) -> Judgement:
    """Under the scale and zero point that the subject returned, or was given, each code is the whole number that x / scale rounds to.

    Allowed: both neighbours where x / scale lies within 2 (affine 3) roundings of itself of a half; a scale stored in a coarser format
    than it was computed in counts as stored, unless `scale_of_codes` says otherwise. Subnormal scales are left out.
    """
    own = _own_scale_and_zero(trial)
    if own is None or not trial.answer["q"].size:
        return NOTHING
    (s, z), r, x = own, roundings(trial.arithmetic), trial.case.arrays["x"].astype(np.float64)
    relative = r.out.u if trial.conventions["scale_of_codes"] == "unstored" and "scale" not in trial.case.arrays else 0.0
    codes = code_interval(r, x, s, relative, z, _limits(trial), trial.conventions["code_ties"])
    allowed = np.where(codes.lost, np.inf, (codes.high - codes.low) / 2.0)
    judged = pinned(within(trial.answer, {"q": (codes.low + codes.high) / 2.0}, {"q": allowed}), trial)
    return replace(judged, left_out=judged.left_out + int(((allowed > 0.0) & np.isfinite(allowed)).sum()))


@law()
def zero_points_follow_the_returned_scale(trial: Trial) -> Judgement:
    """An affine zero point is the whole number that -min(x, 0) / scale rounds to, under the scale the subject returned.

    Allowed: both neighbours within 2 roundings of a half. Where it was given it is returned as it came.
    """
    scale = trial.answer.get("scale")
    if _symmetric(trial.case) or "scale" in trial.case.arrays or scale is None or "zero" not in trial.answer:
        return NOTHING
    s, r = np.asarray(scale, np.float64), roundings(trial.arithmetic)
    if not (np.isfinite(s) & (s > 0.0)).all():
        return NOTHING
    blocks = blocks_of(trial.case.arrays["x"].astype(np.float64), **_form(trial.case))
    relative = r.out.u if trial.conventions["scale_of_codes"] == "unstored" else 0.0
    z = zero_interval(r, blocks, s, relative, _bits(trial.case), False)
    allowed = np.where(z.lost, np.inf, (z.high - z.low) / 2.0)
    return within(trial.answer, {"zero": (z.low + z.high) / 2.0}, {"zero": allowed})


@law(minimise=False)
def codes_come_back_within_half_a_step(trial: Trial) -> Judgement:
    """(q - zero) scale is within half a scale of x, whatever the scale is, where it was not given from outside.

    |(q - zero) s - x| <= s / 2 + s ((1 + u)^3 (1 + u_out) - 1) (2^bits - 1) + u s: the last code at the edge of a block is one rounding of
    the scale past its range at most. Subnormal scales are left out.
    """
    own = _own_scale_and_zero(trial)
    if own is None or "scale" in trial.case.arrays or not trial.answer["q"].size:
        return NOTHING
    (s, z), r = own, roundings(trial.arithmetic)
    x, q = trial.case.arrays["x"].astype(np.float64), trial.answer["q"].astype(np.float64)
    slack = (5.0 * (r.elementwise.u + 2.0**-53) + 1.01 * r.out.u) * (2.0 ** _bits(trial.case))
    steps = np.abs((q - z) - x / s)
    allowed = np.where(s < smallest_scale(r), np.inf, 0.5 + slack)
    judged = within({"q": steps}, {"q": np.zeros(x.shape)}, {"q": allowed})
    return replace(judged, evidence=Evidence(trial.wanted, trial.allowed))


def _with_zeros(case: Case) -> Case | None:
    x = case.arrays["x"]
    if not x.size:
        return None
    sparse = x.copy()
    sparse[..., :: max(1, x.shape[-1] // 3)] = 0
    return case.with_arrays(x=sparse)


@law(prepare=_with_zeros, every=2, minimise=True)
def zero_is_exactly_a_code(trial: Trial) -> Judgement:
    """0 has the code of the zero point, in symmetric and in affine form, so that it comes back as 0: padding and masks stay exact.

    Allowed: 0.
    """
    zero = _own(trial, "zero")
    if zero is None or "q" not in trial.answer:
        return NOTHING
    x = trial.case.arrays["x"].astype(np.float64)
    wanted = _spread(trial.case, np.asarray(zero, np.float64))
    return within(trial.answer, {"q": wanted}, {"q": np.where(x == 0.0, 0.0, np.inf)})


def _all_zero(case: Case) -> Case | None:
    return case.with_arrays(x=np.zeros_like(case.arrays["x"])) if case.arrays["x"].size and "scale" not in case.arrays else None


@law(prepare=_all_zero, every=3)
def a_block_of_zeros_has_scale_one(trial: Trial) -> Judgement:
    """Nothing but zeros gives codes 0, scale 1 and zero point 0: nothing is divided by 0, nothing becomes NaN.

    Allowed: 0; any finite scale above 0 where that is declared.
    """
    wanted = {"q": np.zeros(trial.case.arrays["x"].shape), "scale": np.ones(trial.wanted["scale"].shape),
              "zero": np.zeros(trial.wanted["zero"].shape)}  # fmt: skip
    answer = dict(trial.answer)
    if trial.conventions["zero_scale"] == "any" and "scale" in answer:
        s = answer["scale"].astype(np.float64)
        answer["scale"] = np.where(np.isfinite(s) & (s > 0.0), 1.0, s)
    return within(answer, wanted, {name: np.zeros(w.shape) for name, w in wanted.items()})


def _takes_a_scale(declaration: Declaration) -> str:
    return "" if "scale" in declaration.coverage.arguments else "the subject takes no scale"


def _given_scale(case: Case, t: Float64) -> Case | None:
    """The case with scales of 1/4, zero points 2, and inputs t scales."""
    x = case.arrays["x"]
    if not x.size:
        return None
    blocks = blocks_of(x.astype(np.float64), **_form(case)).shape[:-1]
    scale = np.full(blocks, 0.25, dtype=x.dtype)
    zero = {} if _symmetric(case) else {"zero": np.full(blocks, 2, np.int64)}
    return case.with_arrays(x=(t / 4.0).astype(x.dtype), scale=scale, **zero)


def _halves(case: Case) -> Case | None:
    """x / scale = 0, 1/2, 1, ... up and down again: all of few bits, so that every format holds them."""
    n = np.arange(case.arrays["x"].size).reshape(case.arrays["x"].shape)
    return _given_scale(case, (n % 7) / 2.0 * np.where(n % 2 == 0, 1.0, -1.0))


@law(prepare=_halves, every=2, not_covered=_takes_a_scale)
def halves_round_as_declared(trial: Trial) -> Judgement:
    """With a scale of 1/4, inputs of eighths have exact quotients: halves round to even (or as `code_ties` says), nothing truncates.

    Allowed: 0; where ties are open, the two whole numbers beside a half.
    """
    t = 4.0 * trial.case.arrays["x"].astype(np.float64)
    z = np.asarray(0.0 if _symmetric(trial.case) else 2.0)
    low, high = (np.clip(rounded(t, z, trial.conventions["code_ties"], up=up), *_limits(trial)) for up in (False, True))
    return within(trial.answer, {"q": (low + high) / 2.0}, {"q": (high - low) / 2.0})


def _far(case: Case) -> Case | None:
    n = np.arange(case.arrays["x"].size).reshape(case.arrays["x"].shape)
    return _given_scale(case, np.where(n % 2 == 0, 1.0, -1.0) * (2.0 ** (_bits(case) - 1) + 2.0 ** (n % 3 + _bits(case) - 1)))


@law(prepare=_far, every=2, not_covered=_takes_a_scale)
def numbers_out_of_range_saturate(trial: Trial) -> Judgement:
    """x past the range of its scale has the last code of its side; it does not wrap around to the other. Allowed: 0."""
    t = 4.0 * trial.case.arrays["x"].astype(np.float64) + (0.0 if _symmetric(trial.case) else 2.0)
    return within(trial.answer, {"q": np.clip(t, *_limits(trial))}, {"q": np.zeros(t.shape)})


@law(every=2, minimise=False)
def minus_x_has_minus_the_codes(trial: Trial) -> Judgement:
    """Symmetric codes of -x are those of x with the other sign, under the same scale: rounding to nearest has no side.

    Holds unless affine, where 127 has no partner -128 (`symmetric_codes = full`) or open ties. Allowed: the bounds of both calls.
    """
    if not _symmetric(trial.case) or trial.conventions["code_ties"] == "any" or "q" not in trial.answer:
        return NOTHING
    other = trial.on(trial.case.with_arrays(x=-trial.case.arrays["x"]))
    low, high = _limits(trial)
    unpaired = trial.conventions["symmetric_codes"] == "full"
    edge = np.asarray(((trial.answer["q"] <= low + 1) | (trial.answer["q"] == high)) & unpaired)
    wanted = {"q": -trial.answer["q"].astype(np.float64)}
    allowed = {"q": np.where(edge, np.inf, trial.allowed["q"] + other.allowed["q"])}
    if "scale" in trial.answer:
        wanted["scale"], allowed["scale"] = trial.answer["scale"].astype(np.float64), trial.allowed["scale"] + other.allowed["scale"]
    return pinned(within(other.answer, wanted, allowed), trial, other)


@law(every=2, minimise=False)
def twice_x_has_twice_the_scale(trial: Trial) -> Judgement:
    """2 x has the codes of x and twice its scale, to the last bit: a power of two changes no digit. Blocks of zeros keep scale 1.

    Not where numbers may pass the ends of the format (below 2^8 times the smallest normal scale, above a quarter of the largest).
    """
    x, r = trial.case.arrays["x"].astype(np.float64), roundings(trial.arithmetic)
    scale = trial.wanted["scale"]
    most = min(r.inputs.largest, r.elementwise.largest, r.out.largest) / 4.0
    if not x.size or "q" not in trial.answer or np.abs(x).max() > most or scale.min() < 256.0 * smallest_scale(r):
        return NOTHING
    given = {name: trial.case.arrays[name] * trial.case.arrays[name].dtype.type(2) for name in ("x", "scale") if name in trial.case.arrays}
    other = trial.on(trial.case.with_arrays(**given))
    blank: Array = np.zeros(scale.shape, bool)
    if "scale" not in trial.case.arrays:
        blank = np.asarray(~blocks_of(x, **_form(trial.case)).any(axis=-1))
    wanted = {name: trial.answer[name].astype(np.float64) for name in ("q", "scale", "zero") if name in trial.answer}
    if "scale" in wanted:
        wanted["scale"] = np.where(blank, wanted["scale"], 2.0 * wanted["scale"])
    judged = within(other.answer, wanted, {name: np.zeros(w.shape) for name, w in wanted.items()})
    if judged.failed and not trial.repeats():
        return NOTHING
    return pinned(judged, trial, other)


def _one_block(case: Case, i: int) -> Case:
    """The i-th row, column or group as a tensor of its own."""
    x, form = case.arrays["x"], _form(case)
    per_block = {name: case.arrays[name] for name in ("scale", "zero") if name in case.arrays}
    block: tuple[int, ...] = (i,)
    if form["axis"] is not None:
        part = np.ascontiguousarray(np.take(x, [i], axis=form["axis"]))
    else:
        group = form["group"]
        groups = -(-x.shape[-1] // group)
        block = (i // groups, i % groups)
        part = np.ascontiguousarray(x[block[0], block[1] * group : (block[1] + 1) * group])[None]
    options = {name: value for name, value in case.options.items() if name not in ("axis", "group")}
    arrays = {name: np.array([array[block]]) for name, array in per_block.items()}
    return replace(case, arrays={"x": part, **arrays}, options=options)


@law(every=2, minimise=False)
def each_block_is_a_tensor_of_its_own(trial: Trial) -> Judgement:
    """A row, column or group alone, with one scale for all of it, has the codes and the scale it has among others.

    Allowed: the bounds of both calls, and the codes one rounding may turn.
    """
    form, n = _form(trial.case), trial.wanted["scale"].size
    if (form["axis"] is None and form["group"] is None) or not trial.answer or not n or not trial.case.arrays["x"].size:
        return NOTHING
    i = int(trial.case.hash, 16) % n
    other = trial.on(_one_block(trial.case, i))
    here = {name: trial.answer[name].reshape(-1)[[i]].astype(np.float64) for name in ("scale", "zero") if name in trial.answer}
    if "q" in trial.answer:
        here["q"] = _one_block(trial.case.with_arrays(x=trial.answer["q"]), i).arrays["x"].astype(np.float64)
    allowed = {name: 2.0 * other.allowed[name] for name in here}
    return pinned(within(other.answer, here, allowed), trial, other)


@law(every=2, minimise=False)
def groups_may_change_places(trial: Trial) -> Judgement:
    """Whole groups in reverse order have their codes and scales in reverse order. Allowed: the bounds of both calls."""
    x, group = trial.case.arrays["x"], trial.case.options.get("group")
    if not isinstance(group, int) or x.shape[-1] % group or x.shape[-1] // group < 2 or not x.size or not trial.answer:
        return NOTHING

    def reversed_groups(a: Array, size: int) -> Array:
        return np.ascontiguousarray(a.reshape(*a.shape[:-1], -1, size)[..., ::-1, :].reshape(a.shape))

    sizes = {"x": group, "q": group, "scale": 1, "zero": 1}
    moved = {name: reversed_groups(array, sizes[name]) for name, array in trial.case.arrays.items()}
    other = trial.on(trial.case.with_arrays(**moved))
    wanted = {name: reversed_groups(got.astype(np.float64), sizes[name]) for name, got in trial.answer.items()}
    allowed = {name: 2.0 * other.allowed[name] for name in wanted}
    return pinned(within(other.answer, wanted, allowed), trial, other)


QUANTIZE_LAWS: tuple[Law, ...] = (
    answers,
    agreement("q"),
    agreement("scale"),
    agreement("zero"),
    codes_follow_the_returned_scale,
    zero_points_follow_the_returned_scale,
    codes_come_back_within_half_a_step,
    zero_is_exactly_a_code,
    a_block_of_zeros_has_scale_one,
    halves_round_as_declared,
    numbers_out_of_range_saturate,
    minus_x_has_minus_the_codes,
    twice_x_has_twice_the_scale,
    each_block_is_a_tensor_of_its_own,
    groups_may_change_places,
    strides_are_respected,
    inputs_stay_untouched,
    buffers_are_fully_written,
    repeats_give_the_same_bits,
)

