"""The law of attention that looks at how large errors usually are, where the bound only says how large they may be."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..case import Case
from ..law import NOTHING, Evidence, Judgement, law
from ..noise_floor import FEWEST_COLUMNS, FEWEST_KEYS, FEWEST_ROWS, LIMITS, WARNING_ONLY, noise_floor
from ..safetensors_file import Array
from ..trial import Trial
from .attention_terms import is_empty, like, sizes, visible, without

_TERMS = ("softcap", "bias", "alibi_slopes", "sinks", "dropout_mask", "dropout_p")
_LARGEST = 2**17                                                                # B Hq Lq Lk; more would take too long
_SCALES = (0.25, 2.0)                                                           # times 1/sqrt(D): beyond, rows are flat or one-hot


def _plain(case: Case) -> Case | None:
    """The case with N(0, 1) in q, k and v, and nothing but masks: errors are usual only where values are."""
    _, _, Lq, Lk = sizes(case)
    if is_empty(case) or Lq < FEWEST_ROWS or Lk < FEWEST_KEYS or case.arrays["v"].shape[-1] < FEWEST_COLUMNS:
        return None
    if np.prod(sizes(case)) > _LARGEST or (visible(case).sum(axis=-1) >= FEWEST_KEYS).sum() < FEWEST_ROWS:
        return None
    generator = np.random.default_rng(int(case.hash, 16))
    drawn = {name: like(case.arrays[name], generator.standard_normal(case.arrays[name].shape)) for name in "qkv"}
    scale = case.options.get("scale")
    relative = 1.0 if not isinstance(scale, float | int) else abs(scale) * case.arrays["q"].shape[-1] ** 0.5
    moderate = _SCALES[0] <= relative <= _SCALES[1]
    return without(case, *_TERMS, *([] if moderate else ["scale"])).with_arrays(**drawn)


def _read_by_each(trial: Trial, name: str) -> Array:
    """The key/value heads in the order in which the query heads read them, one for each."""
    Hq, Hkv = trial.case.arrays["q"].shape[1], trial.case.arrays[name].shape[1]
    heads = np.arange(Hq) % Hkv if trial.conventions["head_map"] == "interleaved" else np.arange(Hq) // (Hq // Hkv)
    return np.asarray(trial.case.arrays[name][:, heads])


@law(prepare=_plain, every=4, minimise=False)
def errors_stay_at_the_noise_floor(trial: Trial) -> Judgement:
    """On N(0, 1) inputs, errors are not much larger than those of simulated legal kernels of the declared arithmetic.

        x = (out - oracle) / bound:  rms x,  rms x of each row,  rms of lse likewise,  each over that of the baseline

    Six simulated kernels (tiles forwards and backwards, split, truncating, sequential, P normalised first) round as the subject
    declares. In float16 and bfloat16 the ratios may be at most 1.25, 2 and 4; in float32 and float64, where the order of sums
    alone moves them by 2, passing 3, 6 and 4 is a warning and never a failure. Where the limits come from: `LIMITS`.

    It sees what the bound lets through, such as an accumulator in bfloat16 beside a P in bfloat16 (0.77 of the bound, rms 1.38).
    """
    limits = LIMITS.get(trial.arithmetic.out)
    if limits is None or "out" not in trial.answer:
        return NOTHING
    arrays = {**trial.case.arrays, "k": _read_by_each(trial, "k"), "v": _read_by_each(trial, "v")}
    options: dict[str, Any] = {**trial.case.options, **{name: arrays[name] for name in ("mask", "kv_lengths") if name in arrays}}
    floor = noise_floor(trial.arithmetic, arrays, options, wanted=trial.wanted, allowed=trial.allowed)
    if floor is None:
        return NOTHING
    ratios = floor.ratios(trial.answer)
    worst = max(getattr(ratios, name) / getattr(limits, name) for name in ("rms", "row", "lse"))
    said, only_warns = ratios.over(limits), trial.arithmetic.out in WARNING_ONLY
    compared = int(floor.rows.sum()) * trial.case.arrays["v"].shape[-1]
    return Judgement(compared, worst_ratio=min(worst, 1.0) if only_warns else worst, worst_at=f"out[{','.join(map(str, ratios.row_at))}]",
                     failed=bool(said) and not only_warns, reason="" if only_warns else said, warning=said if only_warns else "",
                     evidence=Evidence(dict(trial.wanted), dict(trial.allowed)))  # fmt: skip
