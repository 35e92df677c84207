"""Bounds of decoding: examples run, open decisions are open exactly where they are near, and legal float32 stays inside."""

from __future__ import annotations

import doctest
import importlib

import numpy as np
import pytest

from oracles import reference
from oracles.properties.arithmetic import Arithmetic
from oracles.properties.bounds import (
    filter_probabilities_bound,
    mtp_loop_bound,
    mtp_loss_bound,
    sample_bound,
    speculative_loop_bound,
    speculative_verify_bound,
)
from oracles.properties.zoo import textbook_decoding as textbook

FLOAT32 = Arithmetic().resolve("float32")
MODULES = ("bounds.sampling", "bounds.speculative", "bounds.speculative_loop", "bounds.mtp", "law_test", "subject_law", "cases.sampling")


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"oracles.properties.{name}"), extraglobs={"np": np})
    assert (result.failed, result.attempted > 0) == (0, True)


@pytest.mark.parametrize(("top_p", "open_"), [(0.6, False), (0.7499, False), (0.75, True), (0.7501, False)])
def test_a_mass_at_the_border_is_open_and_a_little_off_is_not(top_p: float, open_: bool) -> None:
    bound = filter_probabilities_bound(FLOAT32, np.log([[0.5, 0.25, 0.25]]), top_p=top_p, top_k=3)["probabilities"]
    assert bool(np.isinf(bound).all()) == open_


@pytest.mark.parametrize(("u", "open_"), [(0.2499, False), (0.25, True), (0.2501, False)])
def test_a_draw_on_an_edge_is_open(u: float, open_: bool) -> None:
    assert bool(np.isinf(sample_bound(FLOAT32, [[0.25, 0.75]], [u])["token"][0])) == open_


def test_a_test_within_rounding_is_open() -> None:
    p, q = [[[0.25, 0.75], [0.0, 1.0]]] * 3, [[[0.5, 0.5]]] * 3
    bound = speculative_verify_bound(FLOAT32, [[0]] * 3, q, p, [[0.4999], [0.5], [0.5001]], [0.5] * 3)["n_accepted"]
    assert bound.tolist() == [0.0, np.inf, 0.0]


@pytest.mark.parametrize("seed", range(20))
def test_filters_and_losses_in_float32_stay_inside(seed: int) -> None:
    g = np.random.default_rng(seed)
    z = (4 * g.standard_normal((3, 50))).astype(np.float32)
    options = {"temperature": 0.7, "top_k": 20, "top_p": 0.9}
    bound = filter_probabilities_bound(FLOAT32, z, **options)["probabilities"]
    off = np.abs(textbook.filtered(z, **options) - reference.filter_probabilities(z, **options))
    assert (off <= bound).all()
    logits, tokens = (4 * g.standard_normal((2, 30, 50))).astype(np.float32), g.integers(0, 50, 30)
    difference = float(textbook.mtp_loss(logits, tokens)) - float(reference.mtp_loss(logits, tokens))
    assert abs(difference) <= mtp_loss_bound(FLOAT32, logits, tokens)["loss"]


@pytest.mark.parametrize("forbidden", [None, np.zeros((2, 2), dtype=bool)])
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize(("u", "open_"), [(0.4999, False), (0.5, True), (0.5001, False)])
def test_a_loop_is_open_from_the_pass_of_a_tie_on(place: int, u: float, open_: bool, forbidden: object) -> None:
    """The draft's draw, the test of it (q = 1/2, p = 1/4), and the draw of the last token."""
    p, q = np.broadcast_to([0.75, 0.25] if place == 1 else [0.5, 0.5], (2, 2, 2)), np.full((2, 2, 2), 0.5)
    uniforms = np.full((1, 3, 3), 0.8)
    uniforms[0, :, 1] = 0.01
    uniforms[0, 1, place] = u
    for bound in (speculative_loop_bound(FLOAT32, p, q, [[0]], uniforms, forbidden=forbidden),
                  mtp_loop_bound(FLOAT32, p, q[None], [[0]], uniforms, forbidden=forbidden)):  # fmt: skip
        assert np.isinf(bound["n_accepted"]).tolist() == [[False, open_, open_]]
        assert not np.isinf(bound["tokens"][0, 0])
