"""The gradient against complex steps through the formula, and against what must hold of any gradient of attention."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles.reference import attention, attention_backward, visible_keys

pytestmark = pytest.mark.filterwarnings("error")
STEP = 1e-150                                                                   # squares vanish beside 1: no truncation error


def loss(arrays: dict[str, Any], options: dict[str, Any]) -> complex:
    """sum(dout * out), by the formula, in complex numbers; the maximum subtracted is that of the real parts."""
    q, k, v, dout = (arrays[name] for name in ("q", "k", "v", "dout"))
    (B, Hq, Lq, D), Lk = q.shape, k.shape[2]
    k, v = (np.repeat(x, Hq // x.shape[1], axis=1) for x in (k, v))
    s = options.get("scale", D**-0.5) * np.einsum("bhid,bhjd->bhij", q, k)
    if options.get("softcap"):
        s = options["softcap"] * np.tanh(s / options["softcap"])
    real = {name: np.real(value) if name == "bias" else value for name, value in options.items()}
    visible = visible_keys(B, Hq, Lq, Lk, **{n: real[n] for n in ("causal", "window", "mask", "kv_lengths", "bias") if n in real})
    if "bias" in options:
        s = s + np.where(np.isneginf(real["bias"]), 0.0, options["bias"])
    if "alibi_slopes" in options:
        n_k = np.asarray(options.get("kv_lengths", [Lk] * B))[:, None, None, None]
        p = np.arange(Lq)[:, None] + (0 if options["causal"] == "top_left" else n_k - Lq)
        s = s - options["alibi_slopes"][:, None, None] * np.abs(p - np.arange(Lk))
    sink = options.get("sinks", np.full(Hq, -np.inf))[:, None, None]
    m = np.maximum(np.where(visible, s.real, -np.inf).max(-1, initial=-np.inf, keepdims=True), sink.real)
    m = np.where(np.isneginf(m), 0.0, m)
    e = np.where(visible, np.exp(np.where(visible, s - m, 0.0)), 0.0)
    l = e.sum(-1, keepdims=True) + (np.exp(sink - m) if "sinks" in options else 0.0)
    p = e / np.where(l == 0, 1.0, l)
    if "dropout_mask" in options:
        p = p * options["dropout_mask"] / (1 - options["dropout_p"])
    return complex((np.einsum("bhij,bhjd->bhid", p, v) * dout).sum())


def by_complex_step(name: str, arrays: dict[str, Any], options: dict[str, Any]) -> np.ndarray:
    """d loss / d x = Im loss(x + i h) / h, one entry after another."""
    source = arrays if name in arrays else options
    x = np.asarray(source[name], np.float64)
    gradient = np.zeros(x.shape)
    for place in np.ndindex(x.shape):
        if np.isfinite(x[place]):
            moved = x.astype(complex)
            moved[place] += 1j * STEP
            gradient[place] = loss(*({**group, name: moved} if group is source else group for group in (arrays, options))).imag / STEP
    return gradient


@pytest.mark.parametrize("seed", range(40))
def test_every_gradient_is_that_of_the_formula_within_the_bound(seed: int, drawn: Any, rounding: Any) -> None:
    arrays, options = drawn(seed)
    q, k, v, dout = (arrays[name] for name in ("q", "k", "v", "dout"))
    got = attention_backward(q, k, v, *attention(q, k, v, **options), dout, **options)
    bound = rounding(q, k, v, options).gradients(dout, terms=dout.size)
    assert got.keys() == bound.keys()
    for name, value in got.items():
        exact = by_complex_step(name[1:], arrays, options)
        assert value.shape == exact.shape
        assert (np.abs(value - exact) <= 2 * bound[name]).all(), name


def plain(seed: int = 0, **options: Any) -> Any:
    r = np.random.default_rng(seed)
    q, k, v, dout = (r.normal(size=(2, heads, L, 3)) for heads, L in ((4, 5), (2, 7), (2, 7), (4, 5)))
    options = {"causal": None, **options}
    return (q, k, v, *attention(q, k, v, **options), dout), options


def test_adding_one_vector_to_every_key_moves_nothing_so_dk_sums_to_zero(rounding: Any) -> None:
    arguments, options = plain()
    dk = attention_backward(*arguments, **options)["dk"]
    bound = rounding(*arguments[:3], options).gradients(arguments[5])["dk"]
    assert (np.abs(dk.sum(axis=2)) <= bound.sum(axis=2) + 7 * 2.0**-53 * np.abs(dk).sum(axis=2)).all()


def test_adding_one_number_to_every_score_moves_nothing_so_dbias_sums_to_zero(rounding: Any) -> None:
    arguments, options = plain(bias=np.zeros((2, 4, 5, 7)))
    dbias = attention_backward(*arguments, **options)["dbias"]
    bound = rounding(*arguments[:3], options).gradients(arguments[5])["dbias"]
    assert (np.abs(dbias.sum(axis=3)) <= bound.sum(axis=3) + 7 * 2.0**-53 * np.abs(dbias).sum(axis=3)).all()


def test_dv_sums_to_the_sum_of_dout_over_queries_and_heads_of_the_group(rounding: Any) -> None:
    arguments, options = plain()
    dv, dout = attention_backward(*arguments, **options)["dv"].sum(axis=2), arguments[5].reshape(2, 2, 10, 3)
    bound = rounding(*arguments[:3], options).gradients(arguments[5])["dv"].sum(axis=2)
    assert (np.abs(dv - dout.sum(axis=2)) <= bound + 17 * 2.0**-53 * np.abs(dout).sum(axis=2)).all()


def test_equal_values_under_equal_weights_leave_no_gradient_of_scores() -> None:
    (q, k, v, out, lse, dout), options = plain()
    four, equal = k[:, :, :4], np.full_like(v[:, :, :4], 0.5)                   # q = 0: every weight is exactly 1/4
    assert (attention_backward(np.zeros_like(q), four, equal, out, lse, dout, **options)["dq"] == 0).all()


def test_a_lone_key_has_a_gradient_of_exactly_zero() -> None:
    arguments, options = plain(window=(0, 0))
    got = attention_backward(*arguments, **options)
    assert (got["dq"] == 0).all()
    assert (got["dk"] == 0).all()


@pytest.mark.parametrize("nothing", [{"mask": np.zeros((5, 7), bool)}, {"kv_lengths": [0, 0]}])
@pytest.mark.parametrize("value", [1.0, np.nan])
def test_nothing_visible_has_gradients_of_zero(nothing: dict[str, Any], value: float) -> None:
    arguments, options = plain(**nothing, bias=np.zeros(7), sinks=np.zeros(4), softcap=1.0)
    got = attention_backward(*arguments[:5], np.full_like(arguments[5], value), **options)
    assert all((x == 0).all() for x in got.values())


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_keys_and_values_behind_a_mask_never_matter(poison: float) -> None:
    arguments, options = plain(kv_lengths=[4, 4], softcap=1.0)
    clean = attention_backward(*arguments, **options)
    for x in arguments[1:3]:
        x[:, :, 4:] = poison
    got = attention_backward(*arguments, **options)
    for name in clean:
        np.testing.assert_array_equal(got[name], clean[name])


def test_a_nan_row_leaves_the_keys_it_does_not_see_alone() -> None:
    arguments, options = plain(causal="top_left")
    clean = attention_backward(*arguments, **options)
    arguments[0][:, :, 1] = np.nan                                              # query 1 sees keys 0 and 1
    got = attention_backward(*arguments, **options)
    for name in ("dk", "dv"):
        assert np.isnan(got[name][:, :, :2]).all()
        np.testing.assert_array_equal(got[name][:, :, 2:], clean[name][:, :, 2:])


def test_out_and_lse_are_recomputed() -> None:
    arguments, options = plain()
    wrong = attention_backward(*arguments[:3], arguments[3] * 2, arguments[4] + 1, arguments[5], **options)
    for name, value in attention_backward(*arguments, **options).items():
        np.testing.assert_array_equal(wrong[name], value)


def test_gradients_of_bias_and_sinks_are_there_only_where_those_are() -> None:
    arguments, options = plain()
    assert attention_backward(*arguments, **options).keys() == {"dq", "dk", "dv"}


def test_a_sink_of_minus_infinity_has_no_gradient() -> None:
    arguments, options = plain(sinks=np.full(4, -np.inf), kv_lengths=[0, 7])
    assert (attention_backward(*arguments, **options)["dsinks"] == 0).all()


def test_narrow_floats_are_widened_exactly() -> None:
    arguments, options = plain()
    narrow = [x.astype(ml_dtypes.bfloat16) for x in arguments]
    wide = attention_backward(*(x.astype(np.float64) for x in narrow), **options)
    for name, value in attention_backward(*narrow, **options).items():
        np.testing.assert_array_equal(value, wide[name])


@pytest.mark.parametrize(("place", "name"), [(3, "out"), (4, "lse"), (5, "dout")])
def test_a_shape_that_does_not_fit_is_refused_by_name(place: int, name: str) -> None:
    arguments, options = plain()
    changed = [x[:1] if i == place else x for i, x in enumerate(arguments)]
    with pytest.raises(ValueError, match=rf"{name}: got shape \(1, 4, 5.*; want \(2, 4, 5"):
        attention_backward(*changed, **options)
