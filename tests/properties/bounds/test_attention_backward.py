"""What the gradient's bounds must be beside wide enough: exact where nothing can be wrong, and narrow enough to see faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from oracles.properties.bounds import attention_backward_bound, attention_packed_backward_bound
from oracles.reference import attention
from oracles.reference.attention_backward import attention_backward

from .drawn_problems import resolved
from .monte_carlo import ratios


def _call(seed: int, **options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    rng = np.random.default_rng(seed)
    q, k, v, dout = (rng.standard_normal((1, h, 40, 16)).astype(np.float32) for h in (4, 2, 2, 4))
    options = {"causal": None, **options}
    out, lse = attention(q, k, v, **options)
    return (q, k, v, out, lse, dout), options


def _options(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"bias": rng.standard_normal((1, 1, 40, 40)).astype(np.float32), "sinks": rng.standard_normal(4).astype(np.float32),
            "softcap": 5.0}


def test_every_gradient_has_a_bound_of_its_shape() -> None:
    call, options = _call(0, **_options(0))
    bound, exact = attention_backward_bound(resolved("float32"), *call, **options), attention_backward(*call, **options)
    assert {name: b.shape for name, b in bound.items()} == {name: x.shape for name, x in exact.items()}
    assert all((b > 0).all() and np.isfinite(b).all() for b in bound.values())


def test_what_nothing_sees_has_no_tolerance() -> None:
    call, options = _call(1, mask=(np.arange(40) < 25) & (np.arange(40)[:, None] > 3), bias=np.zeros((1, 4, 40, 40), np.float32))
    bound = attention_backward_bound(resolved("bfloat16, recomputes"), *call, **options)
    assert not bound["dk"][:, :, 25:].any()
    assert not bound["dv"][:, :, 25:].any()
    assert not bound["dq"][:, :, :4].any()
    assert not bound["dbias"][..., 25:].any()


def test_what_is_hidden_changes_no_bound() -> None:
    call, options = _call(2, mask=np.arange(40) < 25)
    plain = attention_backward_bound(resolved("float32"), *call, **options)
    q, k, v, *rest = (x.copy() for x in call)
    k[..., 25:, :], v[..., 25:, :] = 1e30, 1e30
    poisoned = attention_backward_bound(resolved("float32"), q, k, v, *rest, **options)
    assert all(np.array_equal(plain[name], poisoned[name]) for name in plain)


def test_gradients_that_are_nan_are_compared_by_kind() -> None:
    call, options = _call(3, causal="top_left", **_options(3))
    call[1][0, 0, 10] = np.nan
    call[5][0, 3, 20, 2] = np.inf
    exact = attention_backward(*call, **options)
    bound = attention_backward_bound(resolved("float32"), *call, **options)
    assert all((bound[name][~np.isfinite(exact[name])] == 0).all() for name in exact)
    assert all((~np.isfinite(exact[name])).any() for name in ("dq", "dk", "dv", "dsinks"))


def test_a_dS_that_the_format_of_P_does_not_hold_is_not_compared() -> None:
    call, options = _call(4)
    wide, narrow = (attention_backward_bound(replace(resolved("float32"), probabilities=p), *call[:5], call[5] * 1e6, **options)
                    for p in ("float32", "float16"))
    assert np.isfinite(wide["dq"]).all()
    assert np.isposinf(narrow["dq"]).any()


def test_reading_out_and_lse_is_held_to_more_than_recomputing_them() -> None:
    call, options = _call(5)
    read, recomputed = (attention_backward_bound(resolved(c), *call, **options) for c in ("float32", "float32, recomputes"))
    assert all((read[name] < recomputed[name]).all() for name in read)


# fault: what the kernel computes instead, from the exact gradients and the call.
FAULTS = {
    "dk without one query": lambda g, q: {**g, "dk": g["dk"] - g["dk"] * 0.01},
    "dq scaled by 1.001": lambda g, q: {**g, "dq": g["dq"] * 1.001},
    "dv of the first head alone": lambda g, q: {**g, "dv": g["dv"] * 0.5},
    "dsinks with the sign turned": lambda g, q: {**g, "dsinks": -g["dsinks"]},
    "dbias behind the cap": lambda g, q: {**g, "dbias": g["dbias"] * 0.99},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_outside_the_bound(fault: str) -> None:
    call, options = _call(6, **_options(6))
    exact = attention_backward(*call, **options)
    bound = attention_backward_bound(resolved("float32"), *call, **options)
    assert max(ratios(exact, exact, bound).values()) == 0.0
    found = ratios(FAULTS[fault](exact, call[0]), exact, bound)
    print(fault, found)
    assert max(found.values()) > 1.0


def test_packed_sequences_have_the_bounds_of_each_alone() -> None:
    rng = np.random.default_rng(9)
    q, k, v, dout = (rng.standard_normal((n, h, 8)).astype(np.float32) for n, h in ((7, 4), (9, 2), (9, 2), (7, 4)))
    out, lse, a = np.zeros_like(dout), np.zeros((4, 7), np.float32), resolved("float32")
    packed = attention_packed_backward_bound(a, q, k, v, out, lse, dout, [0, 3, 3, 7], [0, 4, 9, 9], causal="bottom_right", scale=0.3)
    alone = attention_backward_bound(a, *(x.swapaxes(0, 1)[None] for x in (q[:3], k[:4], v[:4], out[:3])), lse[None, :, :3],
                                     dout[:3].swapaxes(0, 1)[None], causal="bottom_right", scale=0.3)
    assert np.array_equal(packed["dq"][:3], alone["dq"][0].swapaxes(0, 1))
    assert np.array_equal(packed["dk"][:4], alone["dk"][0].swapaxes(0, 1))
    assert not packed["dv"][4:].any()
