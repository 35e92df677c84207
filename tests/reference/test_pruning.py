"""Pruning: counts, ties, scopes and quantiles; the laws of the published run; two of four, and masks through retraining."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.reference.pruning import gradual_masks, prune_magnitude, prune_units
from oracles.reference.pruning_2_4 import pack_2_4, prune_2_4, unpack_2_4

G = np.random.default_rng(0)
LAYERS = [G.standard_normal((64, 2)), G.standard_normal((64, 64)), 0.01 * G.standard_normal((2, 64))]      # 4,352 weights


@pytest.mark.parametrize("sparsity", [0.0, 0.29, 0.5, 0.7, 0.9, 0.95, 1.0])
def test_as_many_go_as_the_decimal_says(sparsity: float) -> None:
    masks = prune_magnitude([np.arange(1.0, 101.0)], sparsity=sparsity, scope="layer")
    assert int((~masks[0]).sum()) == round(sparsity * 100)


def test_of_equals_the_lowest_index_goes_first() -> None:
    (mask,) = prune_magnitude([np.array([1.0, -1.0, 1.0, -1.0])], sparsity=0.5, scope="layer")
    assert mask.tolist() == [False, False, True, True]


@pytest.mark.parametrize("rule", ["count", "quantile"])
def test_a_layer_of_small_weights_is_emptied_over_all_layers_and_never_by_itself(rule: Any) -> None:
    by_all = prune_magnitude(LAYERS, sparsity=0.9, scope="global", rule=rule)
    assert not by_all[2].any()
    for sparsity in (0.5, 0.8, 0.9, 0.95, 0.999):
        assert all(mask.any() for mask in prune_magnitude(LAYERS, sparsity=sparsity, scope="layer", rule=rule))


def test_the_quantile_of_the_published_run_keeps_the_strictly_larger() -> None:
    flat = np.abs(np.concatenate([w.ravel() for w in LAYERS]))
    masks = prune_magnitude(LAYERS, sparsity=0.8, scope="global", rule="quantile")
    assert (np.concatenate([m.ravel() for m in masks]) == (flat > np.quantile(flat, 0.8))).all()
    (equal,) = prune_magnitude([np.ones(4)], sparsity=0.25, scope="layer", rule="quantile")
    assert not equal.any()


def test_an_array_of_layers_gives_an_array_of_masks() -> None:
    w = G.standard_normal((3, 4, 5))
    for scope in ("global", "layer"):
        masks = prune_magnitude(w, sparsity=0.5, scope=scope)
        assert (masks == np.array(prune_magnitude(list(w), sparsity=0.5, scope=scope))).all()


def test_units_go_whole_by_their_norm() -> None:
    w = np.array([[3.0, 0.0, 1.0], [4.0, 0.1, 1.0]])
    assert prune_units(w, axis=1, sparsity=0.67).tolist() == [[True, False, False]] * 2
    assert prune_units(w * 1e200, axis=-1, sparsity=0.34).tolist() == [[True, False, True]] * 2


def test_masks_stay_through_retraining_and_reach_the_last_sparsity() -> None:
    history = G.standard_normal((10, 2, 4, 8))
    steps = gradual_masks(history, sparsities=np.linspace(0.0, 0.5, 10), scope="layer")
    assert ((steps[1:] & ~steps[:-1]).sum(), (~steps[-1]).sum(axis=(1, 2)).tolist()) == (0, [16, 16])
    held = gradual_masks(history, sparsities=[0.5] * 10, scope="global")
    assert (held == held[0]).all()


def test_a_sparsity_that_falls_is_refused() -> None:
    with pytest.raises(ValueError, match=r"sparsities: got \[0.5, 0.4\] for 2 steps"):
        gradual_masks(np.ones((2, 1, 4)), sparsities=[0.5, 0.4], scope="layer")


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 7, 8, 64])
def test_two_of_every_four_stay_and_a_short_last_group_stands_by_itself(n: int) -> None:
    mask = prune_2_4(G.standard_normal((3, n)), axis=1)
    kept = np.add.reduceat(mask, np.arange(0, n, 4), axis=1) if n else np.zeros((3, 0))
    assert (kept == [2] * (n // 4) + [min(2, n % 4)] * (n % 4 > 0)).all()


def test_two_of_four_of_equals_and_of_signed_codes() -> None:
    assert prune_2_4(np.ones(4), axis=0).tolist() == [True, True, False, False]
    assert prune_2_4(np.array([-8, 0, 1, -1]), axis=0).tolist() == [True, False, True, False]
    assert (prune_2_4(np.arange(8.0).reshape(4, 2), axis=0) == [[0, 0], [0, 0], [1, 1], [1, 1]]).all()


def test_the_packed_form_comes_back() -> None:
    w = G.standard_normal((3, 16))
    mask = prune_2_4(w, axis=1)
    values, indices = pack_2_4(w, mask)
    assert (values.shape, indices.shape) == ((3, 8), (3, 4))
    assert (unpack_2_4(values, indices) == np.where(mask, w, 0.0)).all()
    thin = mask & (np.arange(16) % 4 != 1)
    assert (unpack_2_4(*pack_2_4(w, thin)) == np.where(thin, w, 0.0)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused(bad: float) -> None:
    for prune in (lambda w: prune_magnitude([w], sparsity=0.5, scope="layer"), lambda w: prune_2_4(w, axis=0)):
        with pytest.raises(ValueError, match="want finite numbers"):
            prune(np.array([1.0, bad]))
