"""Laws of the rows of a verification, whatever uniforms stand for: which tokens are the draft's, and that calls share no draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from oracles.reference.speculative import lengths

from ..case import Case
from ..law import NOTHING, Evidence, Judgement, law
from ..trial import Trial
from .subject_laws import NoAnswerError, draws_anew, integers, needs_a_generator

COINS = 2**7


@law(minimise=False)
def accepted_tokens_are_the_drafts(trial: Trial) -> Judgement:
    """A row is its first n_accepted draft tokens, one token more, and -1 behind: nothing after a rejection counts. Allowed: 0."""
    if not {"tokens", "n_accepted"} <= set(trial.answer):
        return NOTHING
    x, V = trial.case.arrays["draft_tokens"], trial.case.arrays["target_probs"].shape[2]
    n = lengths(x, trial.case.arrays.get("draft_lengths"))
    for b, (tokens, m) in enumerate(zip(trial.answer["tokens"].tolist(), trial.answer["n_accepted"].tolist())):
        sound = 0 <= m <= n[b] and tokens[:m] == x[b, :m].tolist() and 0 <= tokens[m] < V and set(tokens[m + 1 :]) <= {-1}
        if not sound:
            draft = x[b, : n[b]].tolist()
            reason = f"row {b}: n_accepted {m} and tokens {tokens}; want the first {m} of the draft {draft}, one token more, and -1 behind"
            return Judgement(len(x), worst_ratio=np.inf, worst_at=f"tokens[{b}]", failed=True, reason=reason,
                             evidence=Evidence(trial.wanted, trial.allowed))  # fmt: skip
    return Judgement(len(x))


def _coins(case: Case) -> Case | None:
    """Of each two rows one whose first draft is accepted by a fair coin, and one whose drafts are, with a coin for the token after them."""
    if not case.notes.get("law"):
        return None
    given, (_, K, V) = case.arrays, case.arrays["draft_probs"].shape
    q, p = np.zeros((2 * COINS, K, V)), np.zeros((2 * COINS, K + 1, V))
    q[..., 0] = p[1::2, :K, 0] = 1.0
    p[0::2, :, :2] = p[1::2, K, :2] = 0.5
    arrays = {"draft_tokens": np.zeros((2 * COINS, K)), "draft_probs": q, "target_probs": p,
              "accept_u": np.full((2 * COINS, K), 0.25), "sample_u": np.full(2 * COINS, 0.25)}  # fmt: skip
    return replace(case, arrays={name: array.astype(given[name].dtype) for name, array in arrays.items()}, notes={})


@law(prepare=_coins, not_covered=needs_a_generator)
def a_second_call_draws_anew(trial: Trial) -> Judgement:
    """For a subject with a generator of its own: a second call does not draw the numbers of the first, in the same rows or others.

    Fair coins that accept a draft in 128 rows, and that choose the token after it in 128 others; false alarms 2^-62. Each call
    alone has its law even where a captured graph replays its seed (NVIDIA/Megatron-LM#5697).
    """
    shapes = {"tokens": trial.case.arrays["target_probs"].shape[:2], "n_accepted": (2 * COINS,)}
    try:
        first, second = (integers(trial, trial.case, shapes) for _ in range(2))
    except NoAnswerError:
        return NOTHING
    accepted = draws_anew(first["n_accepted"][0::2] > 0, second["n_accepted"][0::2] > 0, "n_accepted")
    return accepted if accepted.failed else draws_anew(first["tokens"][1::2, -1], second["tokens"][1::2, -1], "tokens")
