"""Relations of attention: two calls whose answers must fit together. Each says when it holds; both calls may round."""

from __future__ import annotations

import numpy as np

from oracles.reference import merge_attention

from ..case import Case
from ..comparison import Float64
from ..law import NOTHING, Judgement, Law, law, within
from ..safetensors_file import Array
from ..trial import Trial
from .attention_terms import is_empty, like, sizes, visible, without
from .every_operation import pinned

PLACED = ("window", "alibi_slopes", "kv_lengths")                               # with causal, what gives keys a place in the sequence
ALONG_KEYS = ("bias", "mask", "dropout_mask")


def widened(trial: Trial) -> dict[str, Float64]:
    """The subject's answer in float64."""
    return {name: np.asarray(got, np.float64) for name, got in trial.answer.items()}


def fits(trial: Trial, wanted: dict[str, Float64], allowed: dict[str, Float64], *others: Trial) -> Judgement:
    """The judgement that the answer is what the other calls say, within the bounds of all. Not-a-number proves nothing here."""
    named = [name for name in wanted if name in trial.answer]
    slack = {}
    for name in named:
        told = np.isfinite(wanted[name]) | np.isneginf(wanted[name])
        slack[name] = np.where(told, trial.allowed[name] + allowed[name], np.inf)
    return pinned(within(trial.answer, {name: wanted[name] for name in named}, slack), trial, *others)


def _all_seen(case: Case, *names: str) -> Case:
    """The case without some options, and with plain numbers where poison stood that they may have hidden."""
    B, Hq, _, Lk = sizes(case)
    Hkv = case.arrays["k"].shape[1]
    seen = np.asarray(visible(case).any(axis=2).reshape(B, Hkv, Hq // Hkv, Lk).any(axis=2))[..., None]
    plain = {name: np.where(seen, case.arrays[name].astype(np.float64), 0.5).astype(case.arrays[name].dtype) for name in ("k", "v")}
    return without(case, *names).with_arrays(**plain)


def _on_the_grid(case: Case) -> Case | None:
    """Keys on multiples of 1/4 within ±3, so that an integer can be added to them without rounding in any 8-bit significand."""
    if is_empty(case):
        return None
    case = _all_seen(case, "softcap", "sinks")
    k = case.arrays["k"]
    grid = np.clip(np.rint(k.astype(np.float64) * 4.0) / 4.0, -3.0, 3.0)
    q = np.clip(case.arrays["q"].astype(np.float64), -4.0, 4.0)
    return case.with_arrays(k=like(k, grid), q=like(case.arrays["q"], q))


@law(prepare=_on_the_grid, every=7)
def adding_one_vector_to_all_keys_changes_nothing(trial: Trial) -> Judgement:
    """Adding one vector to every key moves all scores of a query by the same amount: the weights stay, the log-sum-exp moves along.

        softmax(q (k + c)^T) = softmax(q k^T + q c^T) = softmax(q k^T),   lse' = lse + scale q c

    Not with softcap (scores are bent) or sinks (their logit stays). Allowed: the bounds of both calls, and one for scale q c.
    """
    case = trial.case
    shift = np.where(np.arange(case.arrays["k"].shape[-1]) % 2, -1.0, 1.0)
    other = trial.on(case.with_arrays(k=like(case.arrays["k"], case.arrays["k"].astype(np.float64) + shift)))
    if not trial.answer or not other.answer:
        return NOTHING
    return fits(trial, _moved(case, widened(other), shift), other.allowed, other)


def _moved(case: Case, answer: dict[str, Float64], shift: Float64) -> dict[str, Float64]:
    scale = case.options.get("scale")
    factor = case.arrays["q"].shape[-1] ** -0.5 if scale is None else scale
    assert isinstance(factor, float | int)
    moved = factor * (case.arrays["q"].astype(np.float64) @ shift)              # (B, Hq, Lq)
    return {name: value - moved if name == "lse" else value for name, value in answer.items()}


def _permutable(case: Case) -> Case | None:
    if is_empty(case) or case.options.get("causal") is not None or case.arrays["k"].shape[2] < 2:
        return None
    return _all_seen(case, *PLACED)


def _take_keys(case: Case, index: Array) -> Case:
    """The case with its keys chosen by index, and everything that has an axis of keys with them."""
    arrays = {name: case.arrays[name][:, :, index] for name in ("k", "v")}
    Lk = case.arrays["k"].shape[2]
    for name in ALONG_KEYS:
        if name in case.arrays and case.arrays[name].shape[-1] == Lk and Lk > 0:
            arrays[name] = case.arrays[name][..., index]
    return case.with_arrays(**arrays)


@law(prepare=_permutable, every=7)
def the_order_of_keys_does_not_matter(trial: Trial) -> Judgement:
    """Keys, values, and the columns of bias and masks in another order: the same sum. Not with causal, windows, ALiBi, kv_lengths.

    Allowed: the bounds of both calls, since sums in another order round differently.
    """
    Lk = trial.case.arrays["k"].shape[2]
    order = np.random.default_rng(int(trial.case.hash, 16)).permutation(Lk)
    other = trial.on(_take_keys(trial.case, order))
    return fits(trial, widened(other), other.allowed, other) if trial.answer and other.answer else NOTHING


@law(prepare=_permutable, every=7)
def two_parts_merge_into_the_whole(trial: Trial) -> Judgement:
    """Attention over the first keys and over the rest, sinks with the first, merge into attention over all; a part may be empty.

        out = w_a out_a + w_b out_b,  w = softmax(lse_a, lse_b)

    Not with causal, windows, ALiBi, kv_lengths; needs lse. Allowed: the bounds of all three calls; a change of lse_a - lse_b by b
    moves a weight by at most b e^b w_a w_b, and lse by at most the larger of its parts' changes.
    """
    case = trial.case
    Lk = case.arrays["k"].shape[2]
    cut = int(case.hash, 16) % (Lk + 1)
    if not trial.subject.declaration.coverage.empty:
        cut = min(max(cut, 1), Lk - 1)
    first, second = (trial.on(_take_keys(case, np.arange(*span))) for span in ((0, cut), (cut, Lk)))
    second = trial.on(without(second.case, "sinks"))
    if not trial.answer or not all("lse" in part.answer for part in (first, second)):
        return NOTHING
    a, b = widened(first), widened(second)
    out, lse = merge_attention(a["out"], a["lse"], b["out"], b["lse"])
    with np.errstate(over="ignore", invalid="ignore"):
        slip = np.nan_to_num(first.allowed["lse"]) + np.nan_to_num(second.allowed["lse"])
        w_a, w_b = (np.where(np.isneginf(part), 0.0, np.exp(part - np.where(np.isneginf(lse), 0.0, lse))) for part in (a["lse"], b["lse"]))
        moved = (slip * np.exp(slip) * w_a * w_b)[..., None]
        allowed = (w_a[..., None] + moved) * first.allowed["out"] + (w_b[..., None] + moved) * second.allowed["out"]
        allowed = np.nan_to_num(allowed + moved * np.abs(a["out"] - b["out"]), nan=np.inf)
    lse_allowed = np.maximum(first.allowed["lse"], second.allowed["lse"])
    return fits(trial, {"out": out, "lse": lse}, {"out": allowed, "lse": lse_allowed}, first, second)


def _plain_average(case: Case) -> Case | None:
    """Without sinks and dropout; None where the table of all visible values would be too large."""
    if is_empty(case) or np.prod(sizes(case)) * case.arrays["v"].shape[-1] > 2**20:
        return None
    return _all_seen(case, "sinks", "dropout_mask", "dropout_p")


@law(prepare=_plain_average, every=7)
def outputs_lie_among_the_values(trial: Trial) -> Judgement:
    """An output is an average: in every column between the least and the greatest value the row sees. Not with sinks or dropout.

    Allowed: the bound.
    """
    case = trial.case
    if "out" not in trial.answer:
        return NOTHING
    Hq, Hkv = case.arrays["q"].shape[1], case.arrays["v"].shape[1]
    heads = np.arange(Hq) % Hkv if trial.conventions["head_map"] == "interleaved" else np.arange(Hq) // (Hq // Hkv)
    seen = visible(case)[..., None]                                             # (B, Hq, Lq, Lk, 1)
    v = case.arrays["v"].astype(np.float64)[:, heads][:, :, None]
    low, high = np.where(seen, v, np.inf).min(axis=3), np.where(seen, v, -np.inf).max(axis=3)
    some = seen.any(axis=3)
    wanted = np.where(some, np.clip(np.asarray(trial.answer["out"], np.float64), low, high), 0.0)
    return pinned(within(trial.answer, {"out": wanted}, {"out": np.where(some, trial.allowed["out"], np.inf)}), trial)


def _integer_values(case: Case) -> Case | None:
    if is_empty(case):
        return None
    case = _all_seen(case)
    v = case.arrays["v"]
    return case.with_arrays(v=like(v, np.clip(np.rint(v.astype(np.float64)), -7.0, 7.0)))


@law(prepare=_integer_values, every=7)
def outputs_are_linear_in_the_values(trial: Trial) -> Judgement:
    """attention(q, k, v + w) = attention(q, k, v) + attention(q, k, w), on integers that every format holds exactly.

    Allowed: the bounds of the three calls.
    """
    case = trial.case
    v = case.arrays["v"].astype(np.float64)
    w = np.roll(v, 1, axis=2)[..., ::-1] - 1.0
    parts = [trial.on(case.with_arrays(v=like(case.arrays["v"], values))) for values in (w, v + w)]
    if "out" not in trial.answer or not all("out" in part.answer for part in parts):
        return NOTHING
    difference = widened(parts[1])["out"] - widened(parts[0])["out"]
    return fits(trial, {"out": difference}, {"out": parts[0].allowed["out"] + parts[1].allowed["out"]}, *parts)


def _in_chunks(case: Case) -> Case | None:
    several = case.arrays["q"].shape[2] > 1 and not is_empty(case)
    crossing = ("window", "alibi_slopes", "kv_lengths")
    placed = case.options.get("causal") is None and any(name in case.arguments() for name in crossing)
    return case if several and not placed and case.options.get("causal") != "top_left" else None


@law(prepare=_in_chunks, every=7)
def the_last_queries_alone_are_the_same(trial: Trial) -> Judgement:
    """Chunked prefill: the last queries, asked alone against all keys, get what they get in one call. Not with causal = top_left.

    Bottom right: query i stands at i + n_k - Lq, so the last n queries keep their places. Allowed: the bounds of both calls.
    """
    case = trial.case
    Lq = case.arrays["q"].shape[2]
    start = 1 + int(case.hash, 16) % (Lq - 1)
    rows = {name: array[:, :, start:] for name, array in case.arrays.items() if name == "q"}
    rows |= {name: case.arrays[name][..., start:, :] for name in ALONG_KEYS if name in case.arrays and case.arrays[name].ndim > 1
             and case.arrays[name].shape[-2] == Lq}  # fmt: skip
    other = trial.on(case.with_arrays(**rows))
    if not trial.answer or not other.answer:
        return NOTHING
    wanted, allowed = {}, {}
    for name, value in widened(other).items():
        full = np.zeros(trial.wanted[name].shape)
        full[:, :, start:] = value
        wanted[name] = full
        allowed[name] = np.full(full.shape, np.inf)
        allowed[name][:, :, start:] = other.allowed[name]
    return fits(trial, wanted, allowed, other)


def _several_items(case: Case) -> Case | None:
    return case if case.arrays["q"].shape[0] > 1 and not is_empty(case) else None


def item(case: Case, b: int) -> Case:
    """One item of a batch as a batch of its own."""
    B = case.arrays["q"].shape[0]
    per_item = {n: a for n, a in case.arrays.items() if n not in ("sinks", "alibi_slopes") and a.ndim in (1, 3, 4) and a.shape[0] == B}
    unbatched = {n for n in ALONG_KEYS if n in per_item and per_item[n].ndim < 4}
    return case.with_arrays(**{name: array[b : b + 1] for name, array in per_item.items() if name not in unbatched})


@law(prepare=_several_items, every=7)
def each_item_of_a_batch_stands_alone(trial: Trial) -> Judgement:
    """The items of a batch, asked one by one, get what they get together. Allowed: the bounds of both calls."""
    alone = [trial.on(item(trial.case, b)) for b in range(trial.case.arrays["q"].shape[0])]
    if not trial.answer or not all(part.answer for part in alone):
        return NOTHING
    wanted = {name: np.concatenate([widened(part)[name] for part in alone]) for name in trial.answer}
    return fits(trial, wanted, {name: np.concatenate([part.allowed[name] for part in alone]) for name in wanted}, *alone)


def _no_sinks(case: Case) -> Case | None:
    prepared = _permutable(case)
    return None if prepared is None else without(prepared, "sinks", "dropout_mask", "dropout_p")


@law(prepare=_no_sinks, every=7)
def every_key_twice_weighs_the_same(trial: Trial) -> Judgement:
    """Each key and value given twice: every weight halves and is met twice, so the output stays and lse grows by ln 2.

    Not with sinks, dropout, or what gives keys a place. Allowed: the bounds of both calls.
    """
    Lk = trial.case.arrays["k"].shape[2]
    other = trial.on(_take_keys(trial.case, np.repeat(np.arange(Lk), 2)))
    if not trial.answer or not other.answer:
        return NOTHING
    halved = {name: value - np.log(2.0) if name == "lse" else value for name, value in widened(other).items()}
    return fits(trial, halved, other.allowed, other)


def _grouped(case: Case) -> Case | None:
    return case if case.arrays["q"].shape[1] != case.arrays["k"].shape[1] and not is_empty(case) else None


@law(prepare=_grouped, every=7)
def grouped_heads_are_repeated_heads(trial: Trial) -> Judgement:
    """Grouped-query attention is multi-head attention whose key/value heads are repeated, h -> h // (Hq / Hkv) or as declared.

    Allowed: the bounds of both calls.
    """
    case = trial.case
    Hq, Hkv = case.arrays["q"].shape[1], case.arrays["k"].shape[1]
    heads = np.arange(Hq) % Hkv if trial.conventions["head_map"] == "interleaved" else np.arange(Hq) // (Hq // Hkv)
    other = trial.on(case.with_arrays(k=case.arrays["k"][:, heads], v=case.arrays["v"][:, heads]))
    return fits(trial, widened(other), other.allowed, other) if trial.answer and other.answer else NOTHING


def _windowed(case: Case) -> Case | None:
    """Q = 0 and one-hot values under a window: the output counts the keys each row sees."""
    if is_empty(case) or case.options.get("window") is None:
        return None
    v, Lk = case.arrays["v"], case.arrays["k"].shape[2]
    columns = np.zeros((Lk, v.shape[-1]))
    first = int(case.hash, 16) % max(Lk - v.shape[-1] + 1, 1)
    shown = np.arange(min(v.shape[-1], Lk - first))
    columns[first + shown, shown] = 1.0
    bare = without(case, "bias", "alibi_slopes", "sinks", "dropout_mask", "dropout_p")
    return bare.with_arrays(q=np.zeros_like(case.arrays["q"]), k=np.ones_like(case.arrays["k"]),
                            v=np.broadcast_to(columns, v.shape).astype(v.dtype))  # fmt: skip


@law(prepare=_windowed, every=2)
def each_row_sees_its_number_of_keys(trial: Trial) -> Judgement:
    """Under a window, with all scores equal and one-hot values, the number of columns above 0 is the number of keys shown and seen.

    Allowed: 0, counts are integers. Weights of 1/n are above the smallest number of every format here.
    """
    if "out" not in trial.answer:
        return NOTHING
    got = (np.asarray(trial.answer["out"], np.float64) > 0).sum(axis=-1)        # (B, Hq, Lq)
    wanted = (trial.wanted["out"] > 0).sum(axis=-1)
    wrong = np.argwhere(got != wanted)
    if len(wrong):
        place = f"out[{','.join(map(str, wrong[0]))}]"
        reason = f"{place} weighs {got[tuple(wrong[0])]} of the keys shown; it sees {wanted[tuple(wrong[0])]} of them"
        return pinned(Judgement(got.size, worst_ratio=np.inf, worst_at=place, failed=True, reason=reason), trial)
    return Judgement(compared=got.size)


ATTENTION_RELATIONS: tuple[Law, ...] = (
    adding_one_vector_to_all_keys_changes_nothing,
    the_order_of_keys_does_not_matter,
    two_parts_merge_into_the_whole,
    outputs_lie_among_the_values,
    outputs_are_linear_in_the_values,
    the_last_queries_alone_are_the_same,
    each_item_of_a_batch_stands_alone,
    every_key_twice_weighs_the_same,
    grouped_heads_are_repeated_heads,
    each_row_sees_its_number_of_keys,
)
