"""Laws of whole generation loops: what may come out, how many drafts are accepted, where a text ends, and its exact law.

They bind the loop with a draft model and the loop with own heads alike: what differs is who drafts, and that own heads draft
nothing in the first pass.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from oracles import reference

from ..case import Case
from ..enumeration import Law as TokenLaw
from ..enumeration import Tokens
from ..exact_law import chain, distance
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
from .loop_terms import drafts_of, model_of, part_of, processed, rule, sizes
from .subject_laws import (
    Int64,
    NoAnswerError,
    exactly,
    follows_the_contract,
    integers,
    needs_a_generator,
    needs_uniforms,
    sequentially,
)

GRID = 2**24                                                                    # uniforms are multiples of 1 / GRID
CELLS = 2**11                                                                   # of uniforms, at most
PROBES = 2**9                                                                   # cells that are answered at a second point
DRAWS = 2**12


def _drafted_by(case: Case, table: Array, uniforms: Array, **arrays: Array) -> Case:
    """The case with one table for the draft or for every head, other uniforms, no end of the text, and other arrays."""
    _, _, k, V = sizes(case)
    drafts = table if drafts_of(case) == "draft" else np.broadcast_to(table, (k, V, V, V)).copy()
    changed = {drafts_of(case): drafts, "uniforms": uniforms, **arrays}
    changed = {name: array.astype(case.arrays[name].dtype) for name, array in changed.items()}
    kept = {name: array for name, array in case.arrays.items() if name != "forbidden" or "target" not in arrays}
    return replace(case, arrays={**kept, **changed}, options={}, notes={})


def _odd(case: Case, shape: tuple[int, ...]) -> Array:
    """Uniforms that meet no tie of sixteenths: odd multiples of 1/32."""
    return np.asarray((2 * np.random.default_rng(int(case.hash, 16)).integers(0, 16, shape) + 1) / 32)


def _equal_models(case: Case) -> Case | None:
    B, N, k, _ = sizes(case)
    if not B * N * k:
        return None
    return _drafted_by(case, case.arrays["target"], _odd(case, case.arrays["uniforms"].shape))


@law(prepare=_equal_models)
def equal_models_accept_every_draft(trial: Trial) -> Judgement:
    """Where every draft has the law of the target, u q(x) < p(x) for every u below 1: each pass accepts k, with forbidden tokens too.

    A draft that reads another token than the one that came, from a cache or a hidden state, keeps the law of tokens and breaks this
    one. The passes are the fewest there can be; the first of own heads accepts 0. Allowed: 0 in the number accepted.
    """
    B, N, k, _ = sizes(trial.case)
    first = int(drafts_of(trial.case) == "heads")
    passes = first + -(-(N - first) // (k + 1))
    row = np.where(np.arange(N) < passes, float(k), -1.0)
    row[:first] = 0.0
    return within(trial.answer, {"n_accepted": np.tile(row, (B, 1))}, {"n_accepted": np.zeros((B, N))})


def _without_drafts(case: Case) -> Case | None:
    B, N, k, _ = sizes(case)
    if not B * N:
        return None
    no_drafts = {"heads": case.arrays["heads"][:0]} if "heads" in case.arrays else {}
    return replace(case, arrays={**case.arrays, **no_drafts, "uniforms": case.arrays["uniforms"][..., 2 * k :]}, options={}, notes={})


@law(prepare=_without_drafts, every=2, not_covered=follows_the_contract)
def no_drafts_are_plain_sampling(trial: Trial) -> Judgement:
    """With k = 0 token after token is drawn from the target with its own uniform, and no draft is accepted. Allowed: the bound."""
    if not trial.subject.declaration.coverage.empty:
        return NOTHING
    case = trial.case
    B, N, _, V = sizes(case)
    p, forbidden = case.arrays["target"].astype(np.float64), case.arrays.get("forbidden", np.zeros((V, V), dtype=bool))
    texts = np.concatenate([np.zeros((B, 1), dtype=np.int64), case.arrays["prompt"]], axis=1)
    for i in range(N):
        rows = p[texts[:, -2], texts[:, -1]]
        left = np.where(forbidden[texts[:, -1]], 0.0, rows)
        drawn = reference.sample(np.where(left.any(-1, keepdims=True), left, rows), case.arrays["uniforms"][:, i, 0])
        texts = np.append(texts, drawn[:, None], axis=1)
    wanted = {"tokens": texts[:, texts.shape[1] - N :].astype(np.float64), "n_accepted": np.zeros((B, N))}
    return within(trial.answer, wanted, trial.allowed)


def _certain(case: Case) -> Case | None:
    B, N, _, V = sizes(case)
    if not B * N:
        return None
    g = np.random.default_rng(int(case.hash, 16))
    p, other = (np.eye(V)[g.integers(0, V, (V, V))] for _ in range(2))
    q = np.where(g.uniform(size=(V, V, 1)) < 0.6, p, other)
    return _drafted_by(case, q, _odd(case, case.arrays["uniforms"].shape), target=p)


@law(prepare=_certain)
def a_certain_target_has_one_text(trial: Trial) -> Judgement:
    """Where the target is certain of every token, its text comes out whatever is drafted, at every depth and number accepted.

    A row of the target that belongs to another place than the last accepted token shows here: antirez/ds4#750. Allowed: 0.
    """
    B, N, _, _ = sizes(trial.case)
    follows, texts = trial.case.arrays["target"].argmax(axis=-1), np.zeros((B, N + 1), dtype=np.int64)
    prompt = trial.case.arrays["prompt"]
    texts[:, 0], before = prompt[:, -1], prompt[:, -2] if prompt.shape[1] > 1 else np.zeros(B, dtype=np.int64)
    for i in range(N):
        texts[:, i + 1] = follows[texts[:, i - 1] if i else before, texts[:, i]]
    return within(trial.answer, {"tokens": texts[:, 1:].astype(np.float64)}, {"tokens": np.zeros((B, N))})


def _ending(case: Case) -> Case | None:
    B, N, _, V = sizes(case)
    return replace(case.with_options(eos=int(case.hash, 16) % V), notes={}) if B * N else None


@law(prepare=_ending, every=2, not_covered=follows_the_contract)
def a_text_ends_with_its_eos(trial: Trial) -> Judgement:
    """With an eos the text is the one without it, up to the first eos in what is new, and -1 behind. Allowed: the bounds of both calls."""
    if "eos" not in trial.subject.declaration.coverage.arguments or not trial.answer:
        return NOTHING
    other = trial.on(replace(trial.case, options={}))
    if "tokens" not in other.answer:
        return NOTHING
    whole = other.answer["tokens"].astype(np.float64)
    ends = np.cumsum(whole == trial.case.options["eos"], axis=1) - (whole == trial.case.options["eos"])
    wanted = {"tokens": np.where(ends > 0, -1.0, whole)}
    return pinned(within(trial.answer, wanted, {"tokens": trial.allowed["tokens"] + other.allowed["tokens"]}), trial, other)


@law(every=2, minimise=False, not_covered=follows_the_contract)
def each_row_stands_alone(trial: Trial) -> Judgement:
    """A prompt continued alone gives what it gives in its batch. Allowed: the bounds of both calls."""
    B = len(trial.case.arrays["prompt"])
    if B < 2 or not trial.answer:
        return NOTHING
    b = int(trial.case.hash, 16) % B
    of_row = {name: trial.case.arrays[name][b : b + 1] for name in ("prompt", "uniforms")}
    other = trial.on(replace(trial.case.with_arrays(**of_row), notes={}))
    here = {name: got[b : b + 1].astype(np.float64) for name, got in trial.answer.items()}
    allowed = {name: trial.allowed[name][b : b + 1] + other.allowed[name] for name in here}
    return pinned(within(other.answer, here, allowed), trial, other)


@law(minimise=False)
def no_token_without_a_probability_comes_out(trial: Trial) -> Judgement:
    """Every token has a probability above 0 after the two before it, and is not forbidden after the last unless nothing else is left.

    Allowed: no other.
    """
    compared, (_, _, _, V) = 0, sizes(trial.case)
    law_of_next = processed(trial.case)
    for b, row in enumerate(trial.answer.get("tokens", np.zeros((0, 0), dtype=np.int64)).tolist()):
        text = [0, *trial.case.arrays["prompt"][b].tolist()]
        for j, token in enumerate(itertools.takewhile(lambda token: token != -1, row)):
            compared += 1
            if not 0 <= token < V or not law_of_next[text[-2], text[-1], token] > 0.0:
                reason = f"tokens[{b},{j}] is {token}, which has no probability after {text[-2]}, {text[-1]}"
                return Judgement(compared, worst_ratio=np.inf, worst_at=f"tokens[{b},{j}]", failed=True, reason=reason,
                                 evidence=Evidence(trial.wanted, trial.allowed))  # fmt: skip
            text.append(token)
    return Judgement(compared)


@law(minimise=False)
def passes_add_up_to_the_text(trial: Trial) -> Judgement:
    """Each pass emits what it accepts and one token more: all passes together reach the end of the text, and all but the last do not.

    Numbers accepted are 0 to k, the first of own heads 0, and -1 behind the last pass. Allowed: no other.
    """
    if not {"tokens", "n_accepted"} <= set(trial.answer):
        return NOTHING
    B, N, k, _ = sizes(trial.case)
    for b in range(B):
        length = int((trial.answer["tokens"][b] != -1).sum())
        n = trial.answer["n_accepted"][b].astype(np.int64)
        passes = int((n != -1).sum())
        emitted = int((n[:passes] + 1).sum())
        sound = (n[passes:] == -1).all() and ((n[:passes] >= 0) & (n[:passes] <= k)).all()
        sound &= not (drafts_of(trial.case) == "heads" and passes and n[0] != 0)
        if not sound or emitted < length or (passes and emitted - int(n[passes - 1]) - 1 >= length):
            reason = f"n_accepted[{b}] is {n.tolist()} beside {length} tokens"
            return Judgement(B, worst_ratio=np.inf, worst_at=f"n_accepted[{b}]", failed=True, reason=reason,
                             evidence=Evidence(trial.wanted, trial.allowed))  # fmt: skip
    return Judgement(B * N)


# The exact law -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Found:
    """The law of tokens and numbers accepted of a subject, as fractions; constant: whether cells hold one answer."""

    law: TokenLaw
    constant: bool


def _text_and_numbers(tokens: Array, n_accepted: Array) -> list[Tokens]:
    return [tuple(row) for row in np.concatenate([tokens, n_accepted], axis=1).tolist()]


def _answered(trial: Trial, uniforms: Array) -> list[Tokens]:
    """What the subject answers to the prompt of the case with each of many uniforms. Raises NoAnswerError."""
    given = trial.case.arrays
    prompt = np.repeat(given["prompt"][:1], len(uniforms), axis=0)
    arrays = {**given, "prompt": prompt, "uniforms": uniforms.astype(given["uniforms"].dtype)}
    shapes = {name: uniforms.shape[:2] for name in ("tokens", "n_accepted")}
    got = integers(trial, replace(trial.case, arrays=arrays, notes={}), shapes)
    return [tuple(row) for row in np.concatenate([got["tokens"], got["n_accepted"]], axis=1).tolist()]


def _cells(trial: Trial) -> Int64 | None:
    """Every way to take each uniform from either half of [0, 1): which half (n, N (2 k + 1)); None: too many.

    A subject of the contract reads in the first pass of own heads the last uniform alone.
    """
    _, N, k, _ = sizes(trial.case)
    read = np.arange(N * (2 * k + 1))
    if drafts_of(trial.case) == "heads" and trial.conventions["uniforms"] == "contract":
        read = read[2 * k :]
    if 2 ** len(read) > CELLS:
        return None
    halves = np.zeros((2 ** len(read), N * (2 * k + 1)), dtype=np.int64)
    halves[:, read] = [*itertools.product((0, 1), repeat=len(read))]
    return halves


@lru_cache(maxsize=2)
def _computed(trial: Trial) -> _Found | None:
    """The law on a case of halves: computed once for the laws that ask."""
    halves = _cells(trial)
    if halves is None:
        return None
    g, (_, N, k, _) = np.random.default_rng(int(trial.case.hash, 16)), sizes(trial.case)
    again = g.choice(len(halves), min(PROBES, len(halves)), replace=False)

    def within_cells(cells: Int64) -> list[Tokens]:
        u = cells * (GRID // 2) + g.integers(2**10, GRID // 2 - 2**10, cells.shape)
        return _answered(trial, (u / GRID).reshape(-1, N, 2 * k + 1))

    try:
        first, second = within_cells(halves), within_cells(halves[again])
    except NoAnswerError:
        return None
    law_of_all = {outcome: Fraction(n, len(first)) for outcome, n in Counter(first).items()}
    return _Found(law_of_all, all(first[i] == outcome for i, outcome in zip(again.tolist(), second)))


def _is_law(case: Case) -> Case | None:
    return case if case.notes.get("law") else None


@law(prepare=_is_law, not_covered=needs_uniforms)
def the_law_of_tokens_is_the_targets_chain(trial: Trial) -> Judgement:
    """The exact law of the text is that of the target drawn token after token: their distance is a fraction, and it is 0.

    Tables are certain or 1/2 to 1/2, with forbidden tokens too, so that every decision changes at 1/2 and nowhere else: the law is
    computed from the subject itself, all halves of all uniforms answered at a random point, and many at a second. Allowed: 0.
    """
    found, (_, N, k, V) = _computed(trial), sizes(trial.case)
    if found is None:
        return NOTHING
    if not found.constant:
        return _tested(trial)
    of_target = chain(model_of(processed(trial.case), tuple(trial.case.arrays["prompt"][0].tolist())), N)
    off = distance(part_of(found.law, slice(0, N)), of_target)
    return exactly(off, Fraction(0), f"law of {N} tokens (V = {V}, k = {k})", len(found.law), Evidence())


@law(prepare=_is_law, not_covered=needs_uniforms)
def the_law_of_the_number_accepted_is_the_rules(trial: Trial) -> Judgement:
    """The exact law of the numbers accepted, pass by pass, is that of the rule: what drafts wrongly keeps the tokens and breaks this one.

    Computed as the law of tokens; the rule's is that of one verification, pass after pass, as fractions. Allowed: 0.
    """
    found, (_, N, k, V) = _computed(trial), sizes(trial.case)
    if found is None or not found.constant:
        return NOTHING
    off = distance(part_of(found.law, slice(N, None)), part_of(rule(trial.case), slice(N, None)))
    return exactly(off, Fraction(0), f"law of the numbers accepted (V = {V}, k = {k}, N = {N})", len(found.law), Evidence())


def _tested(trial: Trial) -> Judgement:
    """The e-process on tokens and numbers accepted together, with uniforms at random."""
    g, (_, N, k, V) = np.random.default_rng(int(trial.case.hash, 16)), sizes(trial.case)
    law_of_all: dict[Hashable, Fraction | float] = dict(rule(trial.case).items())

    def draw(n: int) -> Any:
        return Counter(_answered(trial, g.integers(0, GRID, (n, N, 2 * k + 1)) / GRID))

    try:
        return sequentially(law_of_all, draw, DRAWS, f"law of tokens and numbers accepted (V = {V}, k = {k}, N = {N})", Evidence())
    except NoAnswerError:
        return NOTHING


@law(prepare=_is_law, not_covered=needs_a_generator)
def emissions_pass_the_test_of_their_law(trial: Trial) -> Judgement:
    """For a subject with a generator of its own: an e-process on tokens and numbers accepted finds no evidence of 10^9 against their law.

    Valid at any stopping time; false alarms 10^-9. What it would have found by then is said.
    """
    return _tested(trial)


LOOP_LAWS: tuple[Law, ...] = (
    answers,
    replace(agreement("tokens"), minimise=False, not_covered=follows_the_contract),
    replace(agreement("n_accepted"), minimise=False, not_covered=follows_the_contract),
    equal_models_accept_every_draft,
    no_drafts_are_plain_sampling,
    a_certain_target_has_one_text,
    a_text_ends_with_its_eos,
    each_row_stands_alone,
    no_token_without_a_probability_comes_out,
    passes_add_up_to_the_text,
    the_law_of_tokens_is_the_targets_chain,
    the_law_of_the_number_accepted_is_the_rules,
    emissions_pass_the_test_of_their_law,
    replace(strides_are_respected, minimise=False),
    inputs_stay_untouched,
    buffers_are_fully_written,
    repeats_give_the_same_bits,
)
