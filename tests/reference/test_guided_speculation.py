"""Guided decoding inside speculative decoding: exactly the law of the target restricted to the language, whatever the draft."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from oracles.properties.enumeration import Law, Model
from oracles.properties.exact_law import chain, completed, exact_law
from oracles.properties.random_models import RandomModel, random_models
from oracles.reference import compile_regex, guided_process, self_speculate, speculative_generate

TOKENS = ["a", "b", "<eos>"]
EOS = 2
PROMPT = [0, 1]
# Two tokens at most are allowed anywhere, so that equal weights stay 0, 1/2 or 1 once they are masked.
PATTERNS = ["a{0,2}", "(a|b)(a|b)", "ab?|b", "(ab)*"]
LONGEST = ["".join(letters) for n in range(5) for letters in itertools.product("ab", repeat=n)]


@lru_cache(maxsize=4096)
def allowed(pattern: str, tokens: tuple[int, ...]) -> tuple[bool, ...]:
    """The mask after some tokens, by trying all continuations."""
    if EOS in tokens:
        return (False, False, True)
    text = "".join(TOKENS[t] for t in tokens)
    matches = re.compile(pattern).fullmatch
    return (*(any(matches(text + c + more) for more in LONGEST) for c in "ab"), matches(text) is not None)


def masked(pattern: str, model: Model) -> Model:
    """A model restricted to a language, as fractions; equal shares where it has no mass there."""

    def law(context: tuple[int, ...]) -> list[Fraction]:
        mask = allowed(pattern, context)
        kept = [p if m else Fraction(0) for p, m in zip(model(context), mask)]
        kept = kept if any(kept) else [Fraction(int(m)) for m in mask]
        return [p / sum(kept) for p in kept]

    return law


class Cached:
    """A law for every context as a model with a cache, the prompt left out; with hidden states, which are the contexts."""

    def __init__(self, law: Model, *, hidden: bool = False) -> None:
        self.law, self.hidden, self.fed = law, hidden, []

    def extend(self, tokens: Sequence[int]) -> Any:
        rows, states = [], []
        for token in tokens:
            self.fed.append(token)
            rows.append([float(p) for p in self.law(tuple(self.fed[len(PROMPT):]))])
            states.append(np.array(self.fed))
        return (np.array(rows), states) if self.hidden else np.array(rows)

    def crop(self, n: int) -> None:
        self.fed = self.fed[:n]

    def __len__(self) -> int:
        return len(self.fed)


def head_of(law: Model) -> Any:
    def head(h: np.ndarray, token: int) -> Any:
        state = np.append(h, token)
        return [float(p) for p in law(tuple(state[len(PROMPT):].tolist()))], state

    return head


def law_of(generate: Any, passes: int, columns: int) -> Law:
    """The exact law over uniforms of 1/4 and 3/4, which stand for the two halves of [0, 1)."""
    law: Law = {}
    for bits in itertools.product((0.25, 0.75), repeat=passes * columns):
        y = tuple(generate(np.array(bits).reshape(passes, columns)).tolist())
        law[y] = law.get(y, Fraction(0)) + Fraction(1, 2 ** (passes * columns))
    return law


def ended(law: Law) -> Law:
    """What is left of each outcome up to its first eos."""
    short: Law = {}
    for y, p in law.items():
        y = y[: y.index(EOS) + 1] if EOS in y else y
        short[y] = short.get(y, Fraction(0)) + p
    return short


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("seed", "k", "length"), [(0, 1, 3), (1, 1, 3), (2, 2, 1)])
def test_generation_has_exactly_the_law_of_the_masked_target(pattern: str, seed: int, k: int, length: int) -> None:
    draft, target = RandomModel(3, 2 * seed, least=0, most=1), RandomModel(3, 2 * seed + 1, least=0, most=1)
    process = guided_process(compile_regex(pattern, TOKENS, eos=EOS), prompt_length=len(PROMPT))

    def generate(u: np.ndarray) -> np.ndarray:
        return speculative_generate(Cached(draft), Cached(target), PROMPT, k=k, length=length, uniforms=u, eos=EOS, process=process)[0]

    assert law_of(generate, length, 2 * k + 1) == ended(chain(masked(pattern, target), length))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_generation_with_own_heads_has_it_too(pattern: str) -> None:
    draft, target = RandomModel(3, 20, least=0, most=1), RandomModel(3, 21, least=0, most=1)
    process = guided_process(compile_regex(pattern, TOKENS, eos=EOS), prompt_length=len(PROMPT))

    def generate(u: np.ndarray) -> np.ndarray:
        model = Cached(target, hidden=True)
        return self_speculate(model, [head_of(draft)], PROMPT, length=3, uniforms=u, eos=EOS, process=process)[0]

    assert law_of(generate, 3, 3) == ended(chain(masked(pattern, target), 3))


@pytest.mark.parametrize("pattern", [*PATTERNS, "(a|b)*", "a*b?", "[ab]{1,3}"])
@pytest.mark.parametrize("draft_is_masked", [True, False])
def test_one_round_is_lossless_for_the_masked_target(pattern: str, draft_is_masked: bool) -> None:
    """A draft that knows nothing of the language too: what the language forbids has probability 0, and is rejected."""
    for seed in range(6):
        draft, target = random_models(3, seed)
        law = exact_law(masked(pattern, draft) if draft_is_masked else draft, masked(pattern, target), k=2)
        assert completed(law, masked(pattern, target), 3) == chain(masked(pattern, target), 3)
        for y in law:
            assert all(allowed(pattern, y[:i])[t] for i, t in enumerate(y))


def masked_at_the_end(pattern: str, model: Model, k: int) -> Model:
    """Only the row behind the whole draft is masked: vllm-project/vllm#15554."""

    def law(context: tuple[int, ...]) -> Sequence[Fraction]:
        legal = all(allowed(pattern, context[:i])[t] for i, t in enumerate(context))
        return masked(pattern, model)(context) if len(context) >= k and legal else model(context)

    return law


def test_masking_the_bonus_alone_lets_forbidden_texts_through() -> None:
    draft, target = random_models(3, 0)
    law = exact_law(draft, masked_at_the_end("(ab)*", target, 2), k=2)
    assert any(not allowed("(ab)*", y[:i])[t] for y in law for i, t in enumerate(y))
