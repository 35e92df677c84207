"""Filters, penalties and sampling: against decimal arithmetic of 60 digits, the reported faults, and the law of the draw."""

from __future__ import annotations

import decimal
from decimal import Decimal
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles.reference import apply_penalties, filter_probabilities, sample

U = 2.0**-53
ALMOST_ONE = 1.0 - U
EXACT = decimal.Context(prec=60)


def logits_of(p: list[float]) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(np.array(p))


def kept(p: list[float], **filters: Any) -> list[int]:
    return np.flatnonzero(filter_probabilities(logits_of(p), **filters)).tolist()


def decimal_filter(z: np.ndarray, T: float, k: int, top_p: float, min_p: float) -> tuple[list[Decimal], list[int], Decimal]:
    """The probabilities and the tokens kept, by the text of the contract, and the smallest distance of a decision from its border."""
    w = [EXACT.exp(EXACT.divide(EXACT.subtract(Decimal(float(x)), Decimal(float(z.max()))), Decimal(T))) for x in z]
    order = sorted(range(len(w)), key=lambda i: (-z[i], i))[:k]
    total, mass, margin, prefix = sum(w[i] for i in order), Decimal(0), Decimal(1), []
    for i in order:
        margin = min(margin, abs(mass - Decimal(top_p) * total)) if prefix else margin
        if mass >= Decimal(top_p) * total:
            break
        prefix.append(i)
        mass += w[i]
    margin = min([margin, *(abs(w[i] - Decimal(min_p)) for i in prefix)])
    left = [i for i in prefix if w[i] >= Decimal(min_p)]
    total = sum((w[i] for i in left), Decimal(0))
    return [EXACT.divide(w[i], total) if i in left else Decimal(0) for i in range(len(w))], left, margin


@pytest.mark.parametrize("seed", range(20))
def test_the_filters_in_their_order_are_those_of_decimal_arithmetic(seed: int) -> None:
    r = np.random.default_rng(seed)
    V = int(r.integers(1, 40))
    z, T = r.normal(size=V) * 3, float(r.uniform(0.2, 3.0))
    k, top_p, min_p = int(r.integers(1, V + 3)), float(r.uniform(0.05, 1.0)), float(r.uniform(0.0, 0.3))
    p, left, margin = decimal_filter(z, T, k, top_p, min_p)
    assert margin > (V + 8) * U                                                 # no decision of these seeds is near its border
    got = filter_probabilities(z, temperature=T, top_k=k, top_p=top_p, min_p=min_p)
    assert np.flatnonzero(got).tolist() == sorted(left)
    bound = (V + 8 + 2 * (z.max() - z) / T) * U * got
    assert (np.abs(got - np.array([float(x) for x in p])) <= bound).all()


@pytest.mark.parametrize(("p", "filters", "left"), [
    ([0.5, 0.3, 0.2], {"top_p": 1.0}, [0, 1, 2]),                               # BlinkDL/ChatRWKV#170
    ([0.15, 0.14, 0.11, 0.6 / 3, 0.6 / 3, 0.6 / 3], {"top_k": 1, "top_p": 0.8}, [3]),     # ml-explore/mlx-lm#388
    ([0.1, 0.2, 0.7], {"top_p": 0.6}, [2]),                                     # dmlc/gluon-nlp#1481
    ([0.4, 0.3, 0.2, 0.1], {"top_k": 2, "min_p": 0.5}, [0, 1]),                 # sgl-project/sglang#15648
    ([0.4, 0.3, 0.2, 0.1], {"top_p": 0.8}, [0, 1, 2]),                          # ggml-org/llama.cpp#1953
    ([0.5, 0.41, 0.09], {"top_p": 0.9}, [0, 1]),                                # Biohub/esm#360
    ([0.4, 0.3, 0.2, 0.1], {"top_k": 2, "top_p": 0.6}, [0, 1]),                 # of the renormalised two, 0.57 are not enough
    ([0.25] * 4, {"top_k": 2}, [0, 1]),
    ([0.25] * 4, {"top_p": 0.5}, [0, 1]),                                       # ties by lowest index, and >= at the border
    ([0.25] * 4, {"top_p": 0.25}, [0]),
    ([0.25] * 4, {"top_p": 0.75}, [0, 1, 2]),
    ([0.5, 0.5, 0.0], {"top_p": 1.0}, [0, 1]),
    ([0.25, 0.5, 0.25], {"min_p": 1.0}, [1]),
    ([0.3, 0.7], {"top_k": 10}, [0, 1]),
    ([0.3, 0.7], {"top_p": 1e-300}, [1]),
])
def test_what_is_kept_of_a_row(p: list[float], filters: dict[str, Any], left: list[int]) -> None:
    assert kept(p, **filters) == left


def test_top_p_of_one_keeps_a_token_of_1e_minus_300() -> None:
    assert kept([1.0, 1e-300], top_p=1.0) == [0, 1]


def test_the_mass_kept_reaches_top_p_and_not_without_its_smallest_token() -> None:
    z = np.random.default_rng(3).normal(size=500)                               # flashinfer-ai/flashinfer#2202
    p, q = filter_probabilities(z), filter_probabilities(z, top_p=0.9)
    mass = p[q > 0].sum()
    assert mass >= 0.9
    assert mass - p[q > 0].min() < 0.9


@pytest.mark.parametrize("others", [{}, {"top_k": 5}, {"top_p": 0.1}, {"min_p": 0.9}])
def test_temperature_0_is_the_first_of_the_largest(others: dict[str, Any]) -> None:
    assert filter_probabilities([1.0, 4.0, 4.0, -np.inf], temperature=0.0, **others).tolist() == [0.0, 1.0, 0.0, 0.0]


def test_a_tiny_temperature_does_not_overflow() -> None:
    assert filter_probabilities([1e300, -1e300], temperature=1e-300).tolist() == [1.0, 0.0]


def test_a_row_is_filtered_as_if_it_were_alone() -> None:
    r = np.random.default_rng(5)
    z, T, k, top_p, min_p = r.normal(size=(2, 3, 9)), r.uniform(0.5, 2, (2, 3)), r.integers(1, 9, 3), r.uniform(0.3, 1, (2, 1)), 0.1
    whole = filter_probabilities(z, temperature=T, top_k=k, top_p=top_p, min_p=min_p)
    for i, j in np.ndindex(2, 3):
        assert (filter_probabilities(z[i, j], temperature=T[i, j], top_k=k[j], top_p=top_p[i, 0], min_p=min_p) == whole[i, j]).all()


def test_logits_of_any_float_dtype_are_widened_and_left_alone() -> None:
    z = np.array([[0.5, -1.0, 2.0]], ml_dtypes.bfloat16)
    before = z.copy()
    assert (filter_probabilities(z, top_k=2) == filter_probabilities(z.astype(np.float64), top_k=2)).all()
    assert (z == before).all()


def test_a_prompt_is_repeated_but_neither_frequent_nor_present() -> None:
    z = np.full(8, 1.0)                                                         # vllm-project/vllm-metal#69
    assert apply_penalties(z, [5], prompt_lengths=1, frequency=1.0, presence=1.0)[5] == 1.0
    assert apply_penalties(z, [5], prompt_lengths=1, repetition=2.0)[5] == 0.5
    assert apply_penalties(-z, [5], prompt_lengths=1, repetition=2.0)[5] == -2.0


def test_frequency_counts_and_presence_does_not() -> None:
    z = apply_penalties(np.zeros(3), [1, 1, 2, -1], frequency=0.25, presence=0.5)
    assert z.tolist() == [0.0, -1.0, -0.75]


def test_repetition_comes_before_the_other_two() -> None:
    assert apply_penalties([4.0], [0], repetition=2.0, frequency=1.0).tolist() == [1.0]


def test_each_row_is_penalised_for_its_own_tokens() -> None:
    z, tokens = np.zeros((2, 3)), np.array([[0, 0], [2, -1]])                   # vllm-project/vllm#5639
    plain_first = apply_penalties(z, tokens, frequency=[0.0, 1.0])
    assert plain_first.tolist() == [[0.0, 0.0, 0.0], [0.0, 0.0, -1.0]]
    assert (apply_penalties(z, tokens[::-1], frequency=[1.0, 0.0]) == plain_first[::-1]).all()


@pytest.mark.parametrize("p", [[1.0], [0.0, 1.0, 0.0], [0.25, 0.0, 0.5, 0.0, 0.25], [3.0, 1.0], [0.0, 5e-324, 0.0]])
def test_a_draw_has_the_law_of_its_weights(p: list[float]) -> None:
    """The first and the last uniform of each piece of [0, 1) give the piece's token."""
    S, c = sum(Fraction(x) for x in p), Fraction(0)
    for i, weight in enumerate(p):
        low, high = c / S, (c + Fraction(weight)) / S
        c += Fraction(weight)
        if weight:
            assert sample(p, float(low)) == i
            assert sample(p, float(high) - U) == i


def test_a_draw_never_leaves_the_vocabulary() -> None:
    p = np.eye(8)[1]                                                            # flashinfer-ai/flashinfer#384
    assert sample(p, 0.99999994) == sample(p, ALMOST_ONE) == sample(p, 0.0) == 1


def test_each_row_of_a_batch_is_drawn_with_its_own_uniform() -> None:
    r = np.random.default_rng(0)
    p, u = r.random((2, 3, 5)), r.random((2, 3))
    tokens = sample(p, u)
    assert tokens.dtype == np.int64
    assert tokens.tolist() == [[int(sample(p[i, j], u[i, j])) for j in range(3)] for i in range(2)]


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda: filter_probabilities([1, 2]), TypeError, "logits: got dtype int64"),
    (lambda: filter_probabilities(np.zeros((2, 0))), ValueError, r"logits: got shape \(2, 0\)"),
    (lambda: filter_probabilities([-np.inf, -np.inf]), ValueError, "logits: got a row with a NaN"),
    (lambda: filter_probabilities([np.nan, 0.0]), ValueError, "logits: got a row with a NaN"),
    (lambda: filter_probabilities([0.0], temperature=-1.0), ValueError, "temperature: got -1.0; want a finite number >= 0"),
    (lambda: filter_probabilities([0.0], temperature=np.inf), ValueError, "temperature: got inf"),
    (lambda: filter_probabilities([0.0], top_k=0), ValueError, "top_k: got numbers from 0 to 0"),
    (lambda: filter_probabilities([0.0], top_p=0.0), ValueError, "top_p: got 0.0; want a finite number > 0 and <= 1"),
    (lambda: filter_probabilities([0.0], min_p=1.5), ValueError, "min_p: got 1.5"),
    (lambda: filter_probabilities(np.zeros((2, 3)), temperature=[1.0, 1.0, 1.0]), ValueError, r"temperature: got shape \(3,\)"),
    (lambda: apply_penalties([0.0], [1]), ValueError, "tokens: got numbers from 1 to 1; want -1..0"),
    (lambda: apply_penalties(np.zeros((2, 3)), [1]), ValueError, r"tokens: got shape \(1,\) beside logits \(2, 3\); want \(2, T\)"),
    (lambda: apply_penalties([0.0], [0], repetition=0.0), ValueError, "repetition: got 0.0; want a finite number > 0"),
    (lambda: apply_penalties([0.0], [0], prompt_lengths=2), ValueError, "prompt_lengths: got numbers from 2 to 2; want 0..1"),
    (lambda: sample([0.0, 0.0], 0.5), ValueError, "probabilities: got a row with a NaN"),
    (lambda: sample([0.5, -0.5], 0.5), ValueError, "probabilities: got a row with a NaN"),
    (lambda: sample([0.5, np.nan], 0.5), ValueError, "probabilities: got a row with a NaN"),
    (lambda: sample([1.0], 1.0), ValueError, r"u: got numbers outside \[0, 1\)"),
    (lambda: sample([[1.0]], 0.5), ValueError, r"u: got shape \(\); want \(1,\)"),
])
def test_bad_input_is_refused_by_name(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
