"""Laws of context parallelism: the number of ranks does not matter, every shard has its share, nothing is rounded on the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from oracles.reference import FloatFormat

from ..case import Case
from ..declaration import Declaration
from ..law import NOTHING, Judgement, Law, law, within
from ..safetensors_file import Array
from ..trial import Trial
from .every_operation import (
    answers,
    inputs_stay_untouched,
    pinned,
    repeats_give_the_same_bits,
    same_bits,
    strides_are_respected,
)
from .shard_terms import (
    gathered_results,
    is_empty,
    like,
    list_agreement,
    of_list,
    on_ranks,
    order_of,
    positions,
    ranks,
    segments,
    whole,
    with_sequences,
    within_sequence,
)

FORWARD, BACKWARD = ("out", "lse"), ("dq", "dk", "dv")


def _results(case: Case) -> tuple[str, ...]:
    return BACKWARD if case.operation.endswith("backward") else FORWARD


def _several(case: Case) -> Case | None:
    return case if ranks(case) > 1 and not is_empty(case) else None


@law(prepare=_several, every=2)
def the_number_of_ranks_does_not_matter(trial: Trial) -> Judgement:
    """The same sequence over one rank, and over twice as many where it can be cut so, has the same results.

    Allowed: the bounds of both calls.
    """
    case, judgements, names = trial.case, [], _results(trial.case)
    R, n = ranks(case), case.arrays["q_shards.0"].shape[2]
    more = [2 * R] if n % (4 if order_of(case) == "zigzag" else 2) == 0 else []
    mine, wide = (gathered_results(case, values, names) for values in (trial.answer, trial.allowed))
    for other in (trial.on(on_ranks(case, world)) for world in (1, *more)):
        if not mine or not other.answer:
            continue                                                            # it takes other numbers of ranks only
        theirs, allowed = (gathered_results(other.case, values, names) for values in (other.answer, other.allowed))
        theirs = {name: x for name, x in theirs.items() if name in mine}
        judgements.append(pinned(within(mine, theirs, {name: wide[name] + allowed[name] for name in theirs}), trial, other))
    return next((judgement for judgement in judgements if judgement.failed), judgements[0] if judgements else NOTHING)


def _tagged(case: Case) -> Case | None:
    """q = 0, and v is 1 on one rank and 0 on the others."""
    if is_empty(case):
        return None
    q, v = whole(case, "q_shards"), whole(case, "v_shards")
    chosen = positions(case)[int(case.hash, 16) % ranks(case)]
    values = np.broadcast_to(np.isin(np.arange(q.shape[2]), chosen)[:, None], v.shape).astype(np.float64)
    return with_sequences(case, q_shards=like(q, np.zeros(q.shape)), v_shards=like(v, values))


@law(prepare=_tagged, every=2)
def every_shard_has_its_share(trial: Trial) -> Judgement:
    """With Q = 0 all visible keys weigh the same: a query sees as much of a rank's tokens as their share of the keys it sees.

        v = 1 on one rank, 0 elsewhere:  out = (visible keys of that rank) / (visible keys)

    Counted here from positions and segments alone. The last query of a causal sequence sees the shards of all ranks.
    Allowed: the bound.
    """
    seen = _visible(trial.case)                                                 # (B, L, L)
    chosen = whole(trial.case, "v_shards")[:, 0, :, 0].astype(np.float64)       # (B, L)
    count = np.maximum(seen.sum(axis=-1), 1)
    share = (seen @ chosen[:, :, None])[..., 0] / count                         # (B, L)
    got, allowed = (gathered_results(trial.case, values, ("out",)) for values in (trial.answer, trial.allowed))
    if not got:
        return NOTHING
    return within_sequence(trial, got, {"out": np.broadcast_to(share[:, None, :, None], got["out"].shape)}, allowed)


def _visible(case: Case) -> Array:
    """Which tokens each token sees: (B, L, L), from positions and segments."""
    s = segments(case)
    seen = (s[:, :, None] == s[:, None, :]) & (s >= 0)[:, :, None]
    place = np.arange(s.shape[1])
    return np.asarray(seen & (place <= place[:, None]) if case.options["causal"] is not None else seen)


def _selecting(case: Case) -> Case | None:
    """Query i of a segment selects the key of number i mod D, counted from its start (under a causal mask) or its end."""
    if is_empty(case):
        return None
    q, k = whole(case, "q_shards"), whole(case, "k_shards")
    D, number = q.shape[3], _number(case)                                       # (B, L)
    deep = 1024.0 * np.ceil(D**0.5 / min(abs(_relative_scale(case, D)), 1.0))
    if deep > FloatFormat(q.dtype.name).max / 2:
        return None
    channel = np.arange(D)
    queries = np.broadcast_to((number[..., None] % D == channel)[:, None], q.shape).astype(np.float64)
    from_the_end = _number(case, backwards=True)
    selected = (number if case.options["causal"] is not None else from_the_end)[..., None] == channel
    keys = np.broadcast_to(np.where(selected, 0.0, -np.sign(_relative_scale(case, D)) * deep)[:, None], k.shape)
    g = np.random.default_rng(int(case.hash, 16))
    grid = {name: like(whole(case, name), g.integers(-2, 3, whole(case, name).shape).astype(np.float64))
            for name in ("v_shards", "dout_shards") if of_list(case.arrays, name)}  # fmt: skip
    return with_sequences(case, q_shards=like(q, queries), k_shards=like(k, keys), **grid)


def _relative_scale(case: Case, D: int) -> float:
    """The scale over 1 / sqrt(D)."""
    scale = case.options.get("scale")
    return float(scale) * D**0.5 if isinstance(scale, float | int) else 1.0


def _number(case: Case, *, backwards: bool = False) -> Array:
    """The number of each token in its segment, (B, L); segments are contiguous."""
    s = segments(case)[:, ::-1] if backwards else segments(case)
    number = np.zeros(s.shape, dtype=np.int64)
    for i in range(1, s.shape[1]):
        number[:, i] = np.where(s[:, i] == s[:, i - 1], number[:, i - 1] + 1, 0)
    return number[:, ::-1] if backwards else number


def _rounds_what_weighs_nothing(declaration: Declaration) -> str:
    return "parts merged by the difference of their log-sum-exps round what weighs nothing" if declaration.arithmetic.merges_lse else ""


@law(prepare=_selecting, every=2, not_covered=_rounds_what_weighs_nothing)
def a_key_that_takes_all_is_passed_on_exactly(trial: Trial) -> Judgement:
    """Scores of 0 for one key and at most -1024 for all others leave weights of exactly 1 and 0, whatever the order of merges.

    Values and dout on a grid of small integers: out is the value of that key, lse is 0, dv the sum of its queries' dout, dq and dk
    are 0; a query of a segment shorter than its channel selects nothing, and is left out with all it takes part in. Not of those who
    declare `merges_lse`: out - 1 (out - out_b), a merge by a sigmoid, rounds an out that weighs nothing. Allowed: 0.
    """
    case = trial.case
    number, D = _number(case), case.arrays["q_shards.0"].shape[3]
    length = number + _number(case, backwards=True) + 1
    clear = (segments(case) < 0) | (number % D < length)                        # (B, L)
    names = _results(case)
    got, wanted = gathered_results(case, trial.answer, names), gathered_results(case, trial.wanted, names)
    judged = _in_all_of_its_segment(clear, segments(case)) if case.operation.endswith("backward") else clear
    formats = {name: FloatFormat(trial.arithmetic.lse if name == "lse" else trial.arithmetic.out) for name in names}
    rounded = {name: formats[name].round(np.where(np.isfinite(x), np.rint(x), x)) for name, x in wanted.items() if name in got}
    allowed = {name: np.where(judged.reshape(len(judged), 1, -1, *[1] * (x.ndim - 3)) & np.ones(x.shape, bool), 0.0, np.inf)
               for name, x in rounded.items()}  # fmt: skip
    return within_sequence(trial, got, rounded, allowed) if rounded else NOTHING


def _in_all_of_its_segment(holds: Array, of: Array) -> Array:
    """Where something holds of all tokens of the token's segment: (B, L)."""
    each = [[row[numbers == number].all() for number in numbers] for row, numbers in zip(holds, of)]
    return np.asarray(each, dtype=bool).reshape(holds.shape)


def _cancelling(case: Case) -> Case | None:
    """q = 0, and values that are large on every rank but cancel between them; no mask but segments."""
    if is_empty(case) or ranks(case) < 2 or case.options["causal"] is not None:
        return None
    q, v, g = whole(case, "q_shards"), whole(case, "v_shards"), np.random.default_rng(int(case.hash, 16))
    sign = np.zeros(q.shape[2])
    for r, part in enumerate(positions(case)):
        sign[part] = 1.0 if r % 2 else -1.0
    values = sign[:, None] * g.uniform(1.0, 2.0, v.shape)
    return with_sequences(case, q_shards=like(q, np.zeros(q.shape)), v_shards=like(v, values))


@law(prepare=_cancelling, every=1)
def parts_are_not_rounded_before_they_are_merged(trial: Trial) -> Judgement:
    """With Q = 0 and 2^a keys in every part, all weights are powers of two: only the sums, the merges and the last store round.

    Values are large on each rank and cancel between ranks, so that a part that was rounded to the format of the output on its way
    shows. Rows whose parts, or halves of parts, have other numbers of visible keys are left out. Allowed: the bound of the same
    arithmetic with P not rounded.
    """
    case, arithmetic = trial.case, trial.arithmetic
    seen = _visible(case)
    exact = np.ones(seen.shape[:2], dtype=bool)
    for part in positions(case):
        for piece in (part, part[: len(part) // 2], part[len(part) // 2 :]):
            exact &= _a_power_of_two_or_none(seen[:, :, piece].sum(axis=-1))
    exact &= _a_power_of_two_or_none(seen.sum(axis=-1))
    sharp = trial.operation.allowed(replace(arithmetic, probabilities=arithmetic.elementwise), case, trial.conventions)
    got, wanted, allowed = (gathered_results(case, values, ("out",)) for values in (trial.answer, trial.wanted, sharp))
    if not got:
        return NOTHING
    return within_sequence(trial, got, wanted, {"out": np.where(exact[:, None, :, None], allowed["out"], np.inf)})


def _a_power_of_two_or_none(count: Array) -> Array:
    return np.asarray(count & (count - 1) == 0)


def _causal(case: Case) -> Case | None:
    return case if case.options["causal"] is not None and not is_empty(case) and ranks(case) > 1 else None


@law(prepare=_causal, every=3)
def later_tokens_change_no_earlier_bit(trial: Trial) -> Judgement:
    """Under a causal mask, other keys and values in the second half of the sequence leave the bits of the first half's out and lse.

    Same shapes, so the same sums in the same order; what a query does not see weighs exactly 0. Allowed: 0.
    """
    case, half = trial.case, whole(trial.case, "q_shards").shape[2] // 2
    changed: dict[str, Array] = {}
    for name in ("k_shards", "v_shards"):
        changed[name] = whole(case, name).copy()
        changed[name][:, :, half:] = changed[name].dtype.type(-0.5) * changed[name][:, :, half:][:, :, ::-1]
    early = {f"{name}.{r}": np.broadcast_to((place < half).reshape(-1, *[1] * (name == "out")), trial.wanted[f"{name}.{r}"].shape)
             for r, place in enumerate(positions(case)) for name in FORWARD}  # fmt: skip
    return same_bits(trial, trial.on(with_sequences(case, **changed)), early)


# Backward ----------------------------------------------------------------------------------------------------------------


@law(every=2, prepare=lambda case: None if is_empty(case) else case)
def key_gradients_sum_to_zero(trial: Trial) -> Judgement:
    """Adding one vector to all keys of the sequence changes no output, so the sum of dK over the keys of all ranks is 0.

    Allowed: the sum of the bounds of dK.
    """
    got, allowed = (gathered_results(trial.case, values, ("dk",)) for values in (trial.answer, trial.allowed))
    if not got:
        return NOTHING
    total, wide = got["dk"].sum(axis=2), allowed["dk"].sum(axis=2)
    own = 2.0**-52 * np.nan_to_num(np.abs(got["dk"]), posinf=0.0).sum(axis=2)   # of this sum; a NaN in dk is one in the total
    return pinned(within({"dk": total}, {"dk": np.zeros(total.shape)}, {"dk": wide + own}), trial)


def _padded(case: Case) -> Case | None:
    return case if (segments(case) < 0).any() and not is_empty(case) else None


@law(prepare=_padded)
def padding_gets_no_gradient(trial: Trial) -> Judgement:
    """Tokens of segment -1 see nothing and are not seen: their dq, dk and dv are exactly 0, on whichever rank they are. Allowed: 0."""
    outside = (segments(trial.case) < 0)[:, None, :, None]
    got = gathered_results(trial.case, trial.answer, BACKWARD)
    allowed = {name: np.where(outside & np.ones(x.shape, bool), 0.0, np.inf) for name, x in got.items()}
    return within_sequence(trial, got, {name: np.zeros(x.shape) for name, x in got.items()}, allowed)


@law(prepare=_padded)
def padding_sees_nothing(trial: Trial) -> Judgement:
    """Tokens of segment -1 come out as 0 with a log-sum-exp of -inf, on whichever rank they are. Allowed: 0."""
    outside = (segments(trial.case) < 0)[:, None, :]
    got = gathered_results(trial.case, trial.answer, FORWARD)
    wanted: dict[str, Any] = {"out": 0.0, "lse": -np.inf}
    allowed = {name: np.where(outside[..., None] if name == "out" else outside, 0.0, np.inf) + np.zeros(x.shape) for name, x in got.items()}
    return within_sequence(trial, got, {name: np.full(x.shape, wanted[name]) for name, x in got.items()}, allowed)


_LAST = (strides_are_respected, inputs_stay_untouched, repeats_give_the_same_bits)
RING_LAWS: tuple[Law, ...] = (
    answers, list_agreement("out"), list_agreement("lse"), the_number_of_ranks_does_not_matter, every_shard_has_its_share,
    a_key_that_takes_all_is_passed_on_exactly, parts_are_not_rounded_before_they_are_merged, later_tokens_change_no_earlier_bit,
    padding_sees_nothing, *_LAST,
)  # fmt: skip
RING_BACKWARD_LAWS: tuple[Law, ...] = (
    answers, list_agreement("dq"), list_agreement("dk"), list_agreement("dv"), the_number_of_ranks_does_not_matter,
    a_key_that_takes_all_is_passed_on_exactly, key_gradients_sum_to_zero, padding_gets_no_gradient, *_LAST,
)  # fmt: skip
