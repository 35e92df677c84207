"""Packed attention against each of its sequences alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.reference import attention, attention_backward, attention_packed, attention_packed_backward

pytestmark = pytest.mark.filterwarnings("error")
CU_Q, CU_K = [0, 3, 3, 5, 9], [0, 4, 6, 6, 8]                                   # the second has no queries, the third no keys
OPTIONS: list[dict[str, Any]] = [{"causal": None}, {"causal": "bottom_right", "softcap": 1.0}, {"causal": "top_left", "scale": -0.5},
                                 {"causal": None, "window": (1, 0)}]


def arrays() -> Any:
    r = np.random.default_rng(0)
    return [r.normal(size=shape) for shape in ((9, 4, 3), (8, 2, 3), (8, 2, 5), (9, 4, 5))]


def alone(x: np.ndarray, cu: list[int], i: int) -> np.ndarray:
    return x[cu[i] : cu[i + 1]].swapaxes(0, 1)[None]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("i", range(4))
def test_each_sequence_is_as_it_is_alone(options: dict[str, Any], i: int) -> None:
    q, k, v, _ = arrays()
    out, lse = attention_packed(q, k, v, CU_Q, CU_K, **options)
    one, one_lse = attention(alone(q, CU_Q, i), alone(k, CU_K, i), alone(v, CU_K, i), **options)
    np.testing.assert_array_equal(alone(out, CU_Q, i), one)
    np.testing.assert_array_equal(lse[:, CU_Q[i] : CU_Q[i + 1]], one_lse[0])


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("i", range(4))
def test_each_sequence_has_the_gradients_it_has_alone(options: dict[str, Any], i: int) -> None:
    q, k, v, dout = arrays()
    out, lse = attention_packed(q, k, v, CU_Q, CU_K, **options)
    got = attention_packed_backward(q, k, v, out, lse, dout, CU_Q, CU_K, **options)
    one = attention_backward(alone(q, CU_Q, i), alone(k, CU_K, i), alone(v, CU_K, i), alone(out, CU_Q, i),
                             lse[None, :, CU_Q[i] : CU_Q[i + 1]], alone(dout, CU_Q, i), **options)
    for name, cu in (("dq", CU_Q), ("dk", CU_K), ("dv", CU_K)):
        np.testing.assert_array_equal(alone(got[name], cu, i), one[name])


def test_queries_without_keys_see_nothing() -> None:
    q, k, v, _ = arrays()
    out, lse = attention_packed(q, k, v, CU_Q, CU_K, causal=None)
    assert (out[3:5] == 0).all()
    assert np.isneginf(lse[:, 3:5]).all()


def test_no_sequences_at_all_are_legal() -> None:
    out, lse = attention_packed(np.zeros((0, 2, 3)), np.zeros((0, 1, 3)), np.zeros((0, 1, 4)), [0], [0], causal=None)
    assert (out.shape, lse.shape) == ((0, 2, 4), (2, 0))


@pytest.mark.parametrize(("cu_q", "cu_k", "error", "words"), [
    ([1, 9], [0, 8], ValueError, r"cu_q: got \[1, 9\]; want offsets that start at 0, never fall and end at 9"),
    ([0, 9], [0, 7], ValueError, r"cu_k: got \[0, 7\]; want offsets .* end at 8"),
    ([0, 5, 4, 9], [0, 8, 8, 8], ValueError, r"cu_q: got \[0, 5, 4, 9\]"),
    ([0, 4, 9], [0, 8], ValueError, "cu_k: got offsets of 1 sequences beside 2 in cu_q"),
    ([0.0, 9.0], [0, 8], TypeError, "cu_q: got dtype float64; want integers"),
    ([0, 12], [0, 8], ValueError, r"cu_q: got numbers from 0 to 12; want 0..9"),
])
def test_bad_offsets_are_refused_by_name(cu_q: list[int], cu_k: list[int], error: type[Exception], words: str) -> None:
    q, k, v, _ = arrays()
    with pytest.raises(error, match=words):
        attention_packed(q, k, v, cu_q, cu_k, causal=None)


@pytest.mark.parametrize(("name", "place"), [("out", 0), ("lse", 1), ("dout", 2)])
def test_a_shape_that_does_not_fit_is_refused_by_name(name: str, place: int) -> None:
    q, k, v, dout = arrays()
    given = [*attention_packed(q, k, v, CU_Q, CU_K, causal=None), dout]
    given[place] = np.concatenate([given[place]] * 2)                           # longer: no slice of it would fail
    with pytest.raises(ValueError, match=rf"^{name}: got shape"):
        attention_packed_backward(q, k, v, *given, CU_Q, CU_K, causal=None)
