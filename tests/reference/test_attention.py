"""Attention against the formula one query at a time in decimal, and its conventions one by one."""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles.reference import attention, attention_scores, softmax_over_visible, visible_keys
from oracles.reference.attention import seen_product

pytestmark = pytest.mark.filterwarnings("error")
EXACT = decimal.Context(prec=50)


def arrays(seed: int = 0, *, B: int = 2, Hq: int = 4, Hkv: int = 2, Lq: int = 5, Lk: int = 7, D: int = 3, Dv: int = 6) -> Any:
    r = np.random.default_rng(seed)
    return r.normal(size=(B, Hq, Lq, D)), r.normal(size=(B, Hkv, Lk, D)), r.normal(size=(B, Hkv, Lk, Dv))


def tanh(x: Decimal) -> Decimal:
    e = EXACT.exp(EXACT.multiply(2, x))
    return EXACT.divide(EXACT.subtract(e, 1), EXACT.add(e, 1))


def one_query(q: Any, k: Any, v: Any, h: int, i: int, seen: Any, *, scale: float, softcap: float | None, bias: float, slope: float,
              p: int, sink: float | None, keep: Any) -> tuple[list[float], float]:
    """out and lse of query i of head h in decimal: exact dot products, then the formula as it stands."""
    places = [j for j in range(len(k)) if seen[j]]
    scores = []
    for j in places:
        dot = Fraction(scale) * sum(Fraction(float(a)) * Fraction(float(b)) for a, b in zip(q[h, i], k[j]))
        s = EXACT.divide(Decimal(dot.numerator), Decimal(dot.denominator))
        if softcap is not None:
            s = EXACT.multiply(Decimal(softcap), tanh(EXACT.divide(s, Decimal(softcap))))
        scores.append(EXACT.subtract(EXACT.add(s, Decimal(bias)), EXACT.multiply(Decimal(slope), abs(p - j))))
    terms = [EXACT.exp(s) for s in scores]
    total = sum(terms, Decimal(0) if sink is None else EXACT.exp(Decimal(sink)))
    out = [sum((EXACT.multiply(EXACT.divide(t, total), EXACT.multiply(Decimal(float(keep[j])), Decimal(float(v[j, d]))))
                for t, j in zip(terms, places)), Decimal(0)) for d in range(v.shape[1])]
    return [float(x) for x in out], float(EXACT.ln(total))


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {}, "causal": {"causal": "bottom_right"}, "top left": {"causal": "top_left"}, "negative scale": {"scale": -0.75},
    "softcap": {"softcap": 0.5}, "alibi": {"alibi_slopes": np.array([0.5, 0.25, 2.0, 1.0])}, "bias": {"bias": np.array(0.375)},
    "softcap before bias": {"softcap": 0.5, "bias": np.array(3.0)}, "sinks": {"sinks": np.array([0.0, 1.0, -2.0, 3.0])},
    "dropout": {"dropout_p": 0.25, "dropout_mask": np.array([True, False, True, True, False, True, True])},
    "window": {"window": (2, 1)}, "alibi top left": {"causal": "top_left", "alibi_slopes": np.array([0.5, 0.25, 2.0, 1.0])},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_attention_is_its_formula_within_the_bound(name: str, rounding: Any) -> None:
    q, k, v = arrays()
    options = {"causal": None, **OPTIONS[name]}
    out, lse = attention(q, k, v, **options)
    bound = rounding(q, k, v, options)
    seen = visible_keys(2, 4, 5, 7, causal=options["causal"], window=options.get("window"))
    keep = options.get("dropout_mask", np.ones(7)) / (1 - options.get("dropout_p", 0.0))
    for b, h, i in np.ndindex(2, 4, 5):
        exact, exact_lse = one_query(
            q[b], k[b, h // 2], v[b, h // 2], h, i, seen[b, h, i], scale=options.get("scale", 1 / math.sqrt(3)),
            softcap=options.get("softcap"), bias=float(options.get("bias", 0.0)), slope=float(options.get("alibi_slopes", np.zeros(4))[h]),
            p=i if options["causal"] == "top_left" else i + 2, sink=options.get("sinks", [None] * 4)[h], keep=keep)
        assert (np.abs(out[b, h, i] - exact) <= bound.out()[b, h, i]).all()
        assert abs(lse[b, h, i] - exact_lse) <= bound.of_lse()[b, h, i]


def test_softmax_of_random_scores_sums_to_one_within_n_roundings() -> None:
    s = np.random.default_rng(1).normal(size=(1, 1, 4, 9))
    p, _ = softmax_over_visible(s, np.ones(s.shape, bool))
    assert (np.abs(p.sum(-1) - 1) <= (2 * 9 + 4) * 2.0**-53).all()


def test_query_head_h_reads_key_head_h_over_the_group() -> None:
    q, k, v = arrays(Lk=4)
    v[:] = np.arange(2).reshape(1, 2, 1, 1) + 1.0                               # V holds the number of its head
    out, _ = attention(0 * q, k, v, causal=None)
    assert (out == np.array([1.0, 1.0, 2.0, 2.0]).reshape(1, 4, 1, 1)).all()


def test_equal_scores_average_the_values_exactly() -> None:
    q, k, v = np.zeros((1, 1, 3, 2)), np.zeros((1, 1, 4, 2)), np.array([[[[1.0], [2.0], [4.0], [9.0]]]])
    out, lse = attention(q, k, v, causal=None)
    assert (out == 4.0).all()
    assert (lse == np.log(4.0)).all()


@pytest.mark.parametrize("hide", ["kv_lengths", "mask", "bias", "window", "causal"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e308])
def test_what_is_hidden_never_matters(hide: str, poison: float) -> None:
    q, k, v = arrays(Lq=1)
    options: dict[str, Any] = {"kv_lengths": {"kv_lengths": [4, 4]}, "mask": {"mask": np.arange(7) < 4},
                               "bias": {"bias": np.where(np.arange(7) < 4, 0.0, -np.inf)},
                               "window": {"window": (None, 3), "causal": None}, "causal": {"causal": "top_left"}}[hide]
    first = 1 if hide == "causal" else 4
    if hide == "window":                                                        # one query, at 6: hide what is before instead
        options, first = {"window": (2, None)}, None
    clean = attention(q, k, v, **{"causal": None, **options})
    hidden = slice(0, 4) if first is None else slice(first, None)
    k[:, :, hidden], v[:, :, hidden] = poison, poison
    for x, y in zip(clean, attention(q, k, v, **{"causal": None, **options})):
        np.testing.assert_array_equal(x, y)


def test_a_bias_that_is_nan_behind_a_mask_does_not_matter() -> None:
    q, k, v = arrays()
    mask = np.arange(7) < 4
    out, lse = attention(q, k, v, causal=None, mask=mask, bias=np.where(mask, 0.0, np.nan))
    assert np.isfinite(out).all()
    assert np.isfinite(lse).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_visible_score_that_is_no_number_makes_its_row_nan(bad: float) -> None:
    q, k, v = arrays()
    bias = np.zeros((5, 7))
    bias[2, 3] = bad
    out, lse = attention(q, k, v, causal=None, bias=bias)
    assert np.isnan(out[:, :, 2]).all()
    assert np.isnan(lse[:, :, 2]).all()


def test_a_nan_row_keeps_probabilities_of_zero_where_it_sees_nothing() -> None:
    p, _ = softmax_over_visible(np.full((1, 1, 1, 2), np.nan), np.array([True, False]).reshape(1, 1, 1, 2))
    np.testing.assert_array_equal(p[0, 0, 0], [np.nan, 0.0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_score_that_is_no_number_leaves_other_rows_alone(bad: float) -> None:
    q, k, v = arrays()
    bias = np.zeros((5, 7))
    clean = attention(q, k, v, causal=None, bias=bias)
    bias[2, 3] = bad
    for x, y in zip(clean, attention(q, k, v, causal=None, bias=bias)):
        np.testing.assert_array_equal(np.delete(x, 2, axis=2), np.delete(y, 2, axis=2))


def test_a_visible_nan_value_makes_that_element_nan_however_small_its_weight() -> None:
    q, k, v = arrays()
    v[:, :, 1, 2] = np.nan
    out, _ = attention(q, k, v, causal=None, bias=np.where(np.arange(7) == 1, -1e4, 0.0))
    assert (np.isnan(out) == (np.arange(6) == 2)).all()


def test_an_infinite_value_is_infinite_where_it_is_seen() -> None:
    q, k, v = arrays()
    v[:, :, 1, 2] = -np.inf
    out, _ = attention(q, k, v, causal="top_left")
    assert (np.isneginf(out) == ((np.arange(5) >= 1)[:, None] & (np.arange(6) == 2))).all()


def test_a_visible_score_of_minus_infinity_weighs_nothing() -> None:
    q, k, v = arrays(Hkv=4, D=1)
    q[:], k[:, :, 3] = 1.0, -np.inf
    v[:, :, 3] = np.nan
    for x, y in zip(attention(q, k, v, causal=None), attention(q, k, v, causal=None, mask=np.arange(7) != 3)):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("nothing", [{"mask": np.zeros((5, 7), bool)}, {"kv_lengths": [0, 0]}, {"bias": np.array(-np.inf)}])
def test_nothing_visible_gives_zero_and_minus_infinity(nothing: dict[str, Any]) -> None:
    out, lse = attention(*arrays(), causal=None, **nothing)
    assert (out == 0).all()
    assert np.isneginf(lse).all()


def test_nothing_visible_beside_a_sink_gives_zero_and_the_sink() -> None:
    sinks = np.array([0.0, 1.0, -2.0, 3.0])
    out, lse = attention(*arrays(), causal=None, kv_lengths=[0, 0], sinks=sinks)
    assert (out == 0).all()
    assert (lse == sinks[:, None]).all()


def test_a_row_of_scores_of_minus_infinity_is_like_nothing_visible() -> None:
    q, k, v = arrays(D=1)
    out, lse = attention(np.ones_like(q), np.full_like(k, -np.inf), v, causal=None)
    assert (out == 0).all()
    assert np.isneginf(lse).all()


def test_a_sink_of_minus_infinity_is_no_sink() -> None:
    for x, y in zip(attention(*arrays(), causal=None), attention(*arrays(), causal=None, sinks=np.full(4, -np.inf))):
        np.testing.assert_array_equal(x, y)


def test_lse_is_that_of_the_row_before_dropout() -> None:
    mask = np.random.default_rng(2).random((2, 4, 5, 7)) < 0.5
    dropped = attention(*arrays(), causal=None, dropout_mask=mask, dropout_p=0.5)[1]
    np.testing.assert_array_equal(dropped, attention(*arrays(), causal=None)[1])


def test_more_queries_than_keys_leave_the_first_ones_blind() -> None:
    _, lse = attention(*arrays(Lq=7, Lk=5), causal="bottom_right")
    assert (np.isneginf(lse) == (np.arange(7) < 2)).all()


def test_one_leading_key_leaves_the_digits_of_lse() -> None:
    q, k, v = np.ones((1, 1, 1, 1)), np.array([[[[0.0], [-40.0]]]]), np.zeros((1, 1, 2, 1))
    assert attention(q, k, v, causal=None, scale=1.0)[1][0, 0, 0] == np.log1p(np.exp(-40.0))


@pytest.mark.parametrize(("B", "Lq", "Lk"), [(0, 3, 3), (1, 0, 3), (1, 3, 0), (1, 1, 1), (1, 0, 0)])
def test_empty_and_single_axes_are_legal(B: int, Lq: int, Lk: int) -> None:
    out, lse = attention(*arrays(B=B, Lq=Lq, Lk=Lk), causal="bottom_right", window=(1, None), sinks=np.zeros(4))
    assert (out.shape, lse.shape) == ((B, 4, Lq, 6), (B, 4, Lq))


def test_strides_do_not_matter(rounding: Any) -> None:
    q, k, v = arrays()
    wide = [np.repeat(x, 2, axis=-1)[..., ::2] for x in (q, k, v)]
    bound = rounding(q, k, v, {"causal": None}).out()
    assert (np.abs(attention(*wide, causal=None)[0] - attention(q, k, v, causal=None)[0]) <= 2 * bound).all()


def test_inputs_are_not_changed() -> None:
    given = arrays()
    attention(*given, causal="top_left", softcap=1.0, bias=np.zeros(7), sinks=np.zeros(4))
    for x, y in zip(given, arrays()):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_narrow_floats_are_widened_exactly(dtype: Any) -> None:
    narrow = [x.astype(dtype) for x in arrays()]
    for x, y in zip(attention(*narrow, causal=None), attention(*(x.astype(np.float64) for x in narrow), causal=None)):
        np.testing.assert_array_equal(x, y)
        assert x.dtype == np.float64


def test_subnormal_values_pass_through() -> None:
    q, k, _ = arrays()
    out, _ = attention(q, k, np.full((2, 2, 7, 1), 2.0**-1070), causal="top_left", window=(0, 0))
    assert (out == 2.0**-1070).all()


def test_scores_hide_nothing() -> None:
    assert np.isfinite(attention_scores(*arrays()[:2], causal="top_left", kv_lengths=[0, 0])).all()


def test_a_product_over_what_is_seen_ignores_the_rest() -> None:
    a, b = np.array([[0.0, 2.0], [1.0, 0.0]]), np.array([[np.inf], [3.0]])
    assert seen_product(a, b, a != 0).tolist() == [[6.0], [np.inf]]


Q, K, V = arrays()
BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"q": Q[0]}, ValueError, r"q: got shape \(4, 5, 3\); want 4 axes"),
    ({"q": Q[:, :3]}, ValueError, "k: got 2 key/value heads for 3 query heads; want a divisor of 3"),
    ({"q": Q[..., :0], "k": K[..., :0]}, ValueError, r"q: got shape \(2, 4, 5, 0\); want at least one head"),
    ({"k": K[..., :2]}, ValueError, r"k: got shape \(2, 2, 7, 2\) beside q \(2, 4, 5, 3\); want \(2, Hkv, Lk, 3\)"),
    ({"k": K[:1]}, ValueError, r"k: got shape \(1, 2, 7, 3\)"),
    ({"k": K.astype(int)}, TypeError, "k: got dtype int64; want a float"),
    ({"v": V[:, :, :6]}, ValueError, r"v: got shape \(2, 2, 6, 6\) beside k \(2, 2, 7, 3\); want \(2, 2, 7, Dv\)"),
    ({"causal": "bottom-right"}, ValueError, "causal: got 'bottom-right'"),
    ({"scale": np.inf}, ValueError, "scale: got inf; want a finite number"),
    ({"scale": "1"}, TypeError, "scale: got '1'; want a finite number"),
    ({"softcap": 0.0}, ValueError, "softcap: got 0.0; want a finite number > 0"),
    ({"softcap": -1.0}, ValueError, "softcap: got -1.0"),
    ({"sinks": np.zeros(2)}, ValueError, r"sinks: got shape \(2,\); want \(4,\)"),
    ({"alibi_slopes": np.zeros((4, 1))}, ValueError, r"alibi_slopes: got shape \(4, 1\); want \(4,\)"),
    ({"bias": np.zeros(5)}, ValueError, r"bias: got shape \(5,\); want one that broadcasts to \(2, 4, 5, 7\)"),
    ({"dropout_p": 1.0}, ValueError, "dropout_p: got 1.0; want 0 <= dropout_p < 1"),
    ({"dropout_p": 0.5}, ValueError, "dropout_mask: got None with dropout_p = 0.5"),
    ({"dropout_mask": np.ones(7, bool)}, ValueError, "dropout_p: got 0 with a dropout_mask"),
    ({"dropout_mask": np.ones(7), "dropout_p": 0.5}, TypeError, "dropout_mask: got dtype float64; want bool"),
]


@pytest.mark.parametrize(("changed", "error", "words"), BAD)
def test_bad_input_is_refused_by_name(changed: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        attention(**{"q": Q, "k": K, "v": V, "causal": None, **changed})
