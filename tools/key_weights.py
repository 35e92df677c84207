"""Key weights: which keys an attention output weighs wrongly, measured by other values. A hint for people, never a verdict."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from oracles.properties.comparison import Float64, ratios
from oracles.properties.trial import Trial

CALLS = 300                                                                     # of the subject, at most
SHOWN = 4                                                                       # runs of keys told


def key_weight_errors(trial: Trial) -> str:
    """For the worst row of an attention output, the runs of keys that it weighs wrongly, and by what factor; "" if not told.

        V = one 1 in each of Dv consecutive keys, each in a column of its own: then out is their weight, p_ij

    The same q, k and options with such V in the head that the row reads (0 in the others), ceil(Lk / Dv) calls in all, measure
    every weight of the row. A key is told where its weight is off by more than the bound of that call.
    """
    case = trial.case
    if trial.operation.name != "attention" or "out" not in trial.answer or not trial.wanted["out"].size:
        return ""
    ratio = ratios(trial.answer["out"], trial.wanted["out"], trial.allowed["out"])
    if not (ratio > 1.0).any():
        return ""
    b, h, i, _ = (int(n) for n in np.unravel_index(int(ratio.argmax()), ratio.shape))
    Lk, Dv = case.arrays["v"].shape[2:]
    if -(-Lk // Dv) > CALLS:
        return ""
    Hkv = case.arrays["v"].shape[1]
    head = h % Hkv if trial.conventions["head_map"] == "interleaved" else h // (ratio.shape[1] // Hkv)
    got, wanted, off = np.zeros(Lk), np.zeros(Lk), np.zeros(Lk)
    for first in range(0, Lk, Dv):
        keys, columns = slice(first, min(first + Dv, Lk)), np.arange(min(Dv, Lk - first))
        values = np.zeros(case.arrays["v"].shape)
        values[:, head, first + columns, columns] = 1.0
        probe = trial.on(case.with_arrays(v=values.astype(case.arrays["v"].dtype)))
        if "out" not in probe.answer:
            return ""
        row = (b, h, i, columns)
        got[keys], wanted[keys] = np.asarray(probe.answer["out"][row], np.float64), probe.wanted["out"][row]
        off[keys] = ratios(probe.answer["out"][row], probe.wanted["out"][row], probe.allowed["out"][row])
    wrong = np.where(off > 1.0, np.where(got < wanted, -1, 1), 0)
    if not wrong.any():
        return f"row out[{b},{h},{i}] weighs every key rightly: the error comes from the values or after them"
    return f"row out[{b},{h},{i}], largest errors of weight first: " + "; ".join(_runs(got, wanted, wrong))


def _runs(got: Float64, wanted: Float64, wrong: NDArray[np.int_]) -> list[str]:
    """Runs of consecutive keys weighed too lightly (-1) or too heavily (1) in words, those with the largest error first."""
    borders = [0, *(np.flatnonzero(np.diff(wrong)) + 1).tolist(), len(wrong)]
    runs = [(start, end) for start, end in pairwise(borders) if wrong[start]]
    told = []
    for start, end in sorted(runs, key=lambda run: -float(np.abs(got - wanted)[run[0] : run[1]].sum()))[:SHOWN]:
        weight, due = float(got[start:end].sum()), float(wanted[start:end].sum())
        amount = f"{weight / due:.6g} of the right weight" if due else f"weight {weight:.6g} where none is due"
        told.append(f"{'key' if end == start + 1 else 'keys'} {start}{'' if end == start + 1 else f' to {end - 1}'}: {amount}")
    return told
