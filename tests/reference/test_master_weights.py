"""Masters over many steps: each step that of one call, what is skipped left out, what is saved resumed."""

from __future__ import annotations

import numpy as np
import pytest

from oracles.reference import FloatFormat, MasterWeights, master_weight_step

OPTIONS = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1}


def test_steps_are_those_of_single_calls_with_skipped_ones_left_out() -> None:
    r = np.random.default_rng(0)
    weights, grads, rates = r.standard_normal(5), r.standard_normal((6, 5)), [1e-2, 1e-3, 1e-4]
    grads[2, 1] = np.inf
    w = MasterWeights(weights, fmt="bfloat16", lr=rates, **OPTIONS)
    master, m, v, t = weights, np.zeros(5), np.zeros(5), 0
    for grad in grads:
        w.accumulate(grad * 8.0)
        assert w.step(loss_scale=8.0) == bool(np.isfinite(grad).all())
        if np.isfinite(grad).all():
            t += 1
            _, master, m, v = master_weight_step(grad, master, m, v, loss_scale=1.0, max_norm=None, step=t,
                                                 lr=rates[min(t, 3) - 1], fmt="bfloat16", **OPTIONS)  # fmt: skip
    assert t == 5
    assert np.array_equal(w.state()["master"], master)
    assert np.array_equal(w.weights(), FloatFormat("bfloat16").round(master))


def test_a_state_is_a_copy_and_resumes_bit_for_bit() -> None:
    w = MasterWeights([1.0 + 2.0**-12], fmt="bfloat16", lr=0.1)
    state = w.state()
    w.accumulate([1.0])
    w.step()
    assert state["master"] == 1.0 + 2.0**-12
    other = MasterWeights([0.0], fmt="bfloat16", lr=0.1)
    other.resume(state)
    other.accumulate([1.0])
    other.step()
    assert other.state()["master"] == w.state()["master"]
    assert np.array_equal(other.weights(), w.weights())


def test_bad_input_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="lr: got no learning rate"):
        MasterWeights([1.0], fmt="bfloat16", lr=[])
    with pytest.raises(ValueError, match="lr: got -1"):
        MasterWeights([1.0], fmt="bfloat16", lr=-1.0)
    w = MasterWeights([1.0], fmt="bfloat16", lr=1.0)
    with pytest.raises(ValueError, match="grad"):
        w.accumulate([1.0, 2.0])
    with pytest.raises(ValueError, match="weights"):
        w.load([1.0, 2.0])
    with pytest.raises(ValueError, match="state: got master; want master, m, v, step"):
        w.resume({"master": [1.0]})
