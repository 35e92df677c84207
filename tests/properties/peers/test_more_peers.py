"""MLX held to the laws, and its entries of docs/findings.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.properties import check
from oracles.properties.peers.calls import mlx_sdpa
from oracles.properties.report import HELD

pytestmark = pytest.mark.more_peers

LAWS = ("answers", "out_agrees_with_the_oracle", "one_hot_values_show_the_weights", "heads_read_their_own_keys", "inputs_stay_untouched")


def column(*values: float) -> Any:
    return np.array(values, np.float32).reshape(1, 1, -1, 1)


@pytest.mark.parametrize(("peer", "laws"), [("mlx", LAWS), ("mlx_bias", LAWS), ("mlx_sinks", LAWS[:2])])
def test_mlx_keeps_the_laws(peer: str, laws: tuple[str, ...]) -> None:
    for verdict in check("attention", f"peers:{peer}", budget="quick", laws=laws).verdicts:
        assert verdict.status == HELD, f"{verdict.law}: {verdict.reason} {verdict.case}"
        assert verdict.compared > 0


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
