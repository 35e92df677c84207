"""The loop: exactly the law of the target alone, caches that hold what was emitted, drafts of a second model and of own heads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from oracles.properties.enumeration import Law, Model
from oracles.properties.exact_law import chain
from oracles.properties.random_models import RandomModel
from oracles.reference import self_speculate, speculative_generate, verify_block

PROMPT = [0, 1]


class Cached:
    """A law for every context as a model with a cache: what it was fed is all that it knows."""

    def __init__(self, law: Model) -> None:
        self.law, self.fed, self.passes = law, [], 0

    def extend(self, tokens: Sequence[int]) -> np.ndarray:
        self.passes += 1
        rows = []
        for token in tokens:
            self.fed.append(token)
            rows.append([float(p) for p in self.law(tuple(self.fed))])
        return np.array(rows)

    def crop(self, n: int) -> None:
        assert n <= len(self.fed)
        self.fed = self.fed[:n]

    def __len__(self) -> int:
        return len(self.fed)


class CachedWithHidden(Cached):
    """The hidden state at a token is the context up to it."""

    def extend(self, tokens: Sequence[int]) -> Any:
        p, n = super().extend(tokens), len(self.fed)
        return p, [np.array(self.fed[: n - len(tokens) + i + 1]) for i in range(len(tokens))] if p.size else []


def heads_of(law: Model, K: int) -> list[Any]:
    def head(h: np.ndarray, token: int) -> Any:
        state = np.append(h, token)
        return [float(p) for p in law(tuple(state.tolist()))], state
    return [head] * K


def halves(seed: int) -> Model:
    """Over 2 tokens, each context certain or 1/2 to 1/2: then every decision changes at 0, 1/2 or 1."""
    return RandomModel(2, seed, least=0, most=1)


def law_of(generate: Callable[[np.ndarray], Any], passes: int, columns: int) -> Law:
    """The exact law over uniforms of 1/4 and 3/4, which stand for the two halves of [0, 1)."""
    law: Law = {}
    for bits in itertools.product((0.25, 0.75), repeat=passes * columns):
        y = tuple(generate(np.array(bits).reshape(passes, columns)).tolist())
        law[y] = law.get(y, Fraction(0)) + Fraction(1, 2 ** (passes * columns))
    return law


def after_the_prompt(law: Model) -> Model:
    return lambda context: law((*PROMPT, *context))


@pytest.mark.parametrize(("seed", "k", "length"), [(0, 1, 3), (1, 1, 3), (2, 1, 2), (3, 2, 1), (4, 0, 4)])
def test_generation_has_exactly_the_law_of_the_target(seed: int, k: int, length: int) -> None:
    draft, target = halves(2 * seed), halves(2 * seed + 1)

    def generate(u: np.ndarray) -> np.ndarray:
        return speculative_generate(Cached(draft), Cached(target), PROMPT, k=k, length=length, uniforms=u)[0]

    assert law_of(generate, length, 2 * k + 1) == chain(after_the_prompt(target), length)


@pytest.mark.parametrize("seed", range(2))
def test_generation_with_own_heads_has_exactly_the_law_of_the_model(seed: int) -> None:
    draft, target = halves(2 * seed + 20), halves(2 * seed + 21)

    def generate(u: np.ndarray) -> np.ndarray:
        return self_speculate(CachedWithHidden(target), heads_of(draft, 1), PROMPT, length=3, uniforms=u)[0]

    assert law_of(generate, 3, 3) == chain(after_the_prompt(target), 3)


def no_token_twice(tokens: Sequence[int], p: np.ndarray) -> np.ndarray:
    """"Forbid repeating the last token": ml-explore/mlx-lm#990."""
    left = np.where(np.arange(len(p)) == tokens[-1], 0.0, p)
    return left / left.sum()


@pytest.mark.parametrize("own_heads", [False, True])
def test_a_process_sees_the_token_just_drawn(own_heads: bool) -> None:
    law = RandomModel(3, 5)
    u = np.random.default_rng(0).random((40, 7))
    given: dict[str, Any] = {"length": 40, "uniforms": u, "process": no_token_twice}
    if own_heads:
        new, _ = self_speculate(CachedWithHidden(law), heads_of(RandomModel(3, 6), 3), PROMPT, **given)
    else:
        new, _ = speculative_generate(Cached(RandomModel(3, 6)), Cached(law), PROMPT, k=3, **given)
    tokens = [PROMPT[-1], *new.tolist()]
    assert len(tokens) == 41
    assert all(a != b for a, b in itertools.pairwise(tokens))


def greedy(seed: int, V: int) -> Model:
    """A model that is sure of one token in every context."""
    return RandomModel(V, seed, least=0, most=0)


def sometimes(draft: Model, target: Model, seed: int) -> Model:
    """The target where a coin of the context says so, else the draft: every number of accepted tokens comes up."""
    coin = RandomModel(2, seed, least=0, most=0)
    return lambda context: (target if coin(context)[0] else draft)(context)


def alone(target: Model, n: int) -> list[int]:
    tokens = list(PROMPT)
    for _ in range(n):
        tokens.append(list(target(tuple(tokens))).index(Fraction(1)))
    return tokens[len(PROMPT):]


@pytest.mark.parametrize("verify", [None, verify_block])
@pytest.mark.parametrize("K", [1, 2, 3, 4])
def test_greedy_text_is_the_same_with_drafts_and_without(K: int, verify: Any) -> None:
    """At every depth and every number of accepted tokens: antirez/ds4#750."""
    target, more = greedy(1, 4), {} if verify is None else {"verify": verify}
    draft = sometimes(greedy(2, 4), target, 3)
    u = np.random.default_rng(K).random((60, 2 * K + 1))
    tokens, accepted = speculative_generate(Cached(draft), Cached(target), PROMPT, k=K, length=60, uniforms=u, **more)
    own, own_accepted = self_speculate(CachedWithHidden(target), heads_of(draft, K), PROMPT, length=60, uniforms=u, **more)
    assert tokens.tolist() == own.tolist() == alone(target, 60)
    assert set(accepted) == set(range(K + 1))
    assert set(own_accepted[1:]) == set(range(K + 1))


def test_an_equal_draft_is_accepted_always() -> None:
    law = RandomModel(4, 7)                                                     # vllm-project/vllm#9730, vllm-project/vllm#36531
    u = np.random.default_rng(0).random((12, 7))
    _, accepted = speculative_generate(Cached(law), Cached(law), PROMPT, k=3, length=40, uniforms=u)
    assert accepted.tolist() == [3] * 10
    _, accepted = self_speculate(CachedWithHidden(law), heads_of(law, 3), PROMPT, length=41, uniforms=u)
    assert accepted.tolist() == [0] + [3] * 10


def test_an_equal_draft_under_a_process_is_accepted_always() -> None:
    law = RandomModel(4, 7)                                                     # draft and target are filtered alike, in the same histories
    u = np.random.default_rng(0).random((12, 7))
    _, accepted = speculative_generate(Cached(law), Cached(law), PROMPT, k=3, length=40, uniforms=u, process=no_token_twice)
    assert accepted.tolist() == [3] * 10
    _, accepted = self_speculate(CachedWithHidden(law), heads_of(law, 3), PROMPT, length=41, uniforms=u, process=no_token_twice)
    assert accepted.tolist() == [0] + [3] * 10


@pytest.mark.parametrize(("row", "tokens", "accepted"), [
    ([0.25, 0.0, 0.75], [0, 1], 1),                                             # 0 drafted, accepted: 0.0 < 1/2; then 1: 0.75 >= 1/4
    ([0.25, 0.75, 0.0], [1], 0),                                                # 0 drafted, rejected: 0.75 >= 1/2
    ([0.75, 0.75, 0.0], [1, 0], 1),                                             # 1 drafted, always accepted, then 0
])
def test_a_row_of_uniforms_draws_then_accepts_then_draws_the_last(row: list[float], tokens: list[int], accepted: int) -> None:
    def draft(context: Any) -> Any:
        return [Fraction(1, 2), Fraction(1, 2)]

    def target(context: Any) -> Any:
        return [Fraction(1, 4), Fraction(3, 4)]

    result = speculative_generate(Cached(draft), Cached(target), PROMPT, k=1, length=len(tokens), uniforms=[row])
    assert [x.tolist() for x in result] == [tokens, [accepted]]
    own = self_speculate(CachedWithHidden(target), heads_of(draft, 1), PROMPT, length=len(tokens) + 1, uniforms=[[0.5, 0.5, 0.0], row])
    assert [x.tolist() for x in own] == [[0, *tokens], [0, accepted]]


def test_the_first_head_starts_from_the_last_accepted_token() -> None:
    """Not from a rejected one: antirez/ds4#750. The state at a token is the context up to it."""
    states: list[list[int]] = []

    def first_head(h: np.ndarray, token: int) -> Any:
        states.append([*h.tolist(), token])
        return [0.25] * 4, np.append(h, token)

    law = RandomModel(4, 9)
    u = np.random.default_rng(0).random((30, 5))
    heads = [first_head, *heads_of(RandomModel(4, 10), 1)]
    tokens, accepted = self_speculate(CachedWithHidden(law), heads, PROMPT, length=30, uniforms=u)
    assert set(accepted[1:]) == {0, 1, 2}
    whole = PROMPT + tokens.tolist()
    assert states == [whole[: len(state)] for state in states]


def test_a_pass_of_the_target_reads_all_drafts_at_once_and_the_caches_keep_what_was_emitted() -> None:
    draft, target = Cached(RandomModel(4, 8)), Cached(RandomModel(4, 9))
    u = np.random.default_rng(0).random((30, 5))
    tokens, accepted = speculative_generate(draft, target, PROMPT, k=2, length=30, uniforms=u)
    assert target.passes == len(accepted)
    whole = PROMPT + tokens.tolist()
    assert target.fed[: len(whole) - 1] == whole[: len(target.fed)][: len(whole) - 1]
    assert draft.fed == target.fed[: len(draft.fed)]


def test_text_ends_at_eos() -> None:
    target = greedy(1, 4)
    text = alone(target, 30)
    end = text.index(2) + 1
    for k in range(4):
        u = np.full((30, 2 * k + 1), 0.5)
        assert speculative_generate(Cached(target), Cached(target), PROMPT, k=k, length=30, uniforms=u, eos=2)[0].tolist() == text[:end]
        assert self_speculate(CachedWithHidden(target), heads_of(target, k), PROMPT, length=30, uniforms=u, eos=2)[0].tolist() == text[:end]


def test_an_eos_in_the_prompt_ends_nothing() -> None:
    target = greedy(1, 4)
    u = np.full((3, 3), 0.5)
    assert len(speculative_generate(Cached(target), Cached(target), PROMPT, k=1, length=1, uniforms=u, eos=PROMPT[0])[0]) == 1


@pytest.mark.parametrize("length", [0, 1, 5])
def test_as_many_tokens_come_as_were_asked_for(length: int) -> None:
    law, u = RandomModel(3, 1), np.full((5, 7), 0.5)
    assert len(speculative_generate(Cached(law), Cached(law), PROMPT, k=3, length=length, uniforms=u)[0]) == length
    assert len(self_speculate(CachedWithHidden(law), heads_of(law, 3), PROMPT, length=length, uniforms=u)[0]) == length


def call(**changed: Any) -> Any:
    law = RandomModel(3, 1)
    given = {"draft": Cached(law), "target": Cached(law), "prompt": PROMPT, "k": 1, "length": 4, "uniforms": np.full((4, 3), 0.5)} | changed
    return speculative_generate(given.pop("draft"), given.pop("target"), given.pop("prompt"), **given)


def fed(n: int) -> Cached:
    model = Cached(RandomModel(3, 1))
    model.fed = [0] * n
    return model


@pytest.mark.parametrize(("changed", "error", "words"), [
    ({"prompt": []}, ValueError, "prompt: got no tokens"),
    ({"prompt": [0.5]}, TypeError, "prompt: got 0.5"),
    ({"draft": fed(2)}, ValueError, "draft: got a model fed 2 tokens; want fewer than the prompt's 2"),
    ({"target": fed(2)}, ValueError, "target: got a model fed 2 tokens"),
    ({"k": -1}, ValueError, "k: got -1"),
    ({"length": -1}, ValueError, "length: got -1"),
    ({"uniforms": np.full((4, 2), 0.5)}, ValueError, r"uniforms: got shape \(4, 2\); want \(passes, 3\)"),
    ({"uniforms": np.full((1, 3), 0.5)}, ValueError, "uniforms: got 1 rows and want more"),
    ({"uniforms": np.full((4, 3), 1.0)}, ValueError, "uniforms: got numbers outside"),
])
def test_bad_input_is_refused_by_name(changed: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(**changed)


def test_a_model_fed_the_whole_prompt_is_refused_by_name() -> None:
    model = CachedWithHidden(RandomModel(3, 1))
    model.extend(PROMPT)
    with pytest.raises(ValueError, match="model: got a model fed 2 tokens"):
        self_speculate(model, [], PROMPT, length=1, uniforms=np.full((1, 1), 0.5))
