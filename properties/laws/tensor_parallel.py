"""Laws of tensor and vocabulary parallelism: parts are the whole, a bias counts once, heads stay whole, copies count once."""

from __future__ import annotations

import numpy as np

from ..array_lists import spread, whole_name
from ..case import Case
from ..law import NOTHING, Judgement, Law, law, within
from ..safetensors_file import Array
from ..trial import Trial
from .every_operation import agreement, answers, inputs_stay_untouched, pinned, repeats_give_the_same_bits, strides_are_respected
from .losses import one_rank_may_lie_far_above_the_others
from .ranks import exact_on_integers, list_agreement, members, same_on_every_rank

_SHARED = (inputs_stay_untouched, strides_are_respected, repeats_give_the_same_bits)


def _list_of(case: Case, name: str) -> list[Array]:
    return [a for key, a in case.arrays.items() if whole_name(key) == name]


def _replaced(case: Case, **lists: list[Array]) -> Case:
    """The case with other lists of arrays in the place of these, of any length."""
    kept = {name: a for name, a in case.arrays.items() if whole_name(name) not in lists}
    return Case(case.operation, {**kept, **{k: a for name, new in lists.items() for k, a in spread(name, new).items()}}, case.options,
                case.origin, case.notes)  # fmt: skip


@law(minimise=False, every=2)
def columns_side_by_side_are_the_product_of_one_rank(trial: Trial) -> Judgement:
    """All columns on one rank give what the ranks give, side by side. Allowed: bound(case) + bound(one rank's case)."""
    w, b = _list_of(trial.case, "w_shards"), _list_of(trial.case, "bias_shards")
    one = trial.on(_replaced(trial.case, w_shards=[np.concatenate(w, axis=1)], bias_shards=[np.concatenate(b)]))
    if not trial.answer or not one.answer:
        return NOTHING
    ends = np.cumsum([a.shape[1] for a in w])[:-1]
    wanted = spread("out", np.split(one.answer["out.0"].astype(np.float64), ends, axis=1))
    share = spread("out", np.split(one.allowed["out.0"], ends, axis=1))
    return pinned(within(trial.answer, wanted, {name: trial.allowed[name] + share[name] for name in wanted}), trial, one)


@law(minimise=False, every=2)
def rows_added_up_are_the_product_of_one_rank(trial: Trial) -> Judgement:
    """All rows on one rank give what every rank gives. Allowed: bound(case) + bound(one rank's case)."""
    x, w = _list_of(trial.case, "x_shards"), _list_of(trial.case, "w_shards")
    one = trial.on(_replaced(trial.case, x_shards=[np.concatenate(x, axis=1)], w_shards=[np.concatenate(w)]))
    if not trial.answer or not one.answer:
        return NOTHING
    wanted = {name: one.answer["out.0"].astype(np.float64) for name in trial.answer}
    return pinned(within(trial.answer, wanted, {name: trial.allowed[name] + one.allowed["out.0"] for name in wanted}), trial, one)


def _no_input(case: Case) -> Case:
    return _replaced(case, x_shards=[np.zeros_like(a) for a in _list_of(case, "x_shards")])


@law(prepare=_no_input, every=2)
def the_bias_counts_once(trial: Trial) -> Judgement:
    """Of inputs of 0 nothing is left but the bias: once, not once a rank. Allowed: 0."""
    bias = trial.case.arrays["bias"]
    wanted = {name: np.broadcast_to(bias.astype(np.float64), a.shape) for name, a in trial.answer.items() if a.dtype == bias.dtype}
    return within(trial.answer, wanted, {name: np.zeros(value.shape) for name, value in wanted.items()})


def _tagged_heads(case: Case) -> Case:
    """Column c of the queries holds c + 1, of the keys 101 + c, of the values 171 + c: the same in every row, below 256."""
    first = {"w_q": 1, "w_k": 101, "w_v": 171}
    return case.with_arrays(**{name: np.broadcast_to(first[name] + np.arange(a.shape[1]) % 60, a.shape).astype(a.dtype)
                               for name, a in case.arrays.items()})  # fmt: skip


@law(prepare=_tagged_heads, every=2)
def heads_stay_whole_and_with_their_keys(trial: Trial) -> Judgement:
    """Rank r has the columns of query heads r H / R and following, and of the kv heads h // (H / Hkv) that they read. Allowed: 0.

    Worked out head by head, from the map that attention itself has.
    """
    heads, kv_heads, world = (trial.case.options[name] for name in ("heads", "kv_heads", "world"))
    assert isinstance(heads, int)
    assert isinstance(kv_heads, int)
    assert isinstance(world, int)
    wanted = {}
    for r in range(world):
        own = range(r * heads // world, (r + 1) * heads // world)
        read = list(dict.fromkeys(h // (heads // kv_heads) for h in own))
        for name, argument, H, chosen in (("q", "w_q", heads, list(own)), ("k", "w_k", kv_heads, read), ("v", "w_v", kv_heads, read)):
            w = trial.case.arrays[argument].astype(np.float64)
            D = w.shape[1] // H
            wanted[f"{name}.{r}"] = np.concatenate([w[:, h * D : (h + 1) * D] for h in chosen], axis=1)
    return within(trial.answer, wanted, {name: np.zeros(value.shape) for name, value in wanted.items()})


def _last_token(case: Case) -> Case:
    tokens, table = case.arrays["tokens"], case.arrays["table"]
    return case.with_arrays(tokens=np.full_like(tokens, len(table) - 1), table=np.sign(table) + (table == 0).astype(table.dtype))


@law(prepare=_last_token, every=2)
def the_last_token_is_somebodys(trial: Trial) -> Judgement:
    """The last row of a table of any length is found, by every rank, and is not 0. Allowed: 0."""
    table = trial.case.arrays["table"]
    wanted = {name: np.broadcast_to(table[-1].astype(np.float64), a.shape) for name, a in members(trial.answer, "out").items()}
    return within(trial.answer, wanted, {name: np.zeros(value.shape) for name, value in wanted.items()})


@law(minimise=False)
def gradients_of_a_row_sum_to_zero_over_all_ranks(trial: Trial) -> Judgement:
    """Without z_loss the gradients of all classes of a row, on all ranks together, sum to 0. Allowed: the sum of the bounds.

        sum_c dz_c = g (sum_c p_c - 1) = 0
    """
    if trial.case.options.get("z_loss") or "dshards" not in trial.answer:
        return NOTHING
    total = trial.answer["dshards"].astype(np.float64).sum(axis=(0, -1))
    allowed = trial.allowed["dshards"].sum(axis=(0, -1)) * (1.0 + 2.0**-20)
    return pinned(within({"dshards": total}, {"dshards": np.zeros(total.shape)}, {"dshards": allowed}), trial)


@law(minimise=False, every=2)
def a_rank_without_the_target_has_its_share(trial: Trial) -> Judgement:
    """All classes on one rank have the gradients that the ranks have side by side, whoever holds the target. Allowed: both bounds."""
    shards = trial.case.arrays["shards"]
    one = trial.on(trial.case.with_arrays(shards=np.concatenate(list(shards), axis=-1)[None]))
    if not trial.answer or not one.answer:
        return NOTHING
    whole, allowed = one.answer["dshards"].astype(np.float64), one.allowed["dshards"]
    wanted, share = (np.stack(np.split(a[0], len(shards), axis=-1)) for a in (whole, allowed))
    return pinned(within(trial.answer, {"dshards": wanted}, {"dshards": trial.allowed["dshards"] + share}), trial, one)


@law(minimise=False, every=2)
def the_weight_gradient_is_that_of_one_rank(trial: Trial) -> Judgement:
    """All vectors on one rank give the same gradient of the weight: a sum over ranks, no mean. Allowed: both bounds."""
    axis = 0 if trial.case.options["sharded"] == "tokens" else 1
    together = {name: [np.concatenate(_list_of(trial.case, name), axis=axis)] for name in ("x_shards", "dout_shards")}
    one = trial.on(_replaced(trial.case, **together))
    if not trial.answer or not one.answer:
        return NOTHING
    wanted = {name: one.answer["dweight.0"].astype(np.float64) for name in members(trial.answer, "dweight")}
    allowed = {name: trial.allowed[name] + one.allowed["dweight.0"] for name in wanted}
    return pinned(within(trial.answer, wanted, allowed), trial, one)


def _three_and_four(case: Case) -> Case | None:
    """A replicated gradient with a 4 on every rank, a sharded one with a 3 on the last rank, 0 elsewhere."""
    kinds = case.arrays["placement"]
    new = {name: np.zeros_like(a) for name, a in case.arrays.items() if name != "placement"}
    copied, cut = ([a for a, kind in zip(new.values(), kinds) if kind == wanted and a.size] for wanted in (0, 1))
    if not copied or not cut:
        return None
    copied[0].reshape(len(copied[0]), -1)[:, 0] = 4
    cut[0].reshape(len(cut[0]), -1)[-1, -1] = 3
    return case.with_arrays(**new).with_options(max_norm=2.5)


@law(prepare=_three_and_four)
def copies_count_once_and_shards_all(trial: Trial) -> Judgement:
    """4 on every rank, replicated, and 3 on the last, sharded, have norm 5 whatever R is: with a limit of 2.5 they become 2 and 1.5.

    Allowed: the bound.
    """
    wanted = {name: a.astype(np.float64) / 2.0 for name, a in trial.case.arrays.items() if name != "placement"}
    if trial.conventions["clip_denominator"] != "norm":
        wanted = {name: value for name, value in trial.wanted.items() if name != "norm"}
    return within(trial.answer, {**wanted, "norm": np.asarray(5.0)}, trial.allowed)


@law(minimise=False)
def copies_stay_equal(trial: Trial) -> Judgement:
    """Every rank's copy of a replicated gradient is scaled by the same factor: copies are equal to the last bit afterwards. Allowed: 0."""
    kinds = trial.case.arrays["placement"]
    copies = [name for name, kind in zip((n for n in trial.case.arrays if n != "placement"), kinds) if not kind and name in trial.answer]
    wanted = {name: np.broadcast_to(trial.answer[name][:1].astype(np.float64), trial.answer[name].shape) for name in copies}
    return within(trial.answer, wanted, {name: np.zeros(value.shape) for name, value in wanted.items()})


COLUMN_LAWS: tuple[Law, ...] = (
    answers, list_agreement("out"), columns_side_by_side_are_the_product_of_one_rank,
    exact_on_integers("integers_are_multiplied_exactly"), *_SHARED,
)  # fmt: skip
ROW_LAWS: tuple[Law, ...] = (
    answers, list_agreement("out"), same_on_every_rank("out"), rows_added_up_are_the_product_of_one_rank, the_bias_counts_once,
    exact_on_integers("integers_are_multiplied_exactly"), *_SHARED,
)  # fmt: skip
QKV_LAWS: tuple[Law, ...] = (
    answers, list_agreement("q"), list_agreement("k"), list_agreement("v"), heads_stay_whole_and_with_their_keys, *_SHARED,
)  # fmt: skip
EMBEDDING_LAWS: tuple[Law, ...] = (
    answers, list_agreement("out"), same_on_every_rank("out"), the_last_token_is_somebodys, *_SHARED,
)  # fmt: skip
VOCAB_LOSS_LAWS: tuple[Law, ...] = (
    answers, agreement("dshards"), gradients_of_a_row_sum_to_zero_over_all_ranks, a_rank_without_the_target_has_its_share,
    one_rank_may_lie_far_above_the_others, *_SHARED,
)  # fmt: skip
NORM_LAWS: tuple[Law, ...] = (
    answers, list_agreement("dx"), list_agreement("dweight"), same_on_every_rank("dweight"), the_weight_gradient_is_that_of_one_rank,
    *_SHARED,
)  # fmt: skip
SHARDED_CLIP_LAWS: tuple[Law, ...] = (
    answers, list_agreement("grads"), agreement("norm"), copies_count_once_and_shards_all, copies_stay_equal, inputs_stay_untouched,
    repeats_give_the_same_bits,
)  # fmt: skip
