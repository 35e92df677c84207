"""A decoder generates with exactly one law, as fractions: alone, with drafts of another model or of own heads, side by side or in pages."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from oracles.properties.enumeration import Law, Tokens
from oracles.properties.exact_law import chain, distance, length_law
from oracles.reference import (
    ContiguousCache,
    Decoder,
    PagedCache,
    PagePool,
    sample,
    self_speculate,
    softmax,
    speculative_generate,
    transformer_forward,
    transformer_generate,
)

PROMPT, LENGTH, V, TEMPERATURE = [0, 2], 3, 3, 6.0
SIZES: dict[str, Any] = {"vocabulary": V, "width": 4, "layers": 2, "heads": 2, "head_size": 2, "hidden": 3}
DECODERS = {
    "grouped": Decoder(**SIZES, kv_heads=1),
    "window": Decoder(**SIZES, kv_heads=2, window=2),
    "latent": Decoder(**SIZES, kv_heads=1, latent=3, rope_size=2),
}
DRAFT = Decoder(**{**SIZES, "layers": 1}, kv_heads=2)


@functools.cache
def weights_of(decoder: Decoder, seed: int) -> dict[str, np.ndarray]:
    g = np.random.default_rng(seed)
    return {name: 1.5 * g.standard_normal(shape) for name, shape in decoder.shapes().items()}


def halves(p: np.ndarray) -> np.ndarray:
    """The law in halves that is nearest: whole halves first, the rest to the largest remainders. Two ways to round must not be near."""
    twice = 2 * np.asarray(p, np.float64)
    whole = np.floor(twice)
    order = np.argsort(whole - twice, kind="stable")
    gaps = np.diff(np.sort(twice - whole))
    assert (gaps > 2.0**-30).all()                                              # no rounding of a float can have chosen
    whole[order[: int(2 - whole.sum())]] += 1
    return whole / 2


def processed(tokens: Sequence[int], law: np.ndarray) -> np.ndarray:
    return halves(law)


@functools.cache
def conditional(decoder: Decoder, context: Tokens, seed: int = 1) -> tuple[Fraction, ...]:
    """The law of the next token, everything computed anew."""
    logits = transformer_forward([[*PROMPT, *context]], weights_of(decoder, seed), decoder)[0, -1]
    return tuple(map(Fraction, halves(softmax(logits / TEMPERATURE)).tolist()))


class Model:
    """A decoder with a cache as the loops want it; `hidden` adds a state at each token, here the token itself."""

    def __init__(self, decoder: Decoder, seed: int, cache: Any, *, hidden: bool = False) -> None:
        self.decoder, self.weights, self.cache, self.hidden, self.opened = decoder, weights_of(decoder, seed), cache, hidden, False

    def extend(self, tokens: Sequence[int]) -> Any:
        if not self.opened:
            self.opened = True
            assert self.cache.open(tokens) == 0
        law = softmax(transformer_forward([list(tokens)], self.weights, self.decoder, cache=self.cache)[0] / TEMPERATURE)
        return (law, np.eye(V)[list(tokens)]) if self.hidden else law

    def crop(self, n: int) -> None:
        self.cache.crop(n)

    def __len__(self) -> int:
        return len(self.cache)


def head(h: np.ndarray, token: int) -> tuple[np.ndarray, np.ndarray]:
    """An own head: a fixed law of the state and the token."""
    z = np.random.default_rng(7).standard_normal((V, V, V))
    return softmax(2 * z[int(h.argmax()), token]), np.eye(V)[token]


def cache_of(decoder: Decoder, kind: str) -> Any:
    if kind == "side by side":
        return ContiguousCache(decoder.layers, window=decoder.window)
    return PagedCache(PagePool(decoder.layers, 12, int(kind.split()[-1])), "sequence", window=decoder.window)


def alone(decoder: Decoder, kind: str, u: np.ndarray) -> tuple[Any, int]:
    draws, cache = iter(u[:, 0].tolist()), cache_of(decoder, kind)
    choose = lambda logits: int(sample(halves(softmax(logits / TEMPERATURE)), next(draws)))  # noqa: E731
    tokens, _ = transformer_generate(PROMPT, weights_of(decoder, 1), decoder, new_tokens=LENGTH, cache=cache, choose=choose)
    return tokens[len(PROMPT) :], LENGTH


def with_a_draft(decoder: Decoder, kind: str, u: np.ndarray) -> tuple[Any, int]:
    draft, target = Model(DRAFT, 2, cache_of(DRAFT, kind)), Model(decoder, 1, cache_of(decoder, kind))
    tokens, accepted = speculative_generate(draft, target, PROMPT, k=1, length=LENGTH, uniforms=u, process=processed)
    return tokens, len(accepted)


def with_own_heads(decoder: Decoder, kind: str, u: np.ndarray) -> tuple[Any, int]:
    model = Model(decoder, 1, cache_of(decoder, kind), hidden=True)
    tokens, accepted = self_speculate(model, [head], PROMPT, length=LENGTH, uniforms=u, process=processed)
    return tokens, len(accepted)


# How it generates, and how many uniforms a pass reads.
WAYS: dict[str, tuple[Callable[..., Any], int]] = {
    "alone": (alone, 1), "with a draft": (with_a_draft, 3), "with own heads": (with_own_heads, 3)}


def law_of(generate: Callable[[np.ndarray], tuple[Any, int]], columns: int) -> Law:
    """The exact law over uniforms of 1/4 and 3/4, which stand for the two halves of [0, 1); rows that no pass reads are not tried."""
    law: Law = {}

    def extend(rows: list[tuple[float, ...]]) -> None:
        tokens, passes = generate(np.array([*rows, *[(0.25,) * columns] * (LENGTH - len(rows))]))
        if passes > len(rows):
            for row in itertools.product((0.25, 0.75), repeat=columns):
                extend([*rows, row])
        else:
            y = tuple(tokens.tolist())
            law[y] = law.get(y, Fraction(0)) + Fraction(1, 2 ** (len(rows) * columns))

    extend([])
    return law


@pytest.mark.parametrize("kind", ["side by side", "pages of 2"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DECODERS)
def test_every_way_to_generate_has_the_law_of_the_decoder_as_fractions(name: str, way: str, kind: str) -> None:
    decoder, (generate, columns) = DECODERS[name], WAYS[way]
    law = law_of(lambda u: generate(decoder, kind, u), columns)
    assert law == chain(lambda context: conditional(decoder, context), LENGTH)
    assert length_law(law) == {LENGTH: 1}


@pytest.mark.parametrize("name", DECODERS)
def test_the_laws_have_something_to_tell(name: str) -> None:
    """Several texts are possible, the context matters, and the draft is another model."""
    law = chain(lambda context: conditional(DECODERS[name], context), LENGTH)
    assert len(law) > 1
    assert distance(law, chain(lambda context: conditional(DRAFT, context, 2), LENGTH)) > 0


def test_a_cache_that_is_not_rolled_back_shows() -> None:
    class Kept(Model):
        def crop(self, n: int) -> None:
            """The draft stays in the cache; what was fed is counted as if it had gone."""
            self.fed = n

        def __len__(self) -> int:
            return getattr(self, "fed", len(self.cache))

        def extend(self, tokens: Sequence[int]) -> Any:
            self.fed = len(self) + len(tokens)
            return super().extend(tokens)

    decoder = DECODERS["grouped"]

    def generate(u: np.ndarray) -> Any:
        draft, target = (make(d, seed, cache_of(d, "side by side")) for make, d, seed in ((Model, DRAFT, 2), (Kept, decoder, 1)))
        tokens, accepted = speculative_generate(draft, target, PROMPT, k=1, length=LENGTH, uniforms=u, process=processed)
        return tokens, len(accepted)

    assert law_of(generate, 3) != chain(lambda context: conditional(decoder, context), LENGTH)
