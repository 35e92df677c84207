"""Layouts: read from a few letters and written back, and refused where something does not divide, by name."""

from __future__ import annotations

import re
from typing import Any

import pytest

from oracles.reference import Decoder
from oracles.reference.parallel_layout import ParallelLayout

SIZES: dict[str, Any] = {"vocabulary": 13, "width": 8, "layers": 4, "heads": 8, "kv_heads": 4, "head_size": 2, "hidden": 8}
DENSE = Decoder(**SIZES)


@pytest.mark.parametrize("text", ["dp1", "dp2", "dp2.tp2.pp2", "dp2.ep2.cp2:zigzag.tp2.sp.pp2:interleaved.zero3.mb4", "cp2:all_to_all",
                                  "pp4:zero_bubble", "tp4.sp"])  # fmt: skip
def test_what_is_read_is_written_back(text: str) -> None:
    assert str(ParallelLayout.read(text)) == text


def test_the_parts_mean_what_they_say() -> None:
    layout = ParallelLayout.read("dp2.ep3.cp4:zigzag.tp5.sp5.pp6:interleaved.zero2.mb12")
    assert (layout.dp, layout.ep, layout.cp, layout.tp, layout.pp, layout.zero, layout.microbatches) == (2, 3, 4, 5, 6, 2, 12)
    assert (layout.sp, layout.context, layout.schedule, layout.chunks) == (True, "zigzag", "interleaved", 2)
    assert layout.ranks == 720
    assert layout.mesh.sizes == {"dp": 2, "ep": 3, "cp": 4, "tp": 5}


def test_a_pipeline_has_twice_as_many_micro_batches_as_stages_unless_told_otherwise() -> None:
    assert [ParallelLayout.read(text).steps for text in ("dp2", "pp2", "pp4", "pp4.mb3", "mb2")] == [1, 4, 8, 3, 2]


@pytest.mark.parametrize(("text", "message"), [
    ("dp2.xx3", "layout: got 'xx3' in 'dp2.xx3'; want parts joined by dots: dp, ep, cp, tp, pp, zero and mb with a number, sp"),
    ("dp", "layout: got 'dp' in 'dp'"),
    ("", "layout: got '' in ''"),
    ("tp2:ring", "layout: got 'tp2:ring'"),
    ("dp2.dp4", "layout: got dp twice in 'dp2.dp4'; want it once"),
    ("tp0", "tp: got 0; want a whole number >= 1"),
    ("sp", "sp: got tp1; want more than one rank of tp"),
    ("tp2.sp4", "sp: got 4 beside tp 2; want the same number"),
    ("cp2:star", "cp: got 'star'; want one of ring, zigzag, all_to_all"),
    ("pp2:2f2b", "pp: got '2f2b'; want one of gpipe, 1f1b, interleaved, zero_bubble"),
    ("dp2.zero4", "zero: got 4; want 0, 1, 2 or 3"),
    ("mb0", "mb: got 0; want a whole number >= 1"),
])  # fmt: skip
def test_what_is_no_layout_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        ParallelLayout.read(text)


@pytest.mark.parametrize(("text", "decoder", "batch", "length", "message"), [
    ("dp3", DENSE, 16, 8, "dp, ep, mb: got 16 sequences for 3 x 1 ranks and 1 micro-batches; want a multiple of 3"),
    ("dp2.pp2", DENSE, 12, 8, "dp, ep, mb: got 12 sequences for 2 x 1 ranks and 4 micro-batches; want a multiple of 8"),
    ("cp3", DENSE, 16, 8, "cp, sp: got 8 tokens for 3 parts; want a multiple of 3"),
    ("cp4:zigzag", DENSE, 16, 12, "cp, sp: got 12 tokens for 8 parts; want a multiple of 8"),
    ("cp2.tp4.sp", DENSE, 16, 4, "cp, sp: got 4 tokens for 8 parts; want a multiple of 8"),
    ("tp3", DENSE, 16, 8, "tp: got 8 query heads for 3 ranks; want a multiple of 3"),
    ("tp8", DENSE, 16, 8, "tp: got 4 key/value heads for 8 ranks; want a multiple of 8"),
    ("tp4.cp2:all_to_all", DENSE, 16, 8, "tp: got 4 key/value heads for 8 ranks; want a multiple of 8"),
    ("tp4", Decoder(**{**SIZES, "hidden": 6}), 16, 8, "tp: got 6 of hidden width for 4 ranks; want a multiple of 4"),
    ("tp4", Decoder(**{**SIZES, "vocabulary": 3}), 16, 8, "tp: got a vocabulary of 3 for 4 ranks; want at least one token each"),
    ("ep2", DENSE, 16, 8, "ep: got 1 experts for 2 ranks; want a multiple of 2"),
    ("ep3", Decoder(**SIZES, experts=4), 15, 8, "ep: got 4 experts for 3 ranks; want a multiple of 3"),
    ("pp8", DENSE, 16, 8, "pp: got 4 layers for 8 stages of 1; want at least 8"),
    ("pp4:interleaved", DENSE, 16, 8, "pp: got 4 layers for 4 stages of 2; want at least 8"),
    ("pp2:interleaved.mb1", DENSE, 16, 8, "mb: got 1 micro-batches for 2 stages; want a multiple of 2 to interleave them"),
    ("cp2", Decoder(**SIZES, window=2), 16, 8, "cp: got a window of 2 for 2 ranks; want no window"),
    ("dp2", Decoder(**SIZES, latent=3, rope_size=2), 16, 8, "layout: got latent attention (3); want grouped heads"),
])  # fmt: skip
def test_what_does_not_divide_is_refused_by_name(text: str, decoder: Decoder, batch: int, length: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        ParallelLayout.read(text).fit(decoder, batch, length)
