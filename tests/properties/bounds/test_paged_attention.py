"""The bound of paged attention is that of attention over each sequence's own tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.properties import Arithmetic
from oracles.properties.bounds import attention_bound, paged_attention_bound
from oracles.properties.zoo import triggers_pages


def _given(**options: Any) -> dict[str, Any]:
    return triggers_pages.paged([3, 5], [[3, 1, -1], [0, 6, 2]], Hkv=2, G=2, Lq=2, **options)


@pytest.mark.parametrize("options", [
    {}, {"causal": "bottom_right", "window": (2, None)}, {"softcap": 5.0, "sinks": np.ones(4, np.float32)},
])
def test_each_sequence_has_the_bound_of_its_own_tokens(options: dict[str, Any]) -> None:
    a, given = Arithmetic().resolve("float32"), _given(**options)
    bound = paged_attention_bound(a, **given)
    for b, blocks in enumerate(([3, 1], [0, 6, 2])):
        k, v = (given[name][blocks].reshape(1, -1, 2, 4)[:, : given["kv_lengths"][b]].swapaxes(1, 2) for name in ("k_pages", "v_pages"))
        alone = attention_bound(a, given["q"][b : b + 1], k, v, **{"causal": None, **options})
        assert np.array_equal(bound["out"][b], alone["out"][0])
        assert np.array_equal(bound["lse"][b], alone["lse"][0])


def test_padding_queries_have_the_bound_0_and_move_the_others() -> None:
    a = Arithmetic().resolve("float32")
    bound = paged_attention_bound(a, **_given(causal="bottom_right", query_lengths=np.array([1, 0])))
    assert not bound["out"][0, :, 1].any()
    assert not bound["lse"][1].any()
    alone = _given(causal="bottom_right")
    alone["q"] = alone["q"][:, :, :1]
    assert np.array_equal(bound["out"][0, :, 0], paged_attention_bound(a, **alone)["out"][0, :, 0])


def test_what_stands_elsewhere_in_the_pool_does_not_enter() -> None:
    a, given = Arithmetic().resolve("float32"), _given()
    plain, emptied = (paged_attention_bound(a, **arguments) for arguments in (given, triggers_pages.emptied(given)))
    assert all(np.array_equal(plain[name], emptied[name]) for name in plain)
