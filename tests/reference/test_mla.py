"""Latent attention: two forms of one formula, what is hidden, and what is compressed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.reference import attention, mla_attention, mla_attention_absorbed, mla_compress, mla_scale, rms_norm, rope, yarn_mscale

pytestmark = pytest.mark.filterwarnings("error")
U = 2.0**-53
FORMS = [mla_attention, mla_attention_absorbed]
YARN = {"kind": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
        "mscale_all_dim": 0.707, "truncate": True}


def arrays(seed: int = 0, *, B: int = 2, H: int = 3, Lq: int = 4, Lk: int = 6, Dn: int = 5, Dr: int = 2, C: int = 4, Dv: int = 3) -> Any:
    r = np.random.default_rng(seed)
    shapes = [(B, H, Lq, Dn), (B, H, Lq, Dr), (B, Lk, C), (B, Lk, Dr), (H, C, Dn), (H, C, Dv)]
    return [r.normal(size=shape) for shape in shapes]


def bounds(given: Any, scale: float, **options: Any) -> tuple[Any, Any]:
    """Of out and lse of either form: the errors of the scores, then those of a softmax over Lk keys and of two products."""
    q_nope, q_rope, latent, k_rope, w_uk, w_uv = (np.abs(x) for x in given)
    Lk, C = latent.shape[1:]
    size = abs(scale) * ((q_nope @ w_uk.swapaxes(-1, -2)) @ latent[:, None].swapaxes(-1, -2) + q_rope @ k_rope[:, None].swapaxes(-1, -2))
    d = ((C + q_nope.shape[-1] + q_rope.shape[-1] + 20) * U * size).max(axis=-1, initial=0.0, keepdims=True)
    t = np.expm1(2 * d + (2 * Lk + 16) * U)
    one_hot = np.broadcast_to(np.eye(Lk), (len(latent), 1, Lk, Lk))             # values that show the probabilities
    q = np.concatenate([given[0] @ given[4].swapaxes(-1, -2), given[1]], axis=-1)
    p, lse = attention(q, np.concatenate([given[2], given[3]], axis=-1)[:, None], one_hot, scale=scale, **options)
    finite = np.where(np.isfinite(lse), lse, 0.0)
    return ((t + (1 + t) * (Lk + C + 10) * U) * (p @ (latent[:, None] @ w_uv)), d[..., 0] + (2 * Lk + 8) * U + 4 * U * np.abs(finite))


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"causal": None}, "causal": {"causal": "bottom_right"}, "top left": {"causal": "top_left"},
    "lengths": {"causal": "bottom_right", "kv_lengths": [6, 2]}, "no keys": {"causal": None, "kv_lengths": [0, 3]},
    "selected": {"causal": None, "mask": np.array([True, False, False, True, False, True])}}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("Lq", [1, 4])
def test_absorbed_is_reconstructed(name: str, Lq: int) -> None:
    given, scale = arrays(Lq=Lq), 0.4
    of_out, of_lse = bounds(given, scale, **OPTIONS[name])
    (out, lse), (other, other_lse) = (form(*given, scale=scale, **OPTIONS[name]) for form in FORMS)
    assert (np.abs(out - other) <= 2 * of_out).all()
    assert (np.abs(np.where(np.isneginf(lse), 0.0, lse) - np.where(np.isneginf(other_lse), 0.0, other_lse)) <= 2 * of_lse).all()
    np.testing.assert_array_equal(np.isneginf(lse), np.isneginf(other_lse))


@pytest.mark.parametrize("form", FORMS)
def test_each_head_is_attention_over_its_own_keys_and_values(form: Any) -> None:
    given, scale = arrays(), 0.4
    q_nope, q_rope, latent, k_rope, w_uk, w_uv = given
    out, _ = form(*given, causal="bottom_right", scale=scale)
    of_out, _ = bounds(given, scale, causal="bottom_right")
    for h in range(3):
        q = np.concatenate([q_nope[:, h], q_rope[:, h]], axis=-1)[:, None]
        k = np.concatenate([latent @ w_uk[h], k_rope], axis=-1)[:, None]
        one, _ = attention(q, k, (latent @ w_uv[h])[:, None], causal="bottom_right", scale=scale)
        assert (np.abs(out[:, h] - one[:, 0]) <= 2 * of_out[:, h]).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_selection_of_keys_is_attention_over_those_alone(form: Any) -> None:
    """vllm-project/vllm#45324: an index of -1 became key 0, which then was attended to."""
    given = arrays(Lq=1)
    given[2][:, 0] = 1e4
    some = [*given[:2], given[2][:, [3, 1]], given[3][:, [3, 1]], *given[4:]]
    mask = np.isin(np.arange(6), [3, 1])
    of_out, _ = bounds(some, 0.4, causal=None)
    assert (np.abs(form(*given, causal=None, scale=0.4, mask=mask)[0] - form(*some, causal=None, scale=0.4)[0]) <= 2 * of_out).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_what_is_not_seen_never_matters(form: Any, bad: float) -> None:
    """flashinfer-ai/flashinfer#942: NaN of another request's page reached every output."""
    clean, given = arrays(), arrays()
    for x in (given[2], given[3]):
        x[0, 4:], x[1, 1:] = bad, bad
    for x, y in zip(form(*given, causal=None, scale=0.4, kv_lengths=[4, 1]), form(*clean, causal=None, scale=0.4, kv_lengths=[4, 1])):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("form", FORMS)
def test_a_sequence_without_keys_sees_nothing(form: Any) -> None:
    """vllm-project/vllm#27491: the history of an empty first chunk was never set."""
    out, lse = form(*arrays(), causal=None, scale=0.4, kv_lengths=[0, 5])
    assert (out[0] == 0).all()
    assert np.isneginf(lse[0]).all()
    assert np.isfinite(lse[1]).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("sizes", [{"B": 0}, {"Lq": 0}, {"Lk": 0}, {"Dr": 0}, {"H": 1, "C": 1}])
def test_empty_and_single_axes_are_legal(form: Any, sizes: dict[str, int]) -> None:
    given = arrays(**sizes)
    out, lse = form(*given, causal="bottom_right", scale=1.0)
    assert out.shape == (*given[0].shape[:3], 3)
    assert lse.shape == out.shape[:3]


@pytest.mark.parametrize("form", FORMS)
def test_inputs_are_not_changed(form: Any) -> None:
    given = arrays()
    form(*given, causal="top_left", scale=1.0)
    for x, y in zip(given, arrays()):
        np.testing.assert_array_equal(x, y)


def test_the_scale_takes_the_square_of_the_field_for_all_coordinates() -> None:
    m = yarn_mscale(40.0, 0.707)
    assert abs(mla_scale(128, 64, scaling=YARN) - m * m * 192**-0.5) <= 14 * U * mla_scale(128, 64, scaling=YARN)
    assert mla_scale(128, 64, scaling={"kind": "linear", "factor": 40.0}) == mla_scale(128, 64) == 1 / np.sqrt(192.0)


def test_compressing_makes_a_latent_and_one_turned_key() -> None:
    r = np.random.default_rng(1)
    x, w_c, w_kr, weight = (r.normal(size=shape) for shape in ((2, 3, 5), (5, 4), (5, 2), (4,)))
    p = np.array([7, 8, 9])
    latent, k_rope = mla_compress(x, w_c, w_kr, p, pairing="interleaved", scaling=YARN)
    np.testing.assert_array_equal(latent, x @ w_c)
    np.testing.assert_array_equal(k_rope, rope(x @ w_kr, p, pairing="interleaved", scaling=YARN))
    normed, _ = mla_compress(x, w_c, w_kr, p, pairing="interleaved", norm_weight=weight, norm_eps=1e-3)
    np.testing.assert_array_equal(normed, rms_norm(latent, weight, eps=1e-3))


def test_a_latent_and_a_turned_key_are_a_fraction_of_what_heads_keep() -> None:
    heads, latent = 2 * 128 * 128, 512 + 64
    assert f"{heads / latent:.1f}" == "56.9"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("place", "shape", "words"), [
    (0, (3, 4, 5), r"q_nope: got shape \(3, 4, 5\); want 4 axes"),
    (1, (2, 3, 5, 2), r"q_rope: got shape \(2, 3, 5, 2\) beside q_nope \(2, 3, 4, 5\); want \(2, 3, 4, Dr\)"),
    (2, (1, 6, 4), r"latent: got shape \(1, 6, 4\) beside q_nope \(2, 3, 4, 5\); want \(2, Lk, C\)"),
    (3, (2, 6, 3), r"k_rope: got shape \(2, 6, 3\); want \(2, 6, 2\)"),
    (4, (3, 5, 4), r"w_uk: got shape \(3, 5, 4\); want \(3, 4, 5\)"),
    (5, (2, 4, 3), r"w_uv: got shape \(2, 4, 3\); want \(3, 4, Dv\)"),
])
def test_shapes_that_do_not_fit_are_refused_by_name(form: Any, place: int, shape: tuple[int, ...], words: str) -> None:
    given = arrays()
    given[place] = np.zeros(shape)
    with pytest.raises(ValueError, match=words):
        form(*given, causal=None, scale=1.0)


@pytest.mark.parametrize("form", FORMS)
def test_the_scale_has_no_default(form: Any) -> None:
    with pytest.raises(TypeError, match="scale: got None; want a finite number"):
        form(*arrays(), causal=None, scale=None)


def test_bad_weights_of_the_compression_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"w_kr: got shape \(4, 2\) for x \(1, 1, 5\); want 5 rows"):
        mla_compress(np.zeros((1, 1, 5)), np.zeros((5, 4)), np.zeros((4, 2)), 0, pairing="half")
    with pytest.raises(ValueError, match="Dn: got 0 beside Dr = 0"):
        mla_scale(0, 0)
