"""The KV cache as an object: every law can fail, the oracle and what is legal hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.properties.stateful import kv_cache_laws
from oracles.properties.stateful.checker import check_object
from oracles.properties.stateful.kv_cache import KV_CACHE
from oracles.properties.stateful.kv_cache_laws import KV_CACHE_LAWS
from oracles.properties.zoo.textbook_cache import Cache
from oracles.reference import KVCache, attention

from .law_alone import broken_alone


class NoPair(Cache):
    def view(self) -> Any:
        return super().view()[0]


class CropsTooMuch(Cache):
    def crop(self, n: int) -> None:
        self.n = min(n, self.n)


class ChangesBeforeItRaises(Cache):
    def crop(self, n: int) -> None:
        self.n = 0 if n > self.n else self.n
        super().crop(n)


class CountsTheWindow(Cache):
    def __len__(self) -> int:
        return self.n if self.window is None else min(self.n, self.window)


class WindowWithTheCurrent(Cache):
    def __init__(self, *, window: int | None = None) -> None:
        super().__init__(window=None if window is None else window + 1)


class KeysReversed(Cache):
    def view(self) -> Any:
        k, v = super().view()
        return k[:, :, ::-1], v


class ValuesOfTheFirst(Cache):
    def select(self, rows: Any) -> None:
        super().select(rows)
        self.v = np.repeat(self.v[:1], len(rows), axis=0)


class OneValueLost(Cache):
    def view(self) -> Any:
        k, v = (array.copy() for array in super().view())
        v[..., :1, 0] = 0
        return k, v


BREAKS: dict[str, type[Any]] = {
    "answers": NoPair,
    "a_wrong_call_is_refused": CropsTooMuch,
    "what_raises_changes_nothing": ChangesBeforeItRaises,
    "the_length_counts_the_tokens_kept": CountsTheWindow,
    "the_view_is_the_last_window": WindowWithTheCurrent,
    "keys_come_back_as_they_were_appended": KeysReversed,
    "values_come_back_as_they_were_appended": ValuesOfTheFirst,
    "attention_over_the_view_is_windowed_attention_over_the_tokens": OneValueLost,
}


def test_there_is_a_breaker_of_every_law() -> None:
    assert list(BREAKS) == [law.name for law in KV_CACHE_LAWS]


@pytest.mark.parametrize("law", BREAKS)
def test_the_law_can_fail(law: str) -> None:
    assert broken_alone(KV_CACHE, law, BREAKS[law]) != ""


@pytest.mark.parametrize("law", BREAKS)
def test_the_law_holds_of_a_right_cache(law: str) -> None:
    assert broken_alone(KV_CACHE, law, Cache) == ""


def test_the_oracle_holds() -> None:
    assert check_object("kv_cache", KVCache, budget=10).held


def test_attention_in_the_law_is_attention() -> None:
    """The laws carry their own attention, so that a repro needs NumPy alone: it is the oracle's, but for the order of its sums."""
    r = np.random.default_rng(0)
    k, v = r.integers(-8, 8, (2, 3, 9, 4)).astype(float), r.integers(-8, 8, (2, 3, 9, 5)).astype(float)
    hidden = np.arange(9) < 4
    q = np.broadcast_to(np.where(np.arange(4) % 2, -1.0, 1.0) / 8, (2, 3, 1, 4))
    wanted, _ = attention(q, k, v, causal=None, scale=1.0, mask=~hidden[None, None, None])
    got = kv_cache_laws._attention(k, v, hidden)
    # At most 9 terms up to 8, each product, sum and exponential rounded: 32 roundings of numbers up to 8, on both sides.
    assert np.abs(got - wanted[:, :, 0]).max() <= 2 * 32 * 8 * np.finfo(np.float64).eps
