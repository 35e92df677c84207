"""Laws of verification: every decision, what stands behind a draft, and the ends of [0, 1). Its exact laws are in verified_law."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..bounds.speculative import admissible_outcomes
from ..case import Case
from ..law import NOTHING, Evidence, Judgement, Law, law, within
from ..safetensors_file import Array
from ..trial import Trial
from .every_operation import (
    agreement,
    answers,
    buffers_are_fully_written,
    inputs_stay_untouched,
    pinned,
    repeats_give_the_same_bits,
    strides_are_respected,
)
from .subject_laws import Int64, follows_the_contract
from .verified_law import emissions_pass_the_test_of_their_law, the_law_of_their_number_is_the_rules, the_law_of_tokens_is_the_targets
from .verified_rows import a_second_call_draws_anew, accepted_tokens_are_the_drafts

MODELS = ("draft_probs", "target_probs")


def _lengths(case: Case) -> Int64:
    from oracles.reference.speculative import lengths

    return lengths(case.arrays["draft_tokens"], case.arrays.get("draft_lengths"))


def _all_of_it(case: Case, **arrays: Array) -> Case:
    """The case with full drafts and other arrays in the formats of its own."""
    kept = {name: array for name, array in case.arrays.items() if name != "draft_lengths"}
    return replace(case, arrays={**kept, **{name: array.astype(kept[name].dtype) for name, array in arrays.items()}}, notes={})


def _shape(case: Case) -> tuple[int, int, int]:
    B, K, V = case.arrays["draft_probs"].shape
    return B, K, V


@law(minimise=False, not_covered=follows_the_contract)
def every_decision_is_right(trial: Trial) -> Judgement:
    """A draft token is accepted iff u q(x) < p(x), or its block by u < h, and the token after it is what sample_u stands for, row by row.

    Where a decision lies within the derived error of a tie, what follows is judged under the subject's own decision. Left out:
    the decisions that may go either way. Allowed: nothing else.
    """
    if not {"tokens", "n_accepted"} <= set(trial.answer):
        return NOTHING
    x, n = trial.case.arrays["draft_tokens"], trial.answer["n_accepted"]
    sets = admissible_outcomes(trial.arithmetic, **trial.case.arguments(), conventions=trial.conventions)
    left_out = 0
    for b, outcomes in enumerate(sets):
        tokens, m = trial.answer["tokens"][b].tolist(), int(n[b])
        left_out += len({accepted for accepted, _ in outcomes}) - 1 + (len(outcomes) > len({a for a, _ in outcomes}))
        legal = [(a, [*x[b, :a].tolist(), token, *[-1] * (len(tokens) - a - 1)]) for a, token in outcomes]
        if (m, tokens) not in legal:
            wanted = ", or ".join(f"{a} accepted and {t}" for a, t in sorted(outcomes)[:3])
            reason = f"row {b}: n_accepted {m} and tokens {tokens}; want {wanted}, which no rounding changes"
            evidence = Evidence(trial.wanted, trial.allowed)
            return Judgement(len(x), left_out, np.inf, f"tokens[{b}]", failed=True, reason=reason, evidence=evidence)
    return Judgement(len(sets), left_out)


def _behind(case: Case) -> Case | None:
    n, (_, K, V) = _lengths(case), _shape(case)
    if "draft_lengths" not in case.arrays or not (n < K).any():
        return None
    behind = np.arange(K) >= n[:, None]
    q, p, x = (case.arrays[name].copy() for name in (*MODELS, "draft_tokens"))
    q[behind], p[:, 1:][behind] = np.nan, np.nan
    return case.with_arrays(draft_probs=q, target_probs=p, draft_tokens=np.where(behind, (x + 1) % V, x))


@law(prepare=_behind)
def what_stands_behind_a_draft_never_matters(trial: Trial) -> Judgement:
    """NaN and other tokens behind draft_lengths change nothing. Allowed: the bound."""
    return within(trial.answer, trial.wanted, trial.allowed)


@law(every=2, minimise=False)
def each_row_stands_alone(trial: Trial) -> Judgement:
    """A draft verified alone gives what it gives in its batch. Allowed: the bounds of both calls."""
    B = len(trial.case.arrays["draft_tokens"])
    if B < 2 or not trial.answer:
        return NOTHING
    b = int(trial.case.hash, 16) % B
    other = trial.on(replace(trial.case.with_arrays(**{n: a[b : b + 1] for n, a in trial.case.arrays.items()}), notes={}))
    here = {name: got[b : b + 1].astype(np.float64) for name, got in trial.answer.items()}
    allowed = {name: trial.allowed[name][b : b + 1] + other.allowed[name] for name in here}
    return pinned(within(other.answer, here, allowed), trial, other)


def _equal_models(case: Case) -> Case | None:
    B, K, V = _shape(case)
    if not B or not K:
        return None
    g_ = np.random.default_rng(int(case.hash, 16))
    p = np.eye(V)[g_.integers(0, V, (B, K + 1))] / 2 + np.eye(V)[g_.integers(0, V, (B, K + 1))] / 2
    x = p[:, :K].argmax(axis=-1)
    return _all_of_it(case, draft_tokens=x, draft_probs=p[:, :K], target_probs=p, accept_u=g_.integers(0, 8, (B, K)) / 8,
                      sample_u=g_.integers(0, 4, B) / 4 + 1 / 8)  # fmt: skip


@law(prepare=_equal_models, every=2)
def equal_models_accept_every_draft(trial: Trial) -> Judgement:
    """Where p = q, the ratio is 1 and every u below it: all drafts are accepted. Allowed: 0 in the number accepted."""
    B, K, _ = _shape(trial.case)
    return within(trial.answer, {"n_accepted": np.full(B, float(K))}, {"n_accepted": np.zeros(B)})


def _disjoint(case: Case) -> Case | None:
    B, K, V = _shape(case)
    if not B or not K or V < 2:
        return None
    g_ = np.random.default_rng(int(case.hash, 16))
    x = g_.integers(0, V, (B, K))
    y = (x + g_.integers(1, V, (B, K))) % V
    p = np.concatenate([np.eye(V)[y], np.eye(V)[y[:, :1]]], axis=1)
    return _all_of_it(case, draft_tokens=x, draft_probs=np.eye(V)[x], target_probs=p,
                      accept_u=np.where(np.arange(B)[:, None] % 2, 0.0, g_.integers(0, 8, (B, K)) / 8))  # fmt: skip


@law(prepare=_disjoint, every=2)
def drafts_the_target_never_gives_are_rejected(trial: Trial) -> Judgement:
    """Where p(x) = 0, x is rejected at once, for u = 0 too, and the only token of p comes out. Allowed: 0."""
    return within(trial.answer, trial.wanted, {name: np.zeros(want.shape) for name, want in trial.wanted.items()})


def _certain(case: Case) -> Case | None:
    """Drafts that are certain for both models, and after each of them a token that tells its row."""
    B, K, V = _shape(case)
    if not B or V < 2:
        return None
    g_ = np.random.default_rng(int(case.hash, 16))
    x = g_.integers(0, V, (B, K + 1))
    for j in range(1, K + 1):
        x[:, j] = np.where(x[:, j] == x[:, j - 1], (x[:, j] + 1) % V, x[:, j])
    changed = _all_of_it(case, draft_tokens=x[:, :K], draft_probs=np.eye(V)[x[:, :K]], target_probs=np.eye(V)[x])
    if "draft_lengths" in case.arrays:
        n = g_.integers(0, K + 1, B)
        x = np.where(np.arange(K) < n[:, None], x[:, :K], x[:, 1:])
        changed = replace(changed, arrays={**changed.arrays, "draft_lengths": n})
    return changed


@law(prepare=_certain, every=2)
def the_bonus_comes_from_the_row_after_the_draft(trial: Trial) -> Judgement:
    """Where every row of the target is certain, the token after an accepted draft of length n is that of row n. Allowed: 0."""
    return within(trial.answer, trial.wanted, {name: np.zeros(want.shape) for name, want in trial.wanted.items()})


@law(minimise=False)
def no_token_without_a_probability_comes_out(trial: Trial) -> Judgement:
    """Every token that comes out has a probability above 0 in the target's row of its place, and lies in the vocabulary.

    At u = 0, at the largest u, and where nothing is left of a residual. Allowed: no other.
    """
    if not {"tokens", "n_accepted"} <= set(trial.answer):
        return NOTHING
    p, compared = trial.case.arrays["target_probs"].astype(np.float64), 0
    for b, tokens in enumerate(trial.answer["tokens"].tolist()):
        for j, token in enumerate(tokens):
            if token == -1:
                break
            compared += 1
            if not 0 <= token < p.shape[-1] or not p[b, j, token] > 0.0:
                reason = f"tokens[{b},{j}] is {token}, to which the target gives nothing"
                return Judgement(compared, worst_ratio=np.inf, worst_at=f"tokens[{b},{j}]", failed=True, reason=reason,
                                 evidence=Evidence(trial.wanted, trial.allowed))  # fmt: skip
    return Judgement(compared)


VERIFY_LAWS: tuple[Law, ...] = (
    answers,
    replace(agreement("tokens"), minimise=False, not_covered=follows_the_contract),
    replace(agreement("n_accepted"), minimise=False, not_covered=follows_the_contract),
    every_decision_is_right,
    accepted_tokens_are_the_drafts,
    what_stands_behind_a_draft_never_matters,
    each_row_stands_alone,
    equal_models_accept_every_draft,
    drafts_the_target_never_gives_are_rejected,
    the_bonus_comes_from_the_row_after_the_draft,
    no_token_without_a_probability_comes_out,
    the_law_of_tokens_is_the_targets,
    the_law_of_their_number_is_the_rules,
    emissions_pass_the_test_of_their_law,
    a_second_call_draws_anew,
    replace(strides_are_respected, minimise=False),
    inputs_stay_untouched,
    buffers_are_fully_written,
    repeats_give_the_same_bits,
)
