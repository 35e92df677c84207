"""MLX, tinygrad and Triton's interpreter held to the laws, and their entries of docs/findings.md.

Each needs its library, and they do not go well together in one environment: `-k mlx`, `-k tinygrad`, `-k triton`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles.properties import check
from oracles.properties.bounds import attention_bound
from oracles.properties.peers.calls import mlx_sdpa
from oracles.properties.report import FAILED, HELD, Report

pytestmark = pytest.mark.more_peers

LAWS = ("answers", "out_agrees_with_the_oracle", "one_hot_values_show_the_weights", "heads_read_their_own_keys", "inputs_stay_untouched")


def column(*values: float) -> Any:
    return np.array(values, np.float32).reshape(1, 1, -1, 1)


@pytest.mark.parametrize(("peer", "laws"), [("mlx", LAWS), ("mlx_bias", LAWS), ("mlx_sinks", LAWS[:2])])
def test_mlx_keeps_the_laws(peer: str, laws: tuple[str, ...]) -> None:
    for verdict in check("attention", f"peers:{peer}", budget="quick", laws=laws).verdicts:
        assert verdict.status == HELD, f"{verdict.law}: {verdict.reason} {verdict.case}"
        assert verdict.compared > 0


# A compilation of every shape, or an interpreter: few cases.
CASES = 16
COSTLY = ("answers", "out_agrees_with_the_oracle", "rows_that_see_nothing_are_empty", "hidden_keys_have_no_weight_beside_low_scores")
ROWS = ("answers", "p_agrees_with_the_oracle", "nothing_but_minus_infinity_is_empty")


def few(operation: str, peer: str, laws: tuple[str, ...]) -> Report:
    return check(operation, f"peers:{peer}", budget="quick", laws=laws, max_cases=CASES)


@pytest.mark.parametrize(("operation", "laws"), [
    ("attention", COSTLY), ("softmax", ROWS), ("log_sum_exp", ("answers", "lse_agrees_with_the_oracle")),
])  # fmt: skip
def test_tinygrad_keeps_the_laws(operation: str, laws: tuple[str, ...]) -> None:
    for verdict in few(operation, "tinygrad", laws).verdicts:
        assert verdict.status == HELD, f"{verdict.law}: {verdict.reason} {verdict.case}"
        assert verdict.compared > 0


def test_triton_flash_keeps_the_laws() -> None:
    for verdict in few("attention", "triton_flash", (*COSTLY, "lse_agrees_with_the_oracle")).verdicts:
        assert verdict.status == HELD, f"{verdict.law}: {verdict.reason} {verdict.case}"
        assert verdict.compared > 0


def test_tinygrad_single_hidden_key() -> None:
    from oracles.properties.peers.calls import tinygrad

    for keys, wanted in ((1, 4.0), (2, np.nan)):
        values, none = np.full((1, 1, keys, 1), 4.0, np.float32), np.zeros((1, 1, 1, keys), bool)
        out = tinygrad.attention_single_key(column(0.0), values, values, causal=None, mask=none)
        np.testing.assert_array_equal(out.ravel(), [wanted])
    for entry in (np.nan, -np.inf):
        assert tinygrad.softmax_single_entry(np.array([entry], np.float32)).item() == 1.0
        assert np.isnan(tinygrad.softmax_single_entry(np.array([entry, entry], np.float32))).all()
    (verdict,) = few("softmax", "tinygrad_single_key", ("nothing_but_minus_infinity_is_empty",)).verdicts
    assert verdict.status == FAILED
    assert "is 1, wanted nan" in verdict.reason


def test_tinygrad_logsumexp_of_nothing() -> None:
    from oracles.properties.peers.calls import tinygrad

    assert np.isnan(tinygrad.log_sum_exp(np.full(2, -np.inf, np.float32)))
    assert np.isneginf(tinygrad.log_sum_exp(np.full(1, -np.inf, np.float32)))


def test_tinygrad_bfloat16_maximum() -> None:
    from oracles.properties.peers.calls import tinygrad

    ones = np.ones(33, ml_dtypes.bfloat16)
    assert tinygrad.softmax(ones[:32])[0] == 1 / 32
    assert tinygrad.softmax(ones.astype(np.float16)).shape == (33,)
    with pytest.raises(RuntimeError, match="UOp verification failed"):
        tinygrad.softmax(ones)


def test_tinygrad_rounds_each_product() -> None:
    from oracles.properties.peers.calls import tinygrad
    from oracles.properties.peers.tinygrad import ARITHMETIC, ATTENTION

    unit, zeros = 2.0**-24, np.zeros((1, 1, 16, 1), np.float16)
    arguments: dict[str, Any] = {"q": zeros[:, :, :1], "k": zeros, "v": np.full_like(zeros, 24 * unit), "causal": None}
    error = tinygrad.attention(**arguments).item() - 24 * unit                  # each product is 1.5 units, and rounds to 2
    assert error == 8 * unit
    once, each = (attention_bound(a.resolve("float16"), **arguments)["out"].item() for a in (ARITHMETIC, ATTENTION["arithmetic"]))
    assert once < error <= each


def test_triton_interpreter_bfloat16_cast(tmp_path: Path) -> None:
    from oracles.properties.loading import load_file
    from oracles.properties.peers.calls.triton_flash import Memory

    kernel = tmp_path / "casting.py"
    kernel.write_text(
        "import triton\nimport triton.language as tl\n\n@triton.jit\ndef cast(x, y):\n    i = tl.arange(0, 2)\n"
        "    tl.store(y + i, tl.load(x + i).to(tl.bfloat16))\n"
    )
    x, y = np.array([1 + 2**-8 + 2**-12, 1e-40], np.float32), np.zeros(2, ml_dtypes.bfloat16)
    load_file(kernel).cast[(1,)](Memory(x), Memory(y))
    assert y[0] == 1.0
    assert x.astype(y.dtype)[0] == 1.0078125
    assert y[1] > 10 * x[1]


def test_mlx_float16_scores() -> None:
    q = np.full((1, 1, 1, 64), 300.0, np.float16)
    k, v = np.concatenate([q, -q], axis=2), column(1.0, 2.0).astype(np.float16)
    assert np.isnan(mlx_sdpa.attention(q, k, v, causal=None, scale=0.125)).all()
    assert mlx_sdpa.attention(*(x.astype(np.float32) for x in (q, k, v)), causal=None, scale=0.125).item() == 1.0


def test_mlx_blind_row() -> None:
    q, k, v, none = column(0.0), column(0.0, 0.0), column(1.0, 3.0), np.zeros((1, 1, 1, 2), bool)
    assert mlx_sdpa.attention(q, k, v, causal=None, mask=none).item() == 2.0
    assert np.isnan(mlx_sdpa.attention_bias(q, k, v, causal=None, mask=none)).all()
    assert mlx_sdpa.attention_sinks(q, k, v, causal=None, mask=none, sinks=np.zeros(1, np.float32)).item() == 0.0
