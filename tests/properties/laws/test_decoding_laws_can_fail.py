"""Every law of the decoding operations turns red on an implementation that breaks what it states, and none on the oracle itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties import Arithmetic
from oracles.properties.declaration import subject
from oracles.properties.operations import operation_named
from oracles.properties.zoo import textbook_loops

from .rejection import rejects

Function = Callable[..., Any]
FLOAT64 = Arithmetic(out="float64", accumulate="float64", elementwise="float64")
OPERATIONS = ("filter_probabilities", "apply_penalties", "sample", "speculative_verify", "tree_positions", "mtp_loss", "speculative_loop",
              "mtp_loop")


def filters(logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Any:
    return reference.filter_probabilities(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


def penalties(
    logits: Any, tokens: Any, *, prompt_lengths: Any = None, repetition: Any = 1.0, frequency: Any = 0.0, presence: Any = 0.0
) -> Any:  # fmt: skip
    options = {"prompt_lengths": prompt_lengths, "repetition": repetition, "frequency": frequency, "presence": presence}
    return reference.apply_penalties(logits, tokens, **options)


def draws(probabilities: Any, u: Any) -> Any:
    return reference.sample(probabilities, u)


def verify(draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None) -> Any:
    return reference.speculative_verify(draft_tokens, draft_probs, target_probs, accept_u, sample_u, draft_lengths=draft_lengths)


def positions(parents: Any, *, n_past: Any = 0) -> Any:
    return reference.tree_positions(parents, n_past=n_past)


def loss(logits: Any, tokens: Any, *, weights: Any = None, segments: Any = None, ignore_index: int = -100) -> Any:
    return reference.mtp_loss(logits, tokens, weights=weights, segments=segments, ignore_index=ignore_index)


LOOPS = (textbook_loops.speculative_loop, textbook_loops.mtp_loop)
RIGHT: dict[str, Function] = dict(zip(OPERATIONS, (filters, penalties, draws, verify, positions, loss, *LOOPS)))


def changing(operation: str, change: Callable[[Any, dict[str, Any]], Any]) -> Function:
    """The right function, its result passed through `change(result, arguments)`."""
    def broken(given: dict[str, Any]) -> Any:
        return change(RIGHT[operation](**given), given)

    return broken


def given_other(operation: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Function:
    """The right function on changed arguments."""
    return lambda given: RIGHT[operation](**{**given, **change(given)})


def scribble(*names: str) -> Callable[[Any, dict[str, Any]], Any]:
    def change(result: Any, given: dict[str, Any]) -> Any:
        given[names[0]][...] = 0
        return result

    return change


def first_row_of(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda given: {name: np.broadcast_to(given[name][:1], given[name].shape)} if len(given[name]) else {}


def keeps(more: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(given: dict[str, Any]) -> dict[str, Any]:
        return {"top_k": np.maximum(np.asarray(given["top_k"]) + more, 1)} if given.get("top_k") is not None else {}

    return change


def unlike_numbers(z: Any) -> Any:
    return np.where(np.isfinite(z), z * (1 + 1e-3 * np.sign(z)), z)


def tie_blind(p: Any, given: dict[str, Any]) -> Any:
    """One token fewer where all logits are equal."""
    z = given["logits"]
    if z.size and (z == z.flat[0]).all() and z.shape[-1] > 2:
        p = p.copy()
        p[:, int(np.flatnonzero(p[0])[-1])] = 0
        p /= np.where(p.sum(-1, keepdims=True) > 0, p.sum(-1, keepdims=True), 1)
    return p


def bottom_matters(given: dict[str, Any]) -> dict[str, Any]:
    z = np.asarray(given["logits"], np.float64)
    return {"logits": np.where(z == z.max(-1, keepdims=True), z + 0.01 * np.isneginf(z).sum(-1, keepdims=True), z)} if z.size else {}


def by_index(given: dict[str, Any]) -> dict[str, Any]:
    z = np.asarray(given["logits"], np.float64)
    return {"logits": z + 0.01 * np.arange(z.shape[-1])}


def without_last(p: Any, given: dict[str, Any]) -> Any:
    """What is least likely is lost."""
    if not p.size:
        return p
    kept = p > np.where(p > 0, p, np.inf).min(-1, keepdims=True)
    kept |= ~kept.any(-1, keepdims=True)
    return np.where(kept, p, 0) / np.where(kept, p, 0).sum(-1, keepdims=True)


def of_a_crowd(p: Any, given: dict[str, Any]) -> Any:
    return p * (1 + 1e-3 * (len(p) - 1)) if p.size else p


def strided(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda given: {} if given[name].flags.c_contiguous else {name: change(np.array(given[name]))}


def plus(by: int) -> Callable[[Any, dict[str, Any]], Any]:
    return lambda result, given: result + by


def verified(change: Callable[[Any, Any, dict[str, Any]], Any]) -> Function:
    return changing("speculative_verify", lambda result, given: change(*result, given))


def without_bonus(tokens: Any, n: Any, given: dict[str, Any]) -> Any:
    tokens = tokens.copy()
    K = given["draft_tokens"].shape[1]
    tokens[n == K, K] = -1
    return tokens, n


def looks_behind(given: dict[str, Any]) -> dict[str, Any]:
    x = given["draft_tokens"]
    if given.get("draft_lengths") is None or not np.isnan(given["draft_probs"]).any():
        return {}
    return {"accept_u": np.where((x % 2).sum() % 2, 0.0, given["accept_u"] * 0.5).astype(given["accept_u"].dtype)}


def swapped_residual(given: dict[str, Any]) -> Any:
    """After a rejection, a draw from the target itself."""
    tokens, n = verify(**given)
    tokens, K = tokens.copy(), given["draft_tokens"].shape[1]
    for b, j in enumerate(n):
        if j < K and given["draft_tokens"][b, j] >= 0:
            tokens[b, j] = int(reference.sample(np.nan_to_num(given["target_probs"][b, j]), given["sample_u"][b]))
    return tokens, n


def own(change: Callable[[Any], Any]) -> Function:
    def draw(given: dict[str, Any]) -> Any:
        p = change(np.asarray(given["probabilities"], np.float64))
        u = np.random.default_rng().uniform(size=(len(p), 1))
        c = np.cumsum(p, axis=-1)
        return np.minimum((c <= u * c[:, -1:]).sum(-1), p.shape[-1] - 1 - (p[:, ::-1] > 0).argmax(-1))

    return draw


def own_verification(given: dict[str, Any], *, seed: int | None = None, lean: float = 0.9) -> Any:
    g = np.random.default_rng(seed)
    u, last = g.uniform(size=given["accept_u"].shape), g.uniform(size=given["sample_u"].shape)
    return verify(**{**given, "accept_u": u * lean, "sample_u": last})


def replayed(given: dict[str, Any]) -> Any:
    """The numbers of a generator that starts anew with every call: each call alone has the right law."""
    return reference.sample(given["probabilities"], np.random.default_rng(0).uniform(size=len(given["probabilities"])))


def buffers(operation: str, name: str) -> Function:
    """All but the last element of the buffer is written."""
    def write(given: dict[str, Any]) -> None:
        out = given.pop(f"buffer:{name}")
        result = RIGHT[operation](**given)
        result = result[0] if isinstance(result, tuple) else result
        out.reshape(-1)[:-1] = np.asarray(result).reshape(-1)[:-1]

    return write


class Sometimes:
    """Another result in every second call."""

    def __init__(self, operation: str) -> None:
        self.operation, self.calls = operation, 0

    def __call__(self, given: dict[str, Any]) -> Any:
        self.calls += 1
        result = RIGHT[self.operation](**given)
        first, rest = (result[0], result[1:]) if isinstance(result, tuple) else (result, ())
        return (first + self.calls % 2, *rest) if rest else first + self.calls % 2


OWN: dict[str, Any] = {"conventions": {"uniforms": "own"}}


def with_steps(loop: Function, **steps: Any) -> Function:
    return lambda given: loop(**given, **steps)


def looped(loop: Function, change: Callable[[Any, Any, dict[str, Any]], Any]) -> Function:
    return lambda given: change(*loop(**given), given)


def loop_with(loop: Function, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Function:
    return lambda given: loop(**{**given, **change(given)})


def of_another_token(given: dict[str, Any]) -> dict[str, Any]:
    """The draft reads another row than that of its last token but one: a cache or a state of another token."""
    name = "draft" if "draft" in given else "heads"
    return {name: np.roll(given[name], 1, axis=-3)}


def backwards_without_drafts(given: dict[str, Any]) -> dict[str, Any]:
    return {"uniforms": given["uniforms"][:, ::-1]} if given["uniforms"].shape[2] == 1 else {}


def from_the_target(p: Any, q: Any, n: int) -> Any:
    """No residual: after a rejection a draw from the target itself."""
    return p[n]


def from_the_first_row(p: Any, q: Any, n: int) -> Any:
    return p[0]


def by_its_own_uniforms(loop: Function) -> Function:
    def broken(given: dict[str, Any]) -> Any:
        u = np.random.default_rng().uniform(size=given["uniforms"].shape)
        return loop(**{**given, "uniforms": u}, weights=from_the_target)

    return broken


def breaking(loop: Function) -> dict[str, tuple[dict[str, Any], Function]]:
    """What breaks each law of a loop."""
    return {
        "answers": ({}, looped(loop, lambda tokens, n, given: (tokens[:, :0], n))),
        "tokens_agrees_with_the_oracle": ({}, loop_with(loop, lambda given: {"uniforms": given["uniforms"] * 0.75})),
        "n_accepted_agrees_with_the_oracle": ({}, looped(loop, lambda tokens, n, given: (tokens, np.where(n >= 0, n + 1, n)))),
        "equal_models_accept_every_draft": ({}, loop_with(loop, of_another_token)),
        "no_drafts_are_plain_sampling": ({}, loop_with(loop, backwards_without_drafts)),
        "a_certain_target_has_one_text": ({}, with_steps(loop, weights=from_the_first_row)),
        "a_text_ends_with_its_eos": ({}, loop_with(loop, lambda given: {"eos": None})),
        "each_row_stands_alone": ({}, loop_with(loop, first_row_of("uniforms"))),
        "no_token_without_a_probability_comes_out": ({}, looped(loop, lambda tokens, n, given: (np.where(tokens >= 0, 0, -1), n))),
        "passes_add_up_to_the_text": ({}, looped(loop, lambda tokens, n, given: (tokens, np.minimum(n, 0)))),
        "the_law_of_tokens_is_the_targets_chain": ({}, with_steps(loop, weights=from_the_target)),
        "the_law_of_the_number_accepted_is_the_rules": ({}, loop_with(loop, of_another_token)),
        "emissions_pass_the_test_of_their_law": (OWN, by_its_own_uniforms(loop)),
    }


F, P, S, V, T, M, L, H = OPERATIONS
BREAKERS: dict[str, dict[str, tuple[dict[str, Any], Function]]] = {
    F: {
        "answers": ({}, changing(F, lambda p, given: p[..., :0])),
        "probabilities_agrees_with_the_oracle": ({}, given_other(F, lambda given: {"logits": unlike_numbers(given["logits"])})),
        "kept_tokens_are_the_oracles": ({}, given_other(F, keeps(1))),
        "what_is_kept_is_renormalised": ({}, changing(F, lambda p, given: p * 0.99)),
        "kept_probabilities_sum_to_one": ({}, changing(F, lambda p, given: p * (1 + 1e-9))),
        "temperature_zero_takes_the_first_of_the_largest": ({}, given_other(F, lambda given: {
            "temperature": np.maximum(given.get("temperature", 1.0), 0.5)})),
        "equal_logits_keep_exactly_their_share": ({}, changing(F, tie_blind)),
        "no_logit_that_top_k_drops_matters": ({}, given_other(F, bottom_matters)),
        "adding_one_number_to_all_logits_changes_nothing": ({}, given_other(F, lambda given: {
            "logits": np.asarray(given["logits"], np.float64) * 1.01})),
        "permuting_the_vocabulary_permutes": ({}, given_other(F, by_index)),
        "neutral_parameters_filter_nothing": ({}, changing(F, without_last)),
        "each_row_stands_alone": ({}, changing(F, of_a_crowd)),
        "strides_are_respected": ({}, given_other(F, strided("logits", unlike_numbers))),
        "inputs_stay_untouched": ({}, changing(F, scribble("logits"))),
        "buffers_are_fully_written": ({"buffers": ("probabilities",)}, buffers(F, "probabilities")),
        "repeats_give_the_same_bits": ({"promises": ["deterministic"]}, Sometimes(F)),
    },
    P: {
        "answers": ({}, changing(P, lambda z, given: z[..., :0])),
        "logits_agrees_with_the_oracle": ({}, changing(P, lambda z, given: z * (1 + 1e-9))),
        "a_prompt_has_no_frequency": ({}, given_other(P, lambda given: {"prompt_lengths": 0})),
        "the_order_of_the_output_does_not_matter": ({}, changing(P, lambda z, given: z - 0.1 * (given["tokens"][:, :1] > 1))),
        "tokens_that_never_came_keep_their_logits": ({}, changing(P, lambda z, given: z + 0.5)),
        "each_row_stands_alone": ({}, changing(P, lambda z, given: z + len(z) - 1)),
    },
    S: {
        "answers": ({}, changing(S, lambda token, given: token.astype(np.float64))),
        "token_agrees_with_the_oracle": ({}, given_other(S, first_row_of("u"))),
        "only_tokens_with_a_probability_are_drawn": ({}, changing(S, lambda token, given: token + 1)),
        "the_law_of_tokens_is_that_of_the_weights": ({}, given_other(S, lambda given: {
            "probabilities": np.asarray(given["probabilities"], np.float64) ** 1.00001})),
        "draws_pass_the_test_of_their_law": (OWN, own(lambda p: np.sqrt(p))),
        "a_tail_of_unlikely_tokens_keeps_its_mass": ({**OWN, "dtypes": ["float16"]}, own(lambda p: np.where(p < 2.0**-11, 0.0, p))),
        "a_second_call_draws_anew": (OWN, replayed),
        "each_row_stands_alone": ({}, given_other(S, first_row_of("u"))),
    },
    V: {
        "answers": ({}, verified(lambda tokens, n, given: (tokens, n[:0]))),
        "tokens_agrees_with_the_oracle": ({}, swapped_residual),
        "n_accepted_agrees_with_the_oracle": ({}, verified(lambda tokens, n, given: (tokens, n + 1))),
        "every_decision_is_right": ({}, swapped_residual),
        "what_stands_behind_a_draft_never_matters": ({}, given_other(V, looks_behind)),
        "each_row_stands_alone": ({}, given_other(V, first_row_of("sample_u"))),
        "equal_models_accept_every_draft": ({}, verified(lambda tokens, n, given: (tokens, np.maximum(n - 1, 0)))),
        "drafts_the_target_never_gives_are_rejected": ({}, verified(lambda tokens, n, given: (tokens, n + (given["accept_u"].size > 0)))),
        "the_bonus_comes_from_the_row_after_the_draft": ({}, given_other(V, lambda given: {
            "target_probs": np.concatenate([given["target_probs"][:, :-1], given["target_probs"][:, :1]], axis=1)})),
        "no_token_without_a_probability_comes_out": ({}, verified(lambda tokens, n, given: (np.where(tokens >= 0, 0, -1), n))),
        "the_law_of_tokens_is_the_targets": ({}, swapped_residual),
        "the_law_of_their_number_is_the_rules": ({}, verified(without_bonus)),
        "emissions_pass_the_test_of_their_law": (OWN, own_verification),
        "accepted_tokens_are_the_drafts": (OWN, verified(lambda tokens, n, given: (tokens, n + 1))),
        "a_second_call_draws_anew": (OWN, lambda given: own_verification(given, seed=7, lean=1.0)),
    },
    T: {
        "answers": ({}, changing(T, lambda where, given: where[:0])),
        "positions_agrees_with_the_oracle": ({}, changing(T, plus(1))),
        "siblings_share_a_position": ({}, changing(T, lambda where, given: where + np.arange(len(where)))),
        "a_chain_counts_up": ({}, changing(T, lambda where, given: np.minimum(where, given.get("n_past", 0) + 1))),
    },
    M: {
        "answers": ({}, changing(M, lambda x, given: np.array([float(x)]))),
        "loss_agrees_with_the_oracle": ({}, changing(M, lambda x, given: x * (1 + 1e-9))),
        "the_right_token_costs_nothing": ({}, given_other(M, lambda given: {"tokens": np.roll(given["tokens"], 1)})),
        "positions_that_do_not_count_never_matter": ({}, changing(M, lambda x, given: x + np.isnan(given["logits"]).any())),
        "twice_the_text_is_the_same_loss": ({}, changing(M, lambda x, given: x * len(given["tokens"]))),
        "heads_add_up": ({}, changing(M, lambda x, given: x**2)),
        "renaming_tokens_changes_nothing": ({}, changing(M, lambda x, given: x + 1e-3 * np.maximum(given["tokens"], 0).max(initial=0))),
        "nothing_to_score_is_no_loss": ({}, changing(M, lambda x, given: x if (given["tokens"] >= 0).any() else np.asarray(np.nan))),
    },
    **{operation: breaking(loop) for operation, loop in zip((L, H), LOOPS)},
}  # fmt: skip
ALL = [(operation, law) for operation, laws in BREAKERS.items() for law in laws]
# One object for all operations: shown to fail on the filters.
SHARED = {"strides_are_respected", "inputs_stay_untouched", "buffers_are_fully_written", "repeats_give_the_same_bits"}


def failure(operation: str, law: str, function: Function, declared: dict[str, Any]) -> str:
    """The reason why a law rejects a function on the designed cases, or ""."""
    contract, outs = operation_named(operation).signature, declared.get("buffers", ())
    keywords = ("*", *(f"{name}=None" for name in (*contract.optional, *outs))) if contract.optional or outs else ()
    named = ", ".join((*contract.required, *keywords))
    given = ", ".join(f"{name!r}: {name}" for name in contract.arguments)
    written = ", ".join(f"'buffer:{name}': {name}" for name in outs)
    body = f"lambda {named}: function({{k: v for k, v in {{{given}, {written}}}.items() if v is not None}})"
    wrapped = subject(operation, name=law, **{"arithmetic": FLOAT64, **declared})(eval(body, {"function": function}))
    return rejects(operation, law, wrapped)


@pytest.mark.parametrize(("operation", "law"), ALL, ids=[f"{operation}-{law}" for operation, law in ALL])
def test_the_law_rejects_what_breaks_it(operation: str, law: str) -> None:
    declared, function = BREAKERS[operation][law]
    assert failure(operation, law, function, declared), f"{law} accepts an implementation that breaks it"


@pytest.mark.parametrize(("operation", "law"), [(o, law) for o, law in ALL if not {"conventions", "buffers"} & set(BREAKERS[o][law][0])])
def test_the_law_accepts_the_oracle(operation: str, law: str) -> None:
    assert failure(operation, law, lambda given: RIGHT[operation](**given), BREAKERS[operation][law][0]) == ""


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_law_is_left_out(operation: str) -> None:
    assert {law.name for law in operation_named(operation).laws} <= set(BREAKERS[operation]) | SHARED


def test_a_stale_draft_keeps_the_law_of_tokens_and_breaks_that_of_the_number_accepted() -> None:
    """What a check of the text alone cannot see: vllm-project/vllm#9730, vllm-project/vllm#36531."""
    for operation, loop in zip((L, H), LOOPS):
        stale = loop_with(loop, of_another_token)
        assert failure(operation, "the_law_of_tokens_is_the_targets_chain", stale, {}) == ""
        assert "from the target's" in failure(operation, "the_law_of_the_number_accepted_is_the_rules", stale, {})


def in_quarters(given: dict[str, Any]) -> dict[str, Any]:
    """Four times each uniform modulo 1: the same law, and answers that change within every half of [0, 1)."""
    return {"uniforms": given["uniforms"] * 4 % 1}


@pytest.mark.parametrize(("operation", "loop"), [(L, LOOPS[0]), (H, LOOPS[1])])
def test_a_loop_whose_answers_change_elsewhere_is_tested_instead(operation: str, loop: Function) -> None:
    law, other = "the_law_of_tokens_is_the_targets_chain", {"conventions": {"uniforms": "other"}}
    assert failure(operation, law, loop_with(loop, in_quarters), other) == ""
    wrong = loop_with(lambda **given: loop(**given, weights=from_the_target), in_quarters)
    assert "against it after" in failure(operation, law, wrong, other)
