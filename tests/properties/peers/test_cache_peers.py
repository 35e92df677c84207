"""Attention over latents and through block tables of released libraries, held to the laws; where they differ, and how."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.properties import check
from oracles.properties.peers.calls import deepseek, paged_attention
from oracles.properties.report import HELD
from oracles.properties.zoo import triggers_latents, triggers_pages
from oracles.reference import mla_attention

pytestmark = pytest.mark.peers

LATENT = ("answers", "out_agrees_with_the_oracle", "absorbed_and_reconstructed_agree", "identity_projections_are_multi_query_attention",
          "heads_read_their_own_values", "four_times_q_and_a_quarter_of_the_scale_change_no_bit", "each_step_of_decoding_is_its_row",
          "inputs_stay_untouched")  # fmt: skip
PAGED = ("answers", "out_agrees_with_the_oracle", "lse_agrees_with_the_oracle", "queries_without_keys_are_empty",
         "entries_behind_the_length_do_not_matter", "one_hot_values_show_the_weights", "each_row_sees_its_number_of_keys",
         "heads_read_their_own_keys", "shared_pages_are_like_copies", "inputs_stay_untouched")  # fmt: skip
# (operation, peer): the laws, and how many of the designed cases: JAX compiles each shape.
HOLDING: dict[tuple[str, str], tuple[tuple[str, ...], int]] = {
    ("mla_attention", "deepseek_v2_eager"): (LATENT, 60),
    ("mla_attention", "deepseek_v3_eager"): (LATENT, 60),
    ("mla_attention", "deepseek_v3_sdpa"): (LATENT, 60),
    ("paged_attention", "torch_flex_paged"): (PAGED, 40),
    ("paged_attention", "jax_pallas_paged"): (PAGED[:2], 6),
}


@pytest.mark.parametrize(("operation", "peer"), HOLDING)
def test_a_released_library_keeps_the_laws(operation: str, peer: str) -> None:
    laws, cases = HOLDING[operation, peer]
    report = check(operation, f"peers:{peer}", budget="quick", laws=laws, max_cases=cases)
    assert not report.stopped
    assert {verdict.law for verdict in report.verdicts} == set(laws)
    for verdict in report.verdicts:
        assert verdict.status == HELD, f"{verdict.law}: {verdict.reason} {verdict.case}"
        assert verdict.compared > 0
        assert verdict.worst_ratio <= 1


def as_torch(arguments: dict[str, Any]) -> dict[str, Any]:
    import torch

    return {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}


def test_deepseek_averages_all_values_where_nothing_is_seen() -> None:
    """What is hidden gets the least number of the format, and equal least numbers weigh the same."""
    given = triggers_latents.latent(Lk=2, mask=np.zeros((1, 1, 1, 2), bool))
    out = deepseek.v3_eager(**as_torch({name: x for name, x in given.items() if name != "mask"}), mask=given["mask"]).numpy()
    mean = (given["latent"].astype(np.float64).mean(axis=1)[:, None] @ given["w_uv"].astype(np.float64))[:, :, None].swapaxes(1, 2)
    roundings = 16 * 2.0**-24 * (np.abs(given["latent"]).max() * np.abs(given["w_uv"]).sum(axis=1).max())     # 6 channels, 2 keys
    assert np.abs(out - mean.reshape(out.shape)).max() <= roundings
    assert not mla_attention(**given)[0].any()


def test_deepseek_takes_the_softmax_of_float64_in_float32() -> None:
    """Why float64 is not declared of the eager form: its weights are off by more than float64 ever is."""
    given = triggers_latents.latent(Lk=40, C=16)
    given = {name: x.astype(np.float64) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    exact = mla_attention(**given)[0]
    eager, sdpa = (np.abs(call(**as_torch(given)).numpy() - exact).max() for call in (deepseek.v3_eager, deepseek.v3_sdpa))
    assert eager > 2.0**-28 > 2.0**-44 > sdpa                                   # 2^9 roundings of float64; a sixteenth of float32's


def test_nan_in_a_page_of_nobody_spreads_in_flex_attention() -> None:
    """Every page of the pool is multiplied by its weight of 0."""
    given = triggers_pages.paged([3], [[3, 1]])
    clean, _ = paged_attention.torch_flex(**as_torch(given))
    spread, _ = paged_attention.torch_flex(**as_torch(triggers_pages.emptied(given)))
    assert np.isfinite(clean.numpy()).all()
    assert np.isnan(spread.numpy()).all()
