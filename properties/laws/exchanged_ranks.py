"""Laws of what ranks exchange one by one: each index of a cache is served once, each token's gradient stays with its token."""

from __future__ import annotations

import numpy as np

from oracles.reference import cache_place

from ..case import Case
from ..law import NOTHING, Judgement, Law, law, within
from ..safetensors_file import Array
from ..trial import Trial
from .every_operation import (
    agreement,
    answers,
    buffers_are_fully_written,
    inputs_stay_untouched,
    repeats_give_the_same_bits,
    same_bits,
    strides_are_respected,
)
from .shard_terms import list_agreement, of_list

# A cache over ranks ------------------------------------------------------------------------------------------------------


def _of_each_token(case: Case, values: Array) -> dict[str, Array]:
    """Values of all tokens (L,) as the shards of v, the same in every column."""
    shards = of_list(case.arrays, "v_shards")
    rank, place = cache_place(np.arange(len(values)), ranks=len(shards), interleave=int(str(case.options["interleave"])))
    new = {name: np.zeros(shard.shape) for name, shard in shards.items()}
    for r, name in enumerate(new):
        new[name][:, :, place[rank == r]] = values[rank == r][:, None]
    return {name: x.astype(shards[name].dtype) for name, x in new.items()}


def _length(case: Case) -> int:
    shards = of_list(case.arrays, "v_shards")
    return len(shards) * int(next(iter(shards.values())).shape[2])


def _numbered(case: Case) -> Case | None:
    """q = 0, and the value of each token is its number, modulo 8."""
    if case.arrays["q"].size == 0 or _length(case) == 0:
        return None
    return case.with_arrays(q=np.zeros_like(case.arrays["q"]), **_of_each_token(case, np.arange(_length(case)) % 8.0))


@law(prepare=_numbered)
def each_index_is_served_by_its_token(trial: Trial) -> Judgement:
    """With Q = 0 all chosen tokens weigh the same, and the value of token g is g mod 8: out is the mean of the indices mod 8.

    Told from the indices alone: a token of another rank's turn, a token served twice or by nobody shows. Allowed: the bound.
    """
    if "out" not in trial.answer:
        return NOTHING
    means = [np.mean(row[row >= 0] % 8.0) if (row >= 0).any() else 0.0 for row in trial.case.arrays["indices"]]
    wanted = np.broadcast_to(np.array(means).reshape(-1, 1, 1), trial.wanted["out"].shape)
    return within(trial.answer, {"out": wanted}, {"out": trial.allowed["out"]})


def _some_not_asked(case: Case) -> Case | None:
    return case if case.arrays["q"].size and case.arrays["indices"].shape[1] < _length(case) else None


@law(prepare=_some_not_asked, every=2)
def tokens_that_nobody_asked_for_do_not_matter(trial: Trial) -> Judgement:
    """Other keys and values at places that no index names leave every bit of out and lse. Allowed: 0."""
    case = trial.case
    asked = np.isin(np.arange(_length(case)), case.arrays["indices"])
    free = {name: x[:, :, :, :1] > 0 for name, x in _of_each_token(case, (~asked).astype(np.float64)).items()}
    both = {name: free["v_" + name[2:]] for name in case.arrays if name.startswith(("k_", "v_"))}
    changed = {name: np.where(places, case.arrays[name].dtype.type(3), case.arrays[name]) for name, places in both.items()}
    everywhere = {name: np.ones(x.shape, bool) for name, x in trial.answer.items()}
    return same_bits(trial, trial.on(case.with_arrays(**changed)), everywhere)


CACHE_LAWS: tuple[Law, ...] = (
    answers, agreement("out"), agreement("lse"), each_index_is_served_by_its_token, tokens_that_nobody_asked_for_do_not_matter,
    strides_are_respected, inputs_stay_untouched, buffers_are_fully_written, repeats_give_the_same_bits,
)  # fmt: skip


# A norm before an all-to-all ---------------------------------------------------------------------------------------------


def _of_one_rank(case: Case) -> Case | None:
    """dy is 0 but at the tokens of one rank."""
    shards, x = of_list(case.arrays, "dy_shards"), case.arrays["x_shards.0"]
    if len(shards) < 2 or x.size == 0:
        return None
    r, n = int(case.hash, 16) % len(shards), x.shape[2]
    mine = (np.arange(len(shards) * n) // n == r)[:, None]
    return case.with_arrays(**{name: np.where(mine, dy, dy.dtype.type(0)) for name, dy in shards.items()})


@law(prepare=_of_one_rank)
def gradients_stay_with_their_tokens(trial: Trial) -> Judgement:
    """With dy = 0 but at the tokens of one rank, only that rank's dx is not 0: a norm mixes the numbers of one vector alone. Allowed: 0."""
    zero = {name: x for name, x in of_list(trial.wanted, "dx").items() if not x.any()}
    return within(trial.answer, zero, {name: np.zeros(x.shape) for name, x in zero.items()})


NORM_LAWS: tuple[Law, ...] = (
    answers, list_agreement("dx"), agreement("dweight"), gradients_stay_with_their_tokens, strides_are_respected, inputs_stay_untouched,
    repeats_give_the_same_bits,
)  # fmt: skip
