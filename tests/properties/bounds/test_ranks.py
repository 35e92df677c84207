"""Bounds of pipelines and context parallelism: not below what legal kernels do, not far above it, and 0 where nothing is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties import Arithmetic, bounds
from oracles.properties.zoo import textbook_pipeline, textbook_shards

SINGLE = Arithmetic().resolve("float32")


def shards(R: int, n: int, *, lists: int = 3, D: int = 8, seed: int = 0) -> list[list[Any]]:
    g = np.random.default_rng(seed)
    return [[g.standard_normal((1, 2, n, D)).astype(np.float32) for _ in range(R)] for _ in range(lists)]


def used(bound: dict[str, Any], name: str, got: list[Any], want: list[Any]) -> float:
    """The worst error / bound of one list of results."""
    return max(float((np.abs(g - w)[bound[f"{name}.{r}"] > 0] / bound[f"{name}.{r}"][bound[f"{name}.{r}"] > 0]).max(initial=0.0))
               for r, (g, w) in enumerate(zip(got, want)))  # fmt: skip


def shares(bound: dict[str, Any], exact: list[Any], name: str) -> float:
    """The median of bound / |value| over one list of results."""
    parts = [bound[f"{name}.{r}"] / np.abs(x) for r, x in enumerate(exact)]
    return float(np.median(np.concatenate([part.ravel() for part in parts])))


def test_the_bound_of_one_rank_is_near_that_of_attention() -> None:
    (q,), (k,), (v,) = shards(1, 16)
    alone, ring = bounds.attention_bound(SINGLE, q, k, v, causal=None), bounds.ring_attention_bound(SINGLE, [q], [k], [v], causal=None)
    for name in ("out", "lse"):
        ratio = np.median(ring[f"{name}.0"] / alone[name])
        assert 1.0 <= ratio <= 6.0, name


@pytest.mark.parametrize("R", [2, 8])
def test_a_ring_off_by_a_sixteenth_of_a_percent_would_show(R: int) -> None:
    given = shards(R, 8)
    out, _ = reference.ring_attention(*given, causal="bottom_right")
    assert shares(bounds.ring_attention_bound(SINGLE, *given, causal="bottom_right"), out, "out") <= 2.0**-11


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
@pytest.mark.parametrize("R", [1, 2, 4])
def test_a_legal_ring_uses_some_of_its_bound(R: int, order: Any) -> None:
    given = shards(R, 8, lists=4, seed=R)
    forward, backward = given[:3], given
    got = textbook_shards.ring_attention(*forward, causal="top_left", order=order)
    want = reference.ring_attention(*forward, causal="top_left", order=order)
    bound = bounds.ring_attention_bound(SINGLE, *forward, causal="top_left", order=order)
    gradients = zip(textbook_shards.ring_attention_backward(*backward, causal="top_left", order=order),
                    reference.ring_attention_backward(*backward, causal="top_left", order=order))  # fmt: skip
    backward_bound = bounds.ring_attention_backward_bound(SINGLE, *backward, causal="top_left", order=order)
    worst = {name: used(bound, name, *pair) for name, pair in zip(("out", "lse"), zip(got, want))}
    worst |= {name: used(backward_bound, name, *pair) for name, pair in zip(("dq", "dk", "dv"), gradients)}
    assert all(2.0**-12 < ratio <= 1.0 for ratio in worst.values()), worst


def test_what_sees_nothing_has_no_error() -> None:
    given, segments = shards(2, 2), np.array([[0, 0, -1, -1]])
    bound = bounds.ring_attention_bound(SINGLE, *given, causal=None, segments=segments)
    assert not bound["out.1"].any()
    assert not bound["lse.1"].any()


@pytest.mark.parametrize("seed", range(4))
def test_a_legal_step_uses_some_of_its_bound(seed: int) -> None:
    g = np.random.default_rng(seed)
    x, targets = g.standard_normal((2, 6, 4, 8)).astype(np.float32)
    weights = [(g.standard_normal((8, 8)) / 3).astype(np.float32) for _ in range(3)]
    given = {"x": x, "targets": targets, "lengths": g.integers(1, 5, 6), "weights": weights, "microbatch_size": 2}
    got, want = (step(**given, kind="1f1b") for step in (textbook_pipeline.pipeline_step, reference.pipeline_step))
    bound = bounds.pipeline_step_bound(SINGLE, **given)
    ratios = {"dx": np.abs(got[1] - want[1]).max() / bound["dx"].max(), "loss": abs(got[0] - want[0]) / bound["loss"]}
    ratios |= {f"dweights.{i}": (np.abs(a - b) / bound[f"dweights.{i}"]).max() for i, (a, b) in enumerate(zip(got[2], want[2]))}
    assert all(ratio <= 1.0 for ratio in ratios.values()), ratios
    assert all(ratio > 2.0**-10 for name, ratio in ratios.items() if name != "loss"), ratios


def test_a_step_off_by_a_hundredth_of_a_percent_would_show() -> None:
    g = np.random.default_rng(0)
    x, targets = g.standard_normal((2, 6, 4, 8)).astype(np.float32)
    given = {"x": x, "targets": targets, "lengths": np.full(6, 4), "weights": [(g.standard_normal((8, 8)) / 3).astype(np.float32)],
             "microbatch_size": 2}  # fmt: skip
    _, dx, (dw,) = reference.pipeline_step(**given, kind="gpipe")
    bound = bounds.pipeline_step_bound(SINGLE, **given)
    assert np.median(bound["dx"] / np.abs(dx)) < 2.0**-14
    assert np.median(bound["dweights.0"] / np.abs(dw)) < 2.0**-14


def test_no_tokens_are_no_error_of_the_loss_and_one_is_a_few_roundings() -> None:
    assert bounds.pipeline_loss_bound(SINGLE, np.ones((2, 3), np.float32), [0, 0], microbatch_size=1)["loss"] == 0.0
    one = bounds.pipeline_loss_bound(SINGLE, np.ones((2, 3), np.float32), [0, 1], microbatch_size=1)["loss"]
    assert 2.0**-24 <= one <= 16 * 2.0**-24


def test_a_schedule_has_no_numbers_to_bound() -> None:
    assert np.isinf(bounds.schedule_bound(SINGLE, "1f1b", stages=2, microbatches=3)["actions"]).all()
