"""Rotary embedding against sines and cosines to 60 digits, as a complex product, and what a rotation keeps."""

from __future__ import annotations

import decimal
from decimal import Decimal
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles.reference import rope, rope_frequencies

pytestmark = pytest.mark.filterwarnings("error")
U = 2.0**-53
EXACT = decimal.Context(prec=60)
PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899863")
PAIRINGS: Any = ("half", "interleaved")
YARN = {"kind": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
        "mscale_all_dim": 0.707, "truncate": True}
LLAMA3 = {"kind": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def sine(t: Decimal) -> Decimal:
    """sin t by its series, t first brought near 0."""
    with decimal.localcontext(EXACT):
        t = t - 2 * PI * (t / (2 * PI)).to_integral_value()
        term = total = t
        for n in range(1, 40):
            term = -term * t * t / ((2 * n) * (2 * n + 1))
            total += term
        return total


def turned(x: np.ndarray, position: int, pairing: str, base: float) -> list[float]:
    """The formula, one pair at a time, in decimal."""
    R = len(x)
    out = [Decimal(0)] * R
    with decimal.localcontext(EXACT):
        for i in range(R // 2):
            a, b = (i, i + R // 2) if pairing == "half" else (2 * i, 2 * i + 1)
            t = position * (Decimal(-2 * i) / R * Decimal(base).ln()).exp()
            sin, cos = sine(t), sine(t + PI / 2)
            out[a] = Decimal(float(x[a])) * cos - Decimal(float(x[b])) * sin
            out[b] = Decimal(float(x[a])) * sin + Decimal(float(x[b])) * cos
    return [float(y) for y in out]


def bound(x: np.ndarray, positions: Any, pairing: str, *, base: float = 10000.0, of_f: Any = 0.0, m: float = 1.0) -> np.ndarray:
    """((3 + |ln f|) |t| + 4) u m (|a| + |b|), and one rounding of what it is compared with."""
    R = x.shape[-1]
    f = base ** (-np.arange(0, R, 2) / R)
    t = np.abs(np.asarray(positions))[..., None] * f
    size = np.abs(x[..., : R // 2]) + np.abs(x[..., R // 2 :]) if pairing == "half" else np.abs(x[..., ::2]) + np.abs(x[..., 1::2])
    e = ((3 + np.abs(np.log(f))) * t + 5 + t * of_f) * U * m * size
    return np.concatenate([e, e], axis=-1) if pairing == "half" else np.repeat(e, 2, axis=-1)


def vectors(seed: int = 0, shape: tuple[int, ...] = (2, 3, 8)) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("position", [0, 1, -3, 4095, 131071, 2**24 + 1])
def test_every_pair_is_turned_by_its_angle(pairing: Any, position: int) -> None:
    x = vectors(shape=(8,))
    got = rope(x, position, pairing=pairing)
    assert (np.abs(got - turned(x, position, pairing, 10000.0)) <= bound(x, position, pairing)).all()


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_turning_is_multiplying_by_a_number_on_the_unit_circle(pairing: Any) -> None:
    x, p = vectors(), np.array([5, 700, -2])
    a, b = (x[..., :4], x[..., 4:]) if pairing == "half" else (x[..., ::2], x[..., 1::2])
    z = (a + 1j * b) * np.exp(1j * p[:, None] * 10000.0 ** (-np.arange(4) / 4))
    want = np.concatenate([z.real, z.imag], -1) if pairing == "half" else np.stack([z.real, z.imag], -1).reshape(x.shape)
    assert (np.abs(rope(x, p, pairing=pairing) - want) <= 2 * bound(x, p, pairing)).all()


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("scaling", [None, LLAMA3, {**YARN, "mscale_all_dim": 1.0}, {"kind": "linear", "factor": 3.0}])
def test_position_zero_is_the_identity(pairing: Any, scaling: Any) -> None:
    np.testing.assert_array_equal(rope(vectors(), 0, pairing=pairing, scaling=scaling), vectors())


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_norms_are_kept(pairing: Any) -> None:
    x, p = vectors(), np.array([3, 4095, 100000])
    y, e = rope(x, p, pairing=pairing), bound(x, p, pairing)
    allowed = (2 * np.abs(y) * e + e**2).sum(-1) + 2 * 9 * U * (x**2).sum(-1)
    assert (np.abs((y**2).sum(-1) - (x**2).sum(-1)) <= allowed).all()


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("shift", [1, 37, 4000])
def test_scores_depend_on_the_difference_of_positions_alone(pairing: Any, shift: int) -> None:
    q, k = vectors(1, (5, 8)), vectors(2, (5, 8))
    m, n = np.arange(5) * 11, np.array([0, 3, 50, 7, 100])
    sides = []
    for s in (0, shift):
        (a, e), (b, f) = ((rope(x, p + s, pairing=pairing), bound(x, p + s, pairing)) for x, p in ((q, m), (k, n)))
        sides.append(((a * b).sum(-1), (np.abs(a) * f + e * np.abs(b) + e * f + 9 * U * np.abs(a * b)).sum(-1)))
    assert (np.abs(sides[0][0] - sides[1][0]) <= sides[0][1] + sides[1][1]).all()


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_two_shifts_of_cached_keys_are_one(pairing: Any) -> None:
    """ggml-org/llama.cpp#5652, #4097: keys went wrong after several shifts."""
    x, p = vectors(3, (8, 8)), np.arange(8)
    kept = rope(x, p, pairing=pairing)
    shifted = rope(rope(kept, -3, pairing=pairing), -3, pairing=pairing)
    e = bound(np.abs(x) + 1.0, np.full(8, 8 + 3 + 3), pairing)
    grown = e[..., ::-1] if pairing == "interleaved" else np.roll(e, 4, -1)     # an error of one of a pair reaches the other
    assert (np.abs(shifted - rope(x, p - 6, pairing=pairing)) <= 4 * (e + grown)).all()


def test_unit_vectors_show_which_coordinates_are_a_pair() -> None:
    """vllm-project/vllm#941: the reverse pairing on weights made for the other."""
    e0 = np.array([1.0, 0.0, 0.0, 0.0])
    assert (rope(e0, 1, pairing="half") != 0).tolist() == [True, False, True, False]
    assert (rope(e0, 1, pairing="interleaved") != 0).tolist() == [True, True, False, False]


def test_interleaved_pairs_stay_where_they_were() -> None:
    np.testing.assert_array_equal(rope(np.arange(8.0), 0, pairing="interleaved"), np.arange(8.0))


def test_the_pairings_are_one_rotation_in_two_orders() -> None:
    order = np.arange(8).reshape(2, 4).T.ravel()                                # interleaved place -> half place
    np.testing.assert_array_equal(rope(vectors()[..., order], 9, pairing="interleaved"), rope(vectors(), 9, pairing="half")[..., order])


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_coordinates_from_rotary_dim_on_stay_as_they_are(pairing: Any) -> None:
    got = rope(vectors(), 7, pairing=pairing, rotary_dim=4)
    np.testing.assert_array_equal(got[..., 4:], vectors()[..., 4:])
    np.testing.assert_array_equal(got[..., :4], rope(vectors()[..., :4], 7, pairing=pairing))


def test_positions_may_have_fewer_axes_than_x() -> None:
    x = vectors(shape=(2, 3, 4, 8))
    p = np.array([[0, 1, 2, 3], [5, 6, 7, 8]])
    for b in range(2):
        np.testing.assert_array_equal(rope(x, p[:, None], pairing="half")[b], rope(x[b], p[b], pairing="half"))


def test_phases_of_narrow_formats_would_show_at_position_4095() -> None:
    """Both the position and the angle are exact to float64's rounding, whatever the dtype of x."""
    x = np.array([1.0, 0.0]).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(rope(x, 4095, pairing="half"), rope(x.astype(np.float64), 4095, pairing="half"))
    assert abs(rope(x, 4095, pairing="half")[0] - float(sine(Decimal(4095) + PI / 2))) <= 4 * U


def test_yarn_multiplies_queries_and_keys_by_its_factor() -> None:
    factor = rope_frequencies(8, scaling=YARN)[1]
    np.testing.assert_array_equal(rope(vectors(), 0, pairing="half", scaling=YARN), factor * vectors())


def test_a_nan_spreads_within_its_pair() -> None:
    x = vectors(shape=(8,))
    x[1] = np.nan
    assert np.isnan(rope(x, 3, pairing="half")).nonzero()[0].tolist() == [1, 5]


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8), (8,)])
def test_empty_and_single_axes_are_legal(shape: tuple[int, ...]) -> None:
    assert rope(np.zeros(shape), 1, pairing="half").shape == shape


def test_inputs_are_not_changed() -> None:
    x, p = vectors(), np.array([1, 2, 3])
    rope(x, p, pairing="half")
    np.testing.assert_array_equal(x, vectors())
    assert p.tolist() == [1, 2, 3]


@pytest.mark.parametrize(("changed", "error", "words"), [
    ({"x": np.zeros((2, 7))}, ValueError, r"rotary_dim: got 7 for x of shape \(2, 7\); want an even number in 2..7"),
    ({"x": np.zeros((2, 0))}, ValueError, "rotary_dim: got 0"),
    ({"x": np.zeros((2, 8), int)}, TypeError, "x: got dtype int64; want a float"),
    ({"x": np.float64(1.0)}, ValueError, "x: got a number; want at least one axis"),
    ({"rotary_dim": 10}, ValueError, "rotary_dim: got 10 for x"),
    ({"rotary_dim": 3}, ValueError, "rotary_dim: got 3"),
    ({"positions": [0.5, 1.0]}, TypeError, "positions: got dtype float64; want integers"),
    ({"positions": [1, 2, 3]}, ValueError, r"positions: got shape \(3,\); want one that broadcasts to \(2,\)"),
    ({"pairing": "neox"}, ValueError, "pairing: got 'neox'; want 'half' or 'interleaved'"),
    ({"base": 0.0}, ValueError, "base: got 0.0; want a finite number > 0"),
])
def test_bad_input_is_refused_by_name(changed: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        rope(**{"x": np.zeros((2, 8)), "positions": [0, 1], "pairing": "half", **changed})
