"""Laws of attention over packed sequences of different lengths, empty ones among them."""

from __future__ import annotations

import numpy as np

from ..case import Case
from ..law import NOTHING, Judgement, Law, law, within
from ..outcome import RAISED
from ..strides import in_elements, strided_copy
from ..trial import Trial
from .every_operation import (
    agreement,
    answers,
    buffers_are_fully_written,
    inputs_stay_untouched,
    pinned,
    promised,
    repeats_give_the_same_bits,
    same_bits,
)


def _several_sequences(case: Case) -> Case | None:
    return case if len(case.arrays["cu_q"]) > 2 and case.arrays["q"].size and case.arrays["v"].size else None


@law(prepare=_several_sequences, every=2)
def sequences_do_not_see_each_other(trial: Trial) -> Judgement:
    """With other keys and values in the last sequence, the rows of all other sequences keep their bits.

    The lengths are the same, so every row meets the same sums in the same order. Allowed: 0, where the subject repeats itself.
    """
    case, arrays = trial.case, {}
    first = int(case.arrays["cu_k"][-2])
    for name in ("k", "v"):
        changed = strided_copy(case.arrays[name], in_elements(case.arrays[name]))     # another memory order is another order of sums
        changed[first:] = changed.dtype.type(-0.5) * changed[first:, :, ::-1]   # another largest value too
        arrays[name] = changed
    Tq, rows = case.arrays["q"].shape[0], int(case.arrays["cu_q"][-2])
    kept = np.arange(Tq) < rows
    equal = {name: np.broadcast_to(kept if name == "lse" else kept[:, None, None], got.shape) for name, got in trial.answer.items()
             if name in ("out", "lse", "dq")}  # fmt: skip
    return same_bits(trial, trial.on(case.with_arrays(**arrays)), equal)


@law(prepare=_several_sequences, every=3)
def a_sequence_alone_is_the_same(trial: Trial) -> Judgement:
    """The first sequence that has queries and keys, packed alone, gets what it gets among the others.

    Allowed: the bounds of both calls.
    """
    case = trial.case
    cu_q, cu_k = case.arrays["cu_q"], case.arrays["cu_k"]
    whole = [n for n in range(len(cu_q) - 1) if cu_q[n + 1] > cu_q[n] and cu_k[n + 1] > cu_k[n]]
    if not whole or not {"out", "lse"} <= set(trial.answer):
        return NOTHING
    n = whole[0]
    rows, keys = slice(int(cu_q[n]), int(cu_q[n + 1])), slice(int(cu_k[n]), int(cu_k[n + 1]))
    one = {"q": case.arrays["q"][rows], "k": case.arrays["k"][keys], "v": case.arrays["v"][keys],
           "cu_q": np.array([0, rows.stop - rows.start]), "cu_k": np.array([0, keys.stop - keys.start])}  # fmt: skip
    alone = trial.on(case.with_arrays(**one))
    if not {"out", "lse"} <= set(alone.answer):
        return NOTHING
    cut = {"out": trial.answer["out"][rows], "lse": trial.answer["lse"][:, rows]}
    allowed = {"out": alone.allowed["out"] + trial.allowed["out"][rows], "lse": alone.allowed["lse"] + trial.allowed["lse"][:, rows]}
    judged = within(cut, {name: np.asarray(got, np.float64) for name, got in alone.answer.items()}, allowed)
    return pinned(judged, trial, alone)


@law(prepare=_several_sequences, every=3)
def sequences_without_keys_are_empty(trial: Trial) -> Judgement:
    """Queries of a sequence that has no keys have output 0 and log-sum-exp -inf, at their own places. Allowed: 0."""
    lengths_q, lengths_k = (np.diff(trial.case.arrays[name]) for name in ("cu_q", "cu_k"))
    empty = np.repeat(lengths_k == 0, lengths_q)                                # (Tq,)
    places = {"out": empty[:, None, None], "lse": empty[None, :]}
    allowed = {name: np.where(places[name], trial.allowed[name], np.inf) for name in places}     # inf for an lse declared to be left open
    return within(trial.answer, trial.wanted, allowed)


@law(every=8, minimise=False, not_covered=promised("validates_input", "to refuse bad input"))
def bad_offsets_are_refused(trial: Trial) -> Judgement:
    """Offsets that end past the last token or before it, fall, do not start at 0, or count other sequences: an exception each."""
    cu_q, cu_k = trial.case.arrays["cu_q"], trial.case.arrays["cu_k"]
    if len(cu_q) < 2 or not cu_q[-1] or not cu_k[-1]:
        return NOTHING
    bad = {}
    for name, cu in (("cu_q", cu_q), ("cu_k", cu_k)):
        past, short, late = cu.copy(), cu.copy(), cu.copy()
        past[-1] += 1
        short[-1] -= 1
        late[0] += 1
        bad[f"{name} with twice the tokens there are"] = {name: 2 * cu}
        bad[f"{name} with a token more than there are"] = {name: past}
        bad[f"{name} with a token less than there are"] = {name: short}
        bad[f"{name} that does not start at 0"] = {name: late}
        with_two_more = {other: np.append(trial.case.arrays[other], [trial.case.arrays[other][-1]] * 2) for other in ("cu_q", "cu_k")}
        bad[f"{name} that falls"] = {**with_two_more, name: np.append(cu, [cu[-1] - 1, cu[-1]])}
    bad["cu_k with a sequence more than cu_q"] = {"cu_k": np.append(cu_k, cu_k[-1])}
    for what, arrays in bad.items():
        kind = trial.subject.run(trial.case.with_arrays(**arrays), {}).kind
        if kind != RAISED:
            return Judgement(compared=1, worst_ratio=np.inf, failed=True, reason=f"{what}: {kind}; want an exception")
    return Judgement(compared=len(bad))


_COMMON: tuple[Law, ...] = (inputs_stay_untouched, buffers_are_fully_written, repeats_give_the_same_bits, bad_offsets_are_refused)

PACKED_LAWS: tuple[Law, ...] = (
    answers,
    agreement("out"),
    agreement("lse"),
    sequences_do_not_see_each_other,
    a_sequence_alone_is_the_same,
    sequences_without_keys_are_empty,
    *_COMMON,
)
PACKED_BACKWARD_LAWS: tuple[Law, ...] = (answers, agreement("dq"), agreement("dk"), agreement("dv"), *_COMMON)
