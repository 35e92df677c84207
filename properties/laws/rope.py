"""Laws of rotary embedding: what a rotation keeps, what it depends on, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.reference import FloatFormat, rope, yarn_mscale

from ..bounds.rope import pair_norm_bound
from ..case import Case
from ..comparison import Float64, compare
from ..declaration import Declaration
from ..law import NOTHING, Evidence, Judgement, Law, law, of_comparisons, within
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

FAR = (4095, 131071, -4095, 65537)
# What a law rounds itself, in float64, may be off by: a few operations for each number.
OWN = 8.0 * 2.0**-53


def rotary_dim(case: Case) -> int:
    """How many coordinates turn."""
    given = case.options.get("rotary_dim")
    return given if isinstance(given, int) else int(case.arrays["x"].shape[-1])


def pairs(x: Array, case: Case) -> tuple[Float64, Float64]:
    """The two coordinates of every pair, each (..., R / 2)."""
    R = rotary_dim(case)
    wide = np.asarray(x, dtype=np.float64)
    return (wide[..., : R // 2], wide[..., R // 2 : R]) if case.options["pairing"] == "half" else (wide[..., 0:R:2], wide[..., 1:R:2])


def factor(case: Case) -> float:
    """m: what rotation multiplies norms with, 1 but for yarn."""
    record = case.options.get("scaling")
    if not isinstance(record, dict) or record["kind"] != "yarn":
        return 1.0
    return yarn_mscale(record["factor"], record["mscale"]) / yarn_mscale(record["factor"], record["mscale_all_dim"])


def _stored(trial: Trial, x: Array) -> Float64:
    """x as it comes out of a rotation by nothing: in the format of the arithmetic, then of the output."""
    a = trial.arithmetic
    return np.asarray(FloatFormat(a.out).round(FloatFormat(a.elementwise).round(x.astype(np.float64))))


@law(every=2)
def norms_of_pairs_are_kept(trial: Trial) -> Judgement:
    """|(a, b)| of every pair is what it was, times m for yarn: cos^2 + sin^2 = 1, whatever the angle is.

    Allowed: the roundings of sine, cosine and the products, and not the angle's: far out this sees more than agreement does.
    """
    if not trial.answer or not np.isfinite(trial.case.arrays["x"].astype(np.float64)).all():
        return NOTHING
    norm, allowed = pair_norm_bound(trial.arithmetic, **trial.case.arguments())
    got = np.hypot(*pairs(trial.answer["out"], trial.case))
    judged = of_comparisons([compare("norm", got, norm, allowed + OWN * norm)], Evidence())
    return pinned(judged, trial)


def _several(case: Case) -> Case | None:
    return case if case.arrays["x"].ndim > 1 and case.arrays["x"].shape[-2] > 1 else None


@law(prepare=_several, every=3)
def products_depend_on_the_distance_alone(trial: Trial) -> Judgement:
    """Moving all positions by the same number leaves the product of any two turned rows, pair by pair, as it was.

        <R(p + s) q, R(n + s) k> = q^T R(n - p) k

    Rows are multiplied with their successors. Allowed: what the bounds of the four rows make of their product.
    """
    positions = trial.case.arrays["positions"]
    shift = 1 + int(trial.case.hash, 16) % 1000
    moved = trial.on(trial.case.with_arrays(positions=positions + positions.dtype.type(shift)))
    if not trial.answer or not moved.answer:
        return NOTHING
    (here, e_here), (there, e_there) = (_products(one) for one in (trial, moved))
    same = of_comparisons([compare("product", here, there, e_here + e_there)], Evidence())
    return pinned(same, trial, moved)


def _products(trial: Trial) -> tuple[Float64, Float64]:
    """a a' + b b' of each pair of each row and the next, and how far it may be from the exact one."""
    a, b = pairs(trial.answer["out"], trial.case)
    e_a, e_b = pairs(trial.allowed["out"], trial.case)
    with np.errstate(invalid="ignore", over="ignore"):
        product = a[..., :-1, :] * a[..., 1:, :] + b[..., :-1, :] * b[..., 1:, :]
        size, error = np.abs(a) + np.abs(b), e_a + e_b
        off = size[..., :-1, :] * error[..., 1:, :] + error[..., :-1, :] * (size[..., 1:, :] + error[..., 1:, :])
        off = off + OWN * size[..., :-1, :] * size[..., 1:, :] + np.finfo(np.float64).tiny
    unsure = ~np.isfinite(off) | ~np.isfinite(product)                          # overflow of the law's own product
    return np.where(unsure, 0.0, product), np.where(unsure, np.inf, off)


def _at_zero(case: Case) -> Case | None:
    return case.with_arrays(positions=np.zeros_like(case.arrays["positions"])) if case.arrays["x"].size else None


@law(prepare=_at_zero, every=3, minimise=True)
def position_zero_is_the_identity(trial: Trial) -> Judgement:
    """Nothing turns at position 0: cos 0 = 1 and sin 0 = 0 exactly, a 1 - b 0 = a. Allowed: 0 where m = 1, the bound for yarn's m.

    An input that the arithmetic does not hold may be rounded to it once; subnormal numbers may vanish where that is declared.
    """
    if factor(trial.case) != 1.0 or trial.arithmetic.flush_to_zero:
        return within(trial.answer, trial.wanted, trial.allowed)
    x = trial.case.arrays["x"]
    record = trial.case.options.get("scaling")
    if isinstance(record, dict) and record["kind"] == "yarn":                   # a ratio of 1 that was computed
        return within(trial.answer, trial.wanted, trial.allowed)
    return within(trial.answer, {"out": _stored(trial, x)}, {"out": np.zeros(x.shape)})


def _partial(case: Case) -> Case | None:
    return case if rotary_dim(case) < case.arrays["x"].shape[-1] and case.arrays["x"].size else None


@law(prepare=_partial)
def what_is_not_rotated_stays(trial: Trial) -> Judgement:
    """Coordinates from rotary_dim on come out as they went in, whatever turns before them. Allowed: 0, after one rounding to `out`."""
    x = trial.case.arrays["x"]
    wanted = np.asarray(FloatFormat(trial.arithmetic.out).round(x.astype(np.float64)))
    turned = np.arange(x.shape[-1]) < rotary_dim(trial.case)
    return within(trial.answer, {"out": wanted}, {"out": np.broadcast_to(np.where(turned, np.inf, 0.0), x.shape)})


def _one_coordinate(case: Case) -> Case | None:
    x = case.arrays["x"]
    if not x.size:
        return None
    rows = np.arange(x.size // x.shape[-1]).reshape(x.shape[:-1])
    place = (rows + int(case.hash, 16) % 1000) % rotary_dim(case)               # another coordinate in every row
    return case.with_arrays(x=(place[..., None] == np.arange(x.shape[-1])).astype(x.dtype))


@law(prepare=_one_coordinate, every=2)
def a_coordinate_turns_into_its_partner_alone(trial: Trial) -> Judgement:
    """A vector of one 1 gives m cos t there, ±m sin t at its partner's place and 0 everywhere else, which tells how pairs are formed.

    Allowed: 0 outside the pair, where every product is a product with 0; the bound within.
    """
    return within(trial.answer, trial.wanted, trial.allowed)


def _full_positions(case: Case) -> Case | None:
    positions, outer = case.arrays["positions"], case.arrays["x"].shape[:-1]
    return None if positions.shape == outer else case.with_arrays(positions=np.array(np.broadcast_to(positions, outer)))


@law(prepare=_full_positions, every=2)
def positions_broadcast(trial: Trial) -> Judgement:
    """Positions written out for every row mean what they meant in a shape that is broadcast. Allowed: the bound of the same rotation."""
    return within(trial.answer, trial.wanted, trial.allowed)


def _far(case: Case) -> Case | None:
    positions = case.arrays["positions"]
    far = np.resize(np.array(FAR), positions.shape) if positions.size else positions
    return case.with_arrays(positions=far.astype(positions.dtype)) if case.arrays["x"].size else None


@law(prepare=_far, every=3, minimise=True)
def far_positions_keep_their_phases(trial: Trial) -> Judgement:
    """At positions 4,095, 131,071 and beyond, and as far below 0, angles are as good as the declared `phases` make them.

    Allowed: the bound, which grows with the angle in that format: float32 there is 2^16 times better than bfloat16.
    """
    return within(trial.answer, trial.wanted, trial.allowed)


def _one_pairing(declaration: Declaration) -> str:
    return "" if "pairing" in declaration.coverage.arguments and len(declaration.coverage.levels("pairing", ("half", "interleaved"))) == 2 \
        else "the subject takes one pairing only"


@law(every=3, not_covered=_one_pairing)
def one_pairing_is_the_other_permuted(trial: Trial) -> Judgement:
    """Interleaved pairs are halves after a permutation: rope(x)[order] in halves = rope(x[order]), order = 0 2 4 … 1 3 5 … .

    Allowed: the sum of both bounds, since each may be computed in its own way.
    """
    case, x = trial.case, trial.case.arrays["x"]
    R, own = rotary_dim(case), case.options["pairing"]
    order = np.concatenate([np.arange(0, R, 2), np.arange(1, R, 2), np.arange(R, x.shape[-1])])
    taken = order if own == "interleaved" else np.argsort(order)
    other = trial.on(case.with_arrays(x=x[..., taken]).with_options(pairing="half" if own == "interleaved" else "interleaved"))
    if not trial.answer or not other.answer:
        return NOTHING
    own_out, own_off = (np.asarray(y, np.float64)[..., taken] for y in (trial.answer["out"], trial.allowed["out"]))
    judged = of_comparisons([compare("out", other.answer["out"], own_out, own_off + other.allowed["out"])], Evidence())
    return pinned(judged, trial, other)


@law(every=3)
def turning_twice_adds_the_positions(trial: Trial) -> Judgement:
    """Turned by p and then by s is turned by p + s, times m once more: so cached keys are moved to other positions.

        R(s) R(p) x = R(p + s) x

    Allowed: the bound of the second rotation, and |(error of a, error of b)| of the first, which a rotation only turns.
    """
    case, positions = trial.case, trial.case.arrays["positions"]
    if not trial.answer or trial.answer["out"].dtype != case.arrays["x"].dtype or not np.isfinite(trial.answer["out"].astype(float)).all():
        return NOTHING
    shift = np.full_like(positions, -3 if int(case.hash, 16) % 2 else 700)
    second = trial.on(case.with_arrays(x=trial.answer["out"], positions=shift))
    if not second.answer:
        return NOTHING
    options: dict[str, Any] = dict(case.options)
    wanted = rope(case.arrays["x"], positions + shift, **options)
    wanted[..., : rotary_dim(case)] *= factor(case)
    oracle = trial.operation.bound(trial.arithmetic.widened(), case.with_arrays(positions=positions + shift), trial.conventions)["out"]
    e_a, e_b = pairs(trial.allowed["out"], case)
    carried = trial.allowed["out"].copy()
    a, b = _places(case)
    with np.errstate(over="ignore"):
        carried[..., a] = carried[..., b] = factor(case) * np.hypot(e_a, e_b)
    allowed = second.allowed["out"] + carried + factor(case) * oracle
    judged = of_comparisons([compare("out", second.answer["out"], wanted, allowed)], Evidence())
    return pinned(judged, trial, second)


def _places(case: Case) -> tuple[slice, slice]:
    R = rotary_dim(case)
    return (slice(0, R // 2), slice(R // 2, R)) if case.options["pairing"] == "half" else (slice(0, R, 2), slice(1, R, 2))


ROPE_LAWS: tuple[Law, ...] = (
    answers,
    agreement("out"),
    a_coordinate_turns_into_its_partner_alone,
    position_zero_is_the_identity,
    what_is_not_rotated_stays,
    norms_of_pairs_are_kept,
    far_positions_keep_their_phases,
    positions_broadcast,
    products_depend_on_the_distance_alone,
    turning_twice_adds_the_positions,
    one_pairing_is_the_other_permuted,
    strides_are_respected,
    inputs_stay_untouched,
    buffers_are_fully_written,
    repeats_give_the_same_bits,
)
