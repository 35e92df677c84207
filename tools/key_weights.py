"""Key weights: which keys an attention output weighs wrongly, read off its error. A hint for people, never a verdict."""

from __future__ import annotations

import numpy as np

from oracles.properties.laws.attention import chosen, visible
from oracles.properties.trial import Trial
from oracles.reference.attention import attention_scores, softmax_over_visible

WIDTHS = (1, 16, 32, 64, 128, 256)


def key_weight_errors(trial: Trial) -> str:
    """For the worst row of an attention output, the factor by which each tile of keys is over- or underweighted; "" if not told.

        error_i = sum over tiles t of delta_t sum_{j in t} p_ij v_j,  solved for delta by least squares

    Tiles are the narrowest of `WIDTHS` of which there are at most Dv, so that the system is determined.
    """
    case = trial.case
    if trial.operation.name != "attention" or "out" not in trial.answer or "dropout_mask" in case.arrays or not trial.wanted["out"].size:
        return ""
    error = np.asarray(trial.answer["out"], np.float64) - trial.wanted["out"]
    if not np.isfinite(error).all() or not error.any():
        return ""
    b, h, i, _ = np.unravel_index(int(np.abs(error).argmax()), error.shape)
    terms = ("causal", "scale", "softcap", "bias", "kv_lengths", "alibi_slopes")
    s = attention_scores(case.arrays["q"], case.arrays["k"], **chosen(case, terms))
    sinks = case.arrays.get("sinks")
    p, _ = softmax_over_visible(s, visible(case), None if sinks is None else sinks.astype(np.float64))
    v = case.arrays["v"].astype(np.float64)
    values = np.nan_to_num(v[b, h // (error.shape[1] // v.shape[1])])           # (Lk, Dv)
    Lk, Dv = values.shape
    width = next((w for w in WIDTHS if -(-Lk // w) <= Dv), None)
    if width is None:
        return ""
    starts = np.arange(0, Lk, width)
    shares = np.add.reduceat(p[b, h, i][:, None] * values, starts, axis=0)      # (tiles, Dv)
    delta, *_ = np.linalg.lstsq(shares.T, error[b, h, i], rcond=None)
    order = np.argsort(-np.abs(delta))[:4]
    told = [f"keys {starts[t]} to {min(starts[t] + width, Lk) - 1}: {1 + delta[t]:.6g} of the right weight" for t in order if delta[t] != 0]
    return f"in row out[{b},{h},{i}], largest errors of weight first: " + "; ".join(told) if told else ""
