"""Laws of penalties, and of the draw of a token: which token a uniform stands for, and with what probability each comes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from .. import subject_law
from ..bounds.sums import g, roundings
from ..case import Case
from ..law import NOTHING, Evidence, Judgement, Law, law, within
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
from .subject_laws import (
    Int64,
    NoAnswerError,
    draws_anew,
    exactly,
    follows_the_contract,
    integers,
    needs_a_generator,
    needs_uniforms,
    sequentially,
)

GRID = subject_law.GRID
DRAWS, TAIL_DRAWS, TAIL_ROWS, COINS = 2**15, 2**13, 2**10, 2**7


def _alone(case: Case) -> Case | None:
    """One row of a case, all of its arguments with it."""
    B = len(next(iter(case.arrays.values())))
    i = int(case.hash, 16) % max(B, 1)
    return None if B < 2 else case.with_arrays(**{name: array[i : i + 1] for name, array in case.arrays.items()})


@law(every=2, minimise=False)
def each_row_stands_alone(trial: Trial) -> Judgement:
    """A row alone, with its own arguments, gives what it gives among others. Allowed: the bounds of both calls."""
    case, (result,) = _alone(trial.case), trial.wanted
    if case is None or result not in trial.answer:
        return NOTHING
    i, other = int(trial.case.hash, 16) % len(next(iter(trial.case.arrays.values()))), trial.on(case)
    here = {result: trial.answer[result][i : i + 1].astype(np.float64)}
    return pinned(within(other.answer, here, {result: trial.allowed[result][i : i + 1] + other.allowed[result]}), trial, other)


# Penalties ---------------------------------------------------------------------------------------------------------------


def _only_a_prompt(case: Case) -> Case | None:
    given = case.arguments()
    if "prompt_lengths" not in given or not case.arrays["tokens"].size or not {"frequency", "presence"} & set(given):
        return None
    arrays = {name: array for name, array in case.arrays.items() if name not in ("prompt_lengths", "repetition")}
    options = {name: value for name, value in case.options.items() if name != "repetition"}
    return replace(case, arrays=arrays, options={**options, "prompt_lengths": case.arrays["tokens"].shape[-1]})


@law(prepare=_only_a_prompt)
def a_prompt_has_no_frequency(trial: Trial) -> Judgement:
    """Where all tokens are the prompt's, frequency and presence change no logit. Allowed: one rounding of `out`."""
    r, z = roundings(trial.arithmetic), trial.case.arrays["logits"].astype(np.float64)
    return within(trial.answer, {"logits": z}, {"logits": r.out.bound(z)})


@law(every=2, minimise=False)
def the_order_of_the_output_does_not_matter(trial: Trial) -> Judgement:
    """Tokens of the output in reverse are penalised as before: they are counted. Allowed: the bound."""
    if "prompt_lengths" in trial.case.arguments() or not trial.case.arrays["tokens"].size:
        return NOTHING
    other = trial.on(trial.case.with_arrays(tokens=np.ascontiguousarray(trial.case.arrays["tokens"][..., ::-1])))
    return pinned(within(other.answer, trial.wanted, other.allowed), trial, other)


@law(every=2, minimise=False)
def tokens_that_never_came_keep_their_logits(trial: Trial) -> Judgement:
    """A token that stands in no history keeps its logit. Allowed: one rounding of `out`."""
    if not trial.answer or not trial.wanted["logits"].size:
        return NOTHING
    z, r = trial.case.arrays["logits"].astype(np.float64), roundings(trial.arithmetic)
    came = np.zeros(z.shape, dtype=bool)
    for row, tokens in zip(came, trial.case.arrays["tokens"]):
        row[tokens[tokens >= 0]] = True
    return within(trial.answer, {"logits": z}, {"logits": np.where(came, np.inf, r.out.bound(z))})


# Draws -------------------------------------------------------------------------------------------------------------------


@law(minimise=False)
def only_tokens_with_a_probability_are_drawn(trial: Trial) -> Judgement:
    """Every token lies in the vocabulary and has a weight above 0, at u = 0 and at the largest u too. Allowed: no other."""
    token = trial.answer.get("token")
    if token is None or not token.size:
        return NOTHING
    p = trial.case.arrays["probabilities"].astype(np.float64)
    inside = (token >= 0) & (token < p.shape[-1])
    weight = np.take_along_axis(p, np.where(inside, token, 0)[..., None].astype(np.int64), axis=-1)[..., 0]
    wrong = ~inside | ~(weight > 0.0)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        reason = f"token[{','.join(map(str, at))}] is {int(token[at])}, which has no weight"
        return Judgement(token.size, worst_ratio=np.inf, worst_at=f"token[{at}]", failed=True, reason=reason,
                         evidence=Evidence(trial.wanted, trial.allowed))  # fmt: skip
    return Judgement(token.size)


def _whose_law(case: Case) -> Case | None:
    return case if case.notes.get("law") else None


def _drawn(trial: Trial, scenario: Int64, u: Int64) -> Int64:
    """Rows (scenario, token) for uniforms u (n, 1) on the grid."""
    given = trial.case.arrays
    case = Case("sample", {"probabilities": given["probabilities"][scenario], "u": (u[:, 0] / GRID).astype(given["u"].dtype)}, {})
    return np.stack([scenario, integers(trial, case, {"token": (len(scenario),)})["token"]], axis=1)


def _laws(trial: Trial) -> list[list[Fraction]]:
    rows = [[Fraction(x) for x in row] for row in trial.case.arrays["probabilities"].astype(np.float64).tolist()]
    return [[x / sum(row) for x in row] for row in rows]


@law(prepare=_whose_law, not_covered=needs_uniforms)
def the_law_of_tokens_is_that_of_the_weights(trial: Trial) -> Judgement:
    """Over all uniforms, each token comes as often as its weight says: the exact law of the subject, its largest distance in a row.

    TV <= (V - 1)(2^-24 + 2 g(V + 6, u_accumulate) + 12 u): each edge between two tokens lies within one step of the grid of
    uniforms and the rounding of two sums. Rows of V from 2 to 5 tokens, weights in sixteenths.
    """
    laws = _laws(trial)
    B, V = len(laws), len(laws[0])
    expected = [[[round(x * GRID) for x in itertools.accumulate(row[:-1])]] for row in laws]
    weights = [Fraction(1, B)] * B
    try:
        found = subject_law.subject_law(lambda s, u: _drawn(trial, s, u), weights, 1, expected, seed=int(trial.case.hash, 16))
    except NoAnswerError:
        return NOTHING
    if found.strays:
        return _tested(trial, laws)
    distances = [sum((abs(B * found.law.get((b, t), Fraction(0)) - p[t]) for t in range(V)), Fraction(0)) / 2
                 + sum((B * x for (s, t), x in found.law.items() if s == b and not 0 <= t < V), Fraction(0)) / 2
                 for b, p in enumerate(laws)]  # fmt: skip
    r = roundings(trial.arithmetic)
    step = Fraction(1, GRID) + Fraction(2.0 * float(g(V + 6.0, r.accumulate.u)) + 12.0 * r.elementwise.u)
    return exactly(max(distances), (V - 1) * step, f"law of tokens (V = {V})", found.faces + subject_law.PROBES, Evidence())


def _tested(trial: Trial, laws: list[list[Fraction]]) -> Judgement:
    """The e-process on draws of rows at random, with uniforms at random for a subject that takes them."""
    generator, B = np.random.default_rng(int(trial.case.hash, 16)), len(laws)

    def draw(n: int) -> Any:
        counts: Counter[Hashable] = Counter()
        for size in _pieces(n, 2**14):
            counts.update(map(tuple, _drawn(trial, generator.integers(0, B, size), generator.integers(0, GRID, (size, 1))).tolist()))
        return counts

    law_of_all: dict[Hashable, Fraction | float] = {(b, t): x / B for b, row in enumerate(laws) for t, x in enumerate(row)}
    try:
        return sequentially(law_of_all, draw, DRAWS, f"law of tokens (V = {len(laws[0])})", Evidence())
    except NoAnswerError:
        return NOTHING


def _pieces(n: int, most: int) -> list[int]:
    return [most] * (n // most) + ([n % most] if n % most else [])


@law(prepare=_whose_law, not_covered=needs_a_generator)
def draws_pass_the_test_of_their_law(trial: Trial) -> Judgement:
    """For a subject with a generator of its own: an e-process on its draws finds no evidence of 10^9 against the law of the weights.

    Valid at any stopping time; false alarms 10^-9. What it would have found by then is said: nothing is proved.
    """
    return _tested(trial, _laws(trial))


@law(prepare=lambda case: case if case.notes.get("tail") else None, not_covered=needs_a_generator)
def a_tail_of_unlikely_tokens_keeps_its_mass(trial: Trial) -> Judgement:
    """Unlikely tokens come as often as their weights say, together: noise drawn in the format of the weights draws them too rarely.

    One head, and a sixteenth in tokens of 2^-13 each for float16 (2^-10, bfloat16), less than such noise tells apart: the same
    e-process, on head or tail. In float32 the same fault, below 2^-24, takes more than 10^9 numbers to show, and is not looked for.
    Source: vllm-project/vllm#43150.
    """
    p = trial.case.arrays["probabilities"].astype(np.float64)[0]
    B, V = TAIL_ROWS, len(p)
    given = trial.case.arrays
    rows = Case("sample", {"probabilities": np.tile(given["probabilities"], (B, 1)), "u": np.arange(B, dtype=given["u"].dtype) / B}, {})

    def draw(n: int) -> Any:
        tokens = np.concatenate([integers(trial, rows, {"token": (B,)})["token"] for _ in range(-(-n // B))])
        beyond = int(((tokens < 0) | (tokens >= V)).sum())
        head = int((tokens == 0).sum())
        return {"head": head, "tail": len(tokens) - head - beyond, **({"no token": beyond} if beyond else {})}

    head = float(p[0] / p.sum())
    try:
        return sequentially({"head": head, "tail": 1.0 - head}, draw, TAIL_DRAWS, "law of head and tail", Evidence())
    except NoAnswerError:
        return NOTHING


def _coins(case: Case) -> Case | None:
    """Rows of fair coins, where the law of a case is computed."""
    if not case.notes.get("law"):
        return None
    p, u = case.arrays["probabilities"], case.arrays["u"]
    coin = np.where(np.arange(p.shape[-1]) < 2, 0.5, 0.0).astype(p.dtype)
    rows = {"probabilities": np.tile(coin, (COINS, 1)), "u": np.arange(COINS, dtype=u.dtype) / COINS}
    return replace(case, arrays=rows, notes={})


@law(prepare=_coins, not_covered=needs_a_generator)
def a_second_call_draws_anew(trial: Trial) -> Judgement:
    """For a subject with a generator of its own: a second call does not draw the numbers of the first, in the same rows or others.

    Fair coins in 128 rows; false alarms 2^-63. Each call alone has the law of the weights even where a captured graph replays its seed
    (NVIDIA/Megatron-LM#5697) or the generator moves on by less than a call used.
    """
    try:
        first, second = (integers(trial, trial.case, {"token": (COINS,)})["token"] for _ in range(2))
    except NoAnswerError:
        return NOTHING
    return draws_anew(first, second, "token")


_COMMON: tuple[Law, ...] = (replace(strides_are_respected, minimise=False), inputs_stay_untouched, buffers_are_fully_written,
                            repeats_give_the_same_bits)

PENALTY_LAWS: tuple[Law, ...] = (
    answers,
    replace(agreement("logits"), minimise=False),
    a_prompt_has_no_frequency,
    the_order_of_the_output_does_not_matter,
    tokens_that_never_came_keep_their_logits,
    each_row_stands_alone,
    *_COMMON,
)
SAMPLE_LAWS: tuple[Law, ...] = (
    answers,
    replace(agreement("token"), minimise=False, not_covered=follows_the_contract),
    only_tokens_with_a_probability_are_drawn,
    the_law_of_tokens_is_that_of_the_weights,
    draws_pass_the_test_of_their_law,
    a_tail_of_unlikely_tokens_keeps_its_mass,
    a_second_call_draws_anew,
    each_row_stands_alone,
    *_COMMON,
)
