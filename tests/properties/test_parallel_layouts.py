"""The laws of parallel layouts: every layout of the sweep keeps them, and each turns red on a fault that breaks what it states."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.properties.parallel_layouts import SWEEP, check_layout, train
from oracles.properties.report import FAILED
from oracles.reference import collectives, context_parallel
from oracles.reference.optimizers import global_norm
from oracles.reference.parallel_layout import ParallelLayout
from oracles.reference.placed_arithmetic import transposed
from oracles.reference.placement import Replicated
from oracles.reference.zero import Zero

MODULE: Callable[[str], Any] = lambda name: sys.modules[f"oracles.reference.{name}"]  # noqa: E731


@pytest.mark.parametrize(("layout", "model"), SWEEP, ids=[f"{layout}-{model}" for layout, model in SWEEP])
def test_every_layout_has_the_numbers_of_one_rank(layout: str, model: str) -> None:
    report = check_layout(ParallelLayout.read(layout), model=model)
    assert [(v.law, v.reason) for v in report.verdicts if v.status == FAILED] == []
    assert report.finest < 2.0**-23                                             # what a single float32 rounding would be is seen


def test_the_sweep_has_at_least_forty_layouts_and_every_axis_with_every_other() -> None:
    layouts = [ParallelLayout.read(text) for text, _ in SWEEP]
    assert len(set(SWEEP)) == len(SWEEP) >= 40
    axes = ("dp", "ep", "cp", "tp", "pp", "zero", "sp")
    of = lambda layout: {a for a in axes if getattr(layout, a) > (a not in ("zero", "sp"))}  # noqa: E731
    assert all(any({a, b} <= of(layout) for layout in layouts) for a in axes for b in axes)
    assert {layout.zero for layout in layouts} == {0, 1, 2, 3}
    assert {layout.schedule for layout in layouts if layout.pp > 1} == {"gpipe", "1f1b", "interleaved", "zero_bubble"}
    assert {layout.context for layout in layouts if layout.cp > 1} == {"ring", "zigzag", "all_to_all"}


def test_further_steps_start_from_one_ranks_parameters() -> None:
    report = check_layout(ParallelLayout.read("dp2.tp2"), steps=3)
    assert report.held
    assert len(set(report.one_rank_losses)) == 3


def broken_vocabulary_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank of tp takes the sum of its own part of the vocabulary for that of all."""
    own = MODULE("parallel_pieces").vocabulary_loss
    monkeypatch.setattr(MODULE("parallel_pieces"), "vocabulary_loss", lambda z, first, y, skip: (
        own(z, first, y, skip)[0] + float(np.log(2.0)), own(z, first, y, skip)[1]))


def expert_gradients_times_ep(monkeypatch: pytest.MonkeyPatch) -> None:
    """https://github.com/NVIDIA/Megatron-LM/pull/5956: an expert's gradient, whole already, is added up over ep once more."""
    own = MODULE("parallel_experts")._inside_backward
    monkeypatch.setattr(MODULE("parallel_experts"), "_inside_backward", lambda *given: (
        own(*given)[0], *(2.0 * g for g in own(*given)[1:])))


def keys_of_the_ring_keep_their_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring's gradients of keys and values go round one step too few."""
    own = context_parallel.ring_attention_backward

    def late(*given: Any, **options: Any) -> Any:
        dq, dk, dv = own(*given, **options)
        return dq, collectives.shift(dk)[0], dv

    monkeypatch.setattr(MODULE("parallel_pieces"), "ring_attention_backward", late)


def mean_of_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """https://github.com/huggingface/transformers/pull/34373: each rank divides by its own tokens, and the ranks are averaged."""
    own = Zero.step
    monkeypatch.setattr(Zero, "step", lambda self, grads, tokens: own(
        self, [[g / max(n, 1) for g in of_rank] for of_rank, n in zip(grads, tokens)]))


def norm_of_one_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """https://github.com/RLinf/RLinf/issues/1558: each rank takes the norm of its own shard."""
    monkeypatch.setattr(Zero, "_norms", lambda self, reduced: [global_norm([g]) for g in reduced])


def rounded_to_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZeRO keeps its share of the weights in float32."""
    own = MODULE("zero").adamw_step
    monkeypatch.setattr(MODULE("zero"), "adamw_step", lambda *given, **options: (
        np.float64(np.float32(own(*given, **options)[0])), *own(*given, **options)[1:]))


RED: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None], str]] = {
    "loss_is_that_of_one_rank": ("tp2", broken_vocabulary_loss, "dense"),
    "gradients_are_those_of_one_rank": ("ep2", expert_gradients_times_ep, "experts"),
    "gradients_by_zero_are_those_of_one_rank": ("dp2.zero2", mean_of_means, "dense"),
    "the_norm_counts_every_element_once": ("dp2.zero2", norm_of_one_shard, "dense"),
    "adamw_of_these_gradients_bit_for_bit": ("dp2.zero3", rounded_to_float32, "dense"),
}


@pytest.mark.parametrize("law", RED)
def test_the_law_turns_red(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, fault, model = RED[law]
    fault(monkeypatch)
    report = check_layout(ParallelLayout.read(layout), model=model)
    assert law in [v.law for v in report.verdicts if v.status == FAILED]
    assert not report.held


def test_what_it_says_it_would_have_seen_it_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    finest = check_layout(ParallelLayout.read("dp2")).finest
    own = MODULE("parallel_decoder").ParallelDecoder.gradients

    def off(self: Any, *given: Any, **options: Any) -> Any:
        loss, gradients = own(self, *given, **options)
        return loss, {name: np.where(np.abs(g) == np.abs(g).max(), g * (1.0 + 1.01 * finest), g) for name, g in gradients.items()}

    monkeypatch.setattr(MODULE("parallel_decoder").ParallelDecoder, "gradients", off)
    report = check_layout(ParallelLayout.read("dp2"))
    assert [v.law for v in report.verdicts if v.status == FAILED] == ["gradients_are_those_of_one_rank"]


def test_a_ring_that_stops_early_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    keys_of_the_ring_keep_their_gradient(monkeypatch)
    report = check_layout(ParallelLayout.read("cp2"))
    assert [v.law for v in report.verdicts if v.status == FAILED] == ["gradients_are_those_of_one_rank",
                                                                      "gradients_by_zero_are_those_of_one_rank",
                                                                      "the_norm_counts_every_element_once"]  # fmt: skip


@pytest.mark.parametrize(("layout", "forget", "said"), [
    ("tp2", "layers.0.w_o", "layers.0: embedding.out replicated over tp + layers.0.w_o.out partial sum over tp: it would count 2 times"),
    ("dp2.tp2.pp2.zero3", "layers.3.w_down", "layers.3: layers.3.middle replicated over tp + layers.3.w_down.out partial sum over tp"),
    ("tp2.sp", "layers.1.w_o", "layers.1: layers.0.out sharded on axis 1 over tp + layers.1.w_o.out partial sum over tp"),
    ("ep2.tp2", "layers.2.experts", "layers.2: layers.2.middle replicated over tp + layers.2.experts.out partial sum over tp"),
])  # fmt: skip
def test_a_removed_all_reduce_is_named_before_it_is_a_number(layout: str, forget: str, said: str) -> None:
    report = check_layout(ParallelLayout.read(layout), forget=forget)
    (verdict,) = report.verdicts
    assert (verdict.law, verdict.status, report.held) == ("every_layer_gets_what_it_takes", FAILED, False)
    assert verdict.reason.startswith(said)
    assert verdict.reason.endswith("an all_reduce over tp is missing")


def test_a_norm_whose_gradient_is_not_reduced_over_the_sequence_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """https://github.com/NVIDIA/Megatron-LM/pull/1446"""
    monkeypatch.setattr(MODULE("parallel_decoder"), "reduced", lambda g, axis, **said: g.with_arrays(g.arrays, {axis: Replicated()}))
    report = check_layout(ParallelLayout.read("tp2.sp"))
    (verdict,) = report.verdicts
    assert not report.held
    assert re.match(r"zero: (layers\.\d\.)?norm\w*: said to be replicated over tp, but .* an all_reduce over tp is missing", verdict.reason)


def test_a_tied_head_that_keeps_its_gradient_to_itself_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def own_parts(gradients: list[Any]) -> None:
        gradients[-1]["embedding"] = transposed(gradients[-1].pop("head"))

    monkeypatch.setattr(MODULE("parallel_decoder"), "_tie", own_parts)
    report = check_layout(ParallelLayout.read("pp2"), model="tied")
    assert "an all_reduce between them is missing" in report.verdicts[0].reason


def test_a_layer_to_forget_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match=r"forget: got 'layers.9.w_o'; want one of layers.0.w_o, layers.0.w_down"):
        check_layout(ParallelLayout.read("tp2"), forget="layers.9.w_o")


def test_fifty_steps_over_zero_tensors_and_stages_have_the_loss_curve_of_one_rank() -> None:
    report = train(ParallelLayout.read("dp2.tp2.pp2.zero3"))
    assert report.held
    assert (len(report.losses), report.ranks) == (50, 8)
    assert report.losses == report.one_rank_losses
    assert float(report.losses[-1]) < float(report.losses[0]) / 4


def test_a_curve_that_leaves_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    mean_of_means(monkeypatch)
    assert not train(ParallelLayout.read("dp2.zero2"), steps=5).held


def test_the_page_says_how_many_layouts_and_which_laws() -> None:
    page = (Path(__file__).parents[2] / "docs" / "parallel.md").read_text()
    assert f"# {len(SWEEP)} layouts" in page
    assert f"the {len(SWEEP)} layouts" in page
    assert [v.law for v in check_layout(ParallelLayout()).verdicts if f"| {v.law} |" not in page] == []


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(ValueError, match="model: got 'odd'; want one of dense, tied, experts"):
        check_layout(ParallelLayout.read("dp2"), model="odd")
