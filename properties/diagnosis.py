"""Diagnosis: what kind of fault a wrong attention output looks like. A hint for people, never a verdict.

Each suspicion is the oracle with one fault put in. Where the subject's answer agrees with it within the bound, on a case where
it does not agree with the oracle, the suspicion is voiced: the plainest first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

import numpy as np

from oracles.reference import FloatFormat
from oracles.reference.attention import attention_scores, seen_product, softmax_over_visible

from .case import Case
from .comparison import Float64, ratios
from .laws.attention_terms import SCORE_TERMS, chosen, is_empty, sizes, visible, without
from .safetensors_file import Array
from .trial import Trial

Answer = dict[str, Float64]
PRECISION = "precision: "
TILES = (16, 32, 64, 128, 256)
ROUGHER = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")               # formats P may have been rounded to


def diagnose(trial: Trial) -> str:
    """A hint at the kind of fault, or "" where the answer looks like none that is known here. For attention alone."""
    if trial.operation.name != "attention" or not trial.answer or is_empty(trial.case):
        return ""
    if not any((ratios(got, trial.wanted[name], trial.allowed[name]) > 1.0).any() for name, got in trial.answer.items()):
        return ""                                                               # a bitwise law broke; the numbers are right
    if _nan_came_through(trial):
        return ("NaN beyond kv_lengths came through, most often as 0 x NaN in P V: leave padded values out, or, if NaN there may spread, "
                'declare conventions={"nonfinite_behind_mask": "spread"}')
    for name, changed in chain(_options(trial), _readings(trial)):
        if agrees(trial, trial.operation.answer(changed, trial.conventions), _allowed(trial, changed)):
            return name
    for name, suspected in chain(_head_map(trial), _masks(trial), _numbers(trial), _tiles(trial)):
        if suspected is not None and agrees(trial, suspected, trial.allowed):
            return name
    return _places(trial) or _precision(trial)


def agrees(trial: Trial, suspected: Mapping[str, Float64], allowed: Mapping[str, Float64]) -> bool:
    """Whether everything the subject returned is what a suspicion says, where there is a promise; something must be told by it."""
    told = False
    for name, got in trial.answer.items():
        if name not in suspected or (ratios(got, suspected[name], allowed[name]) > 1.0).any():
            return False
        told = told or bool((ratios(got, trial.wanted[name], allowed[name]) > 1.0).any())
    return told


def _nan_came_through(trial: Trial) -> bool:
    """NaN in the answer where a number is wanted, on a case that holds NaN where no query looks."""
    held = any(not np.isfinite(trial.case.arrays[name].astype(np.float64)).all() for name in ("k", "v"))
    return held and any((np.isnan(got.astype(np.float64)) & ~np.isnan(trial.wanted[name])).any() for name, got in trial.answer.items())


def _allowed(trial: Trial, changed: Case) -> Answer:
    """What is allowed of the answer to another case: where nothing was to be seen, and so no error allowed, the bound of that case."""
    if visible(trial.case).any(axis=-1).all():
        return dict(trial.allowed)
    other = trial.operation.bound(trial.arithmetic, changed, trial.conventions)
    return {name: np.where(allowed == 0.0, other[name], allowed) for name, allowed in trial.allowed.items()}


Suspicion = tuple[str, Answer | None]
Otherwise = tuple[str, Case]


def _options(trial: Trial) -> Iterator[Otherwise]:
    """Arguments that were ignored, and the wrong alignment."""
    case, given = trial.case, trial.case.arguments()
    causal = case.options.get("causal")
    for other in ("top_left", "bottom_right"):
        if causal is not None and other != causal:
            told = f"causal: aligned {other.replace('_', ' ')} instead of {str(causal).replace('_', ' ')}"
            yield told, case.with_options(causal=other)
    if causal is not None:
        yield "causal: ignored", case.with_options(causal=None)
    if "kv_lengths" in given:
        full = np.full_like(case.arrays["kv_lengths"], case.arrays["k"].shape[2])
        yield "kv_lengths: padding keys are taken in", case.with_arrays(kv_lengths=full)
    for name in ("window", "mask", "bias", "softcap", "sinks", "alibi_slopes"):
        if name in given:
            yield f"{name}: ignored", without(case, name)
    if "dropout_mask" in given:
        yield "dropout: ignored", without(case, "dropout_mask", "dropout_p")
    window = case.options.get("window")
    if isinstance(window, tuple) and None not in window:
        yield "window: its left side is ignored", case.with_options(window=(None, window[1]))
        yield "window: its right side is ignored", case.with_options(window=(window[0], None))


def _readings(trial: Trial) -> Iterator[Otherwise]:
    """What each head or batch item has of its own, read of another: a stride left out, or that of the key/value heads taken."""
    case = trial.case
    B, Hq, _, _ = sizes(case)
    group = Hq // max(case.arrays["k"].shape[1], 1)
    for name in ("bias", "mask", "dropout_mask", "sinks", "alibi_slopes", "kv_lengths"):
        array = case.arrays.get(name)
        if array is None:
            continue
        heads = 0 if name in ("sinks", "alibi_slopes") else array.ndim - 3
        if name != "kv_lengths" and heads >= 0 and array.shape[heads] == Hq > 1:
            yield f"{name}: every head reads that of head 0", _reading(case, name, heads, np.zeros(Hq, np.int64))
            if 1 < group < Hq:
                yield f"{name}: query head h reads that of head h // (Hq / Hkv)", _reading(case, name, heads, np.arange(Hq) // group)
        items = 0 if array.ndim == 4 or name == "kv_lengths" else None
        if items is not None and array.shape[items] == B > 1:
            yield f"{name}: every batch item reads that of item 0", _reading(case, name, items, np.zeros(B, np.int64))


def _reading(case: Case, name: str, axis: int, places: Array) -> Case:
    return case.with_arrays(**{name: np.take(case.arrays[name], places, axis=axis)})


def _head_map(trial: Trial) -> Iterator[Suspicion]:
    """The other order of the key/value heads."""
    case = trial.case
    if case.arrays["k"].shape[1] not in (1, case.arrays["q"].shape[1]):
        other = "contiguous" if trial.conventions["head_map"] == "interleaved" else "interleaved"
        read = "h % Hkv" if other == "interleaved" else "h // (Hq / Hkv)"
        yield f"head map: query head h reads key/value head {read}", trial.operation.answer(case, {**trial.conventions, "head_map": other})


def _masks(trial: Trial) -> Iterator[Suspicion]:
    """Borders off by one, alone."""
    case = trial.case
    window, causal = case.options.get("window"), case.options.get("causal")
    if causal is not None:
        for by, told in ((1, "one key of the future is seen"), (-1, "the current key is not seen")):
            yield f"mask off by one: {told}", _with_visible(trial, _shifted(case, by))
    if isinstance(window, tuple):
        for side, name in ((0, "left"), (1, "right")):
            for by in (1, -1):
                size = window[side]
                if size is not None and size + by >= 0:
                    changed = tuple(size + by if s == side else w for s, w in enumerate(window))
                    told = "one key too many" if by > 0 else "one key too few"
                    yield f"mask off by one: the window's {name} side lets {told} through", trial.operation.answer(
                        case.with_options(window=changed), trial.conventions
                    )
    seen = visible(case)
    last = seen & ~(np.cumsum(seen[..., ::-1], axis=-1)[..., ::-1] == 1)        # without the last key each row sees
    yield "mask off by one: the last key that a row sees is dropped", _with_visible(trial, last)


def _shifted(case: Case, by: int) -> Array:
    """Visibility with the causal border moved by some keys."""
    B, _, Lq, Lk = sizes(case)
    rest = visible(case.with_options(causal=None))
    lengths = case.arrays.get("kv_lengths", np.full(B, Lk))
    place = np.arange(Lq)[None, :] + (0 if case.options["causal"] == "top_left" else lengths[:, None] - Lq)
    border: Array = np.arange(Lk)[None, None, None, :] <= place[:, None, :, None] + by
    return rest & border


def _scores(case: Case) -> Float64:
    return attention_scores(case.arrays["q"], case.arrays["k"], **chosen(case, SCORE_TERMS))


def _sinks(case: Case) -> Float64 | None:
    return case.arrays["sinks"].astype(np.float64) if "sinks" in case.arrays else None


def _values(case: Case) -> Float64:
    v = case.arrays["v"].astype(np.float64)
    return np.repeat(v, case.arrays["q"].shape[1] // v.shape[1], axis=1)


def _kept(case: Case) -> Array | float:
    if "dropout_mask" not in case.arrays:
        return 1.0
    p = case.options["dropout_p"]
    assert isinstance(p, float)
    return case.arrays["dropout_mask"] / (1.0 - p)


def _with_visible(trial: Trial, seen: Array) -> Answer | None:
    """The oracle's answer with other visibility; None in another head map, where it would take more than this."""
    if trial.conventions["head_map"] != "contiguous":
        return None
    p, lse = softmax_over_visible(_scores(trial.case), seen, _sinks(trial.case))
    return {"out": seen_product(p * _kept(trial.case), _values(trial.case), seen), "lse": lse}


def _numbers(trial: Trial) -> Iterator[Suspicion]:
    """The log-sum-exp in base 2; the scale missing, in another base, or off by a factor found by regression."""
    case = trial.case
    yield "lse in base 2 instead of e", {"out": trial.wanted["out"], "lse": trial.wanted["lse"] / np.log(2.0)}
    if "dropout_mask" in case.arrays:
        kept = 1.0 - float(case.options["dropout_p"])  # type: ignore[arg-type]
        yield "dropout: P is not divided by 1 - dropout_p", {"out": kept * trial.wanted["out"], "lse": trial.wanted["lse"]}
    D = case.arrays["q"].shape[-1]
    given = case.options.get("scale")
    scale = float(given) if isinstance(given, float | int) else D**-0.5
    named = {"q k^T not scaled": 1.0, "scaled by 1/D": 1.0 / D, "scaled twice": scale * scale, "the argument ignored": D**-0.5,
             "times log2 e": scale * np.log2(np.e), "times ln 2": scale * np.log(2.0), "sign flipped": -scale}  # fmt: skip
    for name, other in named.items():
        if other != scale:
            yield f"scale: {name}", trial.operation.answer(case.with_options(scale=float(other)), trial.conventions)
    factor = _scale_factor(trial, scale)
    if factor is not None:
        told = f"scale: off by a factor of {factor:.7g}"
        yield told, trial.operation.answer(case.with_options(scale=scale * factor), trial.conventions)


def _at_scale(trial: Trial, scale: float) -> Answer:
    return trial.operation.answer(trial.case.with_options(scale=float(scale)), trial.conventions)


def _scale_factor(trial: Trial, scale: float) -> float | None:
    """The factor on the scale that explains the error best: regression on d answer / d ln scale, repeated as Newton's method."""
    name = "lse" if "lse" in trial.answer else "out"
    got = np.asarray(trial.answer[name], np.float64)
    logarithm, h = 0.0, 2.0**-20
    for _ in range(8):
        here, near = (_at_scale(trial, scale * np.exp(logarithm + step))[name] for step in (0.0, h))
        with np.errstate(invalid="ignore"):                                     # rows that see nothing: -inf - -inf
            slope, error = (near - here) / h, got - here
        use = np.isfinite(slope) & np.isfinite(error)
        size = float((slope[use] ** 2).sum())
        if size == 0.0:
            return None
        step = float((slope[use] * error[use]).sum()) / size
        logarithm += float(np.clip(step, -1.0, 1.0))
        if abs(step) < 1e-12 or abs(logarithm) > 6.0:
            break
    return float(np.exp(logarithm)) if 1e-9 < abs(logarithm) <= 6.0 else None


def _tiles(trial: Trial) -> Iterator[Suspicion]:
    """The accumulator, or the row sum too, not rescaled when the maximum grew, in one tile of keys or in all."""
    case = trial.case
    Lk = case.arrays["k"].shape[2]
    if trial.conventions["head_map"] != "contiguous" or Lk < 2:
        return
    seen = visible(case)
    s, sinks, v = np.where(seen, _scores(case), -np.inf), _sinks(case), _values(case)
    p, lse = softmax_over_visible(s, seen, sinks)
    weights = p * _kept(case)
    highest = np.maximum.accumulate(s, axis=-1)                                 # (B, Hq, Lq, Lk)
    for width in (tile for tile in TILES if tile < Lk):
        for start in range(width, Lk, width):
            with np.errstate(invalid="ignore", over="ignore"):
                grown = np.exp(highest[..., min(start + width, Lk) - 1] - highest[..., start - 1])
                grown = np.where(np.isfinite(grown), grown, 1.0)[..., None]
                heavier = np.where(np.arange(Lk) < start, weights * grown, weights)
                out = seen_product(heavier, v, seen)
            yield f"accumulator not rescaled at the tile of keys {start} to {min(start + width, Lk) - 1}", {"out": out, "lse": lse}


def _places(trial: Trial) -> str:
    """Where the wrong elements lie, when that says something: the last rows, a stretch of rows, one head, one batch item."""
    wrong = np.zeros(trial.wanted["lse"].shape, bool)
    B, Hq, Lq = trial.wanted["lse"].shape
    for name, got in trial.answer.items():
        off = ratios(got, trial.wanted[name], trial.allowed[name]) > 1.0
        wrong |= off.any(axis=-1) if off.ndim == 4 else off
    rows = np.flatnonzero(np.asarray(wrong.any(axis=(0, 1))))
    if not len(rows):
        return ""
    blind = ~visible(trial.case).any(axis=-1)
    if not (wrong & ~blind).any():
        return "rows that see no key, and only they, are wrong: if that is intended, declare empty_rows and empty_lse in conventions={...}"
    solid = bool(wrong[:, :, rows].all()) and len(rows) < Lq
    values = np.asarray(trial.answer["out"], np.float64)[:, :, rows] if "out" in trial.answer else np.zeros(1)
    untouched = bool((values == 0.0).all() or np.isnan(values).all())
    if solid and rows[-1] == Lq - 1 and len(rows) == rows[-1] - rows[0] + 1 and untouched:
        return f"unwritten: rows {rows[0]} to {rows[-1]}, the last of {Lq}, hold {'NaN' if np.isnan(values).any() else 'zeros'}"
    if solid and len(rows) == rows[-1] - rows[0] + 1:
        return f"wrong in rows {rows[0]} to {rows[-1]} of {Lq} only, in every head"
    for axis, size, word in ((1, Hq, "head"), (0, B, "batch item")):
        places = np.flatnonzero(np.asarray(wrong.any(axis=(2, 1 - axis))))
        if size > 1 and len(places) == 1:
            return f"wrong in {word} {places[0]} of {size} only"
    return ""


def _precision(trial: Trial) -> str:
    """P rounded to a coarser format than declared: the errors fit that format's bound, and lse fits its own."""
    declared = FloatFormat(trial.arithmetic.probabilities).unit_roundoff
    for name in ROUGHER:
        if FloatFormat(name).unit_roundoff <= declared:
            continue
        for rounded_sum in (False, True):
            rough = replace(trial.arithmetic, probabilities=name, row_sum_rounded=rounded_sum)
            allowed = trial.operation.bound(rough, trial.case, trial.conventions)
            if all((ratios(got, trial.wanted[result], allowed[result]) <= 1.0).all() for result, got in trial.answer.items()):
                summed = ", the row sum from the rounded ones" if rounded_sum else ""
                return f"{PRECISION}as if P were rounded to {name}{summed}"
    return ""

