"""Counts of attention's memory traffic and FLOPs against published figures and the paper's theorem."""

from __future__ import annotations

from typing import Any

import pytest

from oracles.reference import memory_traffic

PUBLISHED = memory_traffic(64, 16, 1024, 64, sram_bytes=192 * 1024, element_bytes=2)


def test_the_published_example_takes_12_b_h_n_n_d_flops() -> None:
    assert PUBLISHED.standard_flops == 12 * 64 * 16 * 1024**2 * 64 == 824_633_720_832


def test_making_p_anew_takes_14_b_h_n_n_d_flops() -> None:
    assert PUBLISHED.tiled_flops == 14 * 64 * 16 * 1024**2 * 64 == 962_072_674_304


def test_the_quoted_66_6_gflop_are_contradicted() -> None:
    assert PUBLISHED.standard_forward_flops > 66.6e9 * 4


def test_4096_tokens_make_16777216_scores_a_head() -> None:
    assert memory_traffic(2, 3, 4096, 64, sram_bytes=100_000, element_bytes=2).score_entries_per_head == 16_777_216


def test_score_entries_count_every_head_of_every_sequence() -> None:
    assert memory_traffic(2, 3, 4096, 64, sram_bytes=100_000, element_bytes=2).score_entries == 6 * 16_777_216


def test_standard_traffic_is_read_off_the_algorithm() -> None:
    one = memory_traffic(1, 1, 10, 3, sram_bytes=48, element_bytes=4)
    assert (one.standard_forward_hbm_bytes, one.standard_backward_hbm_bytes) == (4 * (4 * 30 + 4 * 100), 4 * (8 * 30 + 7 * 100))


def test_tiled_traffic_is_read_off_the_algorithm() -> None:
    one = memory_traffic(1, 1, 10, 3, sram_bytes=48 * 4, element_bytes=4)        # block_k = 4, 3 passes
    assert (one.tiled_forward_hbm_bytes, one.tiled_backward_hbm_bytes) == (4 * (60 + 3 * (90 + 40)), 4 * (120 + 3 * (150 + 20)))


def test_tiles_are_those_of_the_paper() -> None:
    assert (PUBLISHED.block_k, PUBLISHED.block_q) == (384, 64)


def test_standard_traffic_grows_with_the_square_of_the_length() -> None:
    small, large = (memory_traffic(1, 1, N, 1, sram_bytes=2**20, element_bytes=1) for N in (2**20, 2**21))
    assert 4 - large.standard_hbm_bytes / small.standard_hbm_bytes < 2**-18


def test_tiled_traffic_halves_with_twice_the_memory() -> None:
    small, large = (memory_traffic(1, 1, 2**20, 64, sram_bytes=M, element_bytes=1) for M in (2**16, 2**17))
    once = 6 * 2**20 * 64
    assert small.tiled_hbm_bytes - once == 2 * (large.tiled_hbm_bytes - once)


@pytest.mark.parametrize(("changed", "error", "words"), [
    ({"D": 0}, ValueError, "D: got 0; want a whole number >= 1"),
    ({"L": -1}, ValueError, "L: got -1; want a whole number >= 0"),
    ({"sram_bytes": 1}, ValueError, "sram_bytes: got 1; want a whole number >= 2"),
    ({"B": 1.0}, TypeError, "B: got 1.0; want a whole number >= 1"),
])
def test_bad_sizes_are_refused_by_name(changed: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        memory_traffic(**{"B": 1, "H": 1, "L": 8, "D": 4, "sram_bytes": 64, "element_bytes": 2, **changed})
