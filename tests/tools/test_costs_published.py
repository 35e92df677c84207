"""`oracles costs facts`: every published figure comes out digit for digit, or says why not."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from oracles.reference.model_config import ModelConfig
from oracles.tools import costs_compression, costs_published
from oracles.tools.costs_published import figures
from oracles.tools.published_figure import CONTRADICTED, DERIVED, EXERCISE, FORMULA, QUOTED, Figure

ALL = figures()
of_kind = {kind: [f for f in ALL if f.kind == kind] for kind in (DERIVED, FORMULA, EXERCISE, QUOTED, CONTRADICTED)}


@pytest.mark.parametrize("figure", of_kind[DERIVED], ids=lambda f: f"{f.section}: {f.what}")
def test_a_derived_figure_is_ours_digit_for_digit(figure: Figure) -> None:
    assert figure.ours == figure.published


@pytest.mark.parametrize("figure", of_kind[FORMULA], ids=lambda f: f"{f.section}: {f.what}")
def test_a_formula_holds(figure: Figure) -> None:
    assert figure.ours == "holds"


@pytest.mark.parametrize("figure", of_kind[QUOTED] + of_kind[CONTRADICTED], ids=lambda f: f"{f.section}: {f.what}")
def test_what_is_not_ours_says_why(figure: Figure) -> None:
    assert figure.reason
    assert figure.kind == QUOTED or figure.ours != figure.published


def test_no_line_stands_twice() -> None:
    assert {what: n for what, n in Counter((f.section, f.what) for f in ALL).items() if n > 1} == {("number formats", "float16 max"): 2}


def test_the_counts_of_lines_are_those_of_the_tables() -> None:
    """12 + 11 of formats; 2 x 4 of caches by context; 9 x 4 of batched decode; 6 largest batches; 4 x 2 of int8."""
    assert sum(f.section == "number formats" and f.kind == DERIVED for f in ALL) == 12 + 11
    assert sum(f.what.startswith("32 layers") for f in ALL) == 8
    assert sum(f.what.startswith("batch ") for f in ALL) == 36
    assert sum(f.what.startswith("largest batch") for f in ALL) == 6
    assert sum(f.section == "int8 quantization" and f.kind == DERIVED for f in ALL) == 4 * 2


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_gradients_survive_as_often_as_the_normal_law_says(scale: float) -> None:
    """Hoeffding: a share of 10,000 draws is further than sqrt(ln(2 / 10^-9) / 20,000) from its law once in 10^9."""
    drawn, expected = costs_published.surviving_gradients(scale)
    assert abs(drawn - expected) <= math.sqrt(math.log(2e9) / 2 / costs_published.GRADIENTS)
    assert (drawn < 0.8) == (scale == 1.0)


def test_tiled_attention_is_not_bit_for_bit_plain() -> None:
    differ, all_of_them, worst = costs_published.tiled_against_plain()
    assert 0 < differ <= all_of_them
    assert worst > 0.0


def test_a_wrong_count_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Query heads charged for key and value heads: the grouped half of the table no longer comes out."""
    plain = costs_published.reference.kv_bytes

    def charged(lengths: Any, *, config: ModelConfig, element_bits: int = 16) -> Any:
        return plain(lengths, config=config, element_bits=element_bits) * (config.query_heads // config.kv_heads)

    monkeypatch.setattr(costs_published.reference, "kv_bytes", charged)
    assert any(not f.good for f in figures())


# What is broken, and the section in which it shows.
BROKEN: dict[str, tuple[str, Any, str]] = {
    "codes that are cut off": ("quantize", np.trunc, "int8 quantization"),
    "another seed": ("TorchStream", 1, "int8 quantization"),
    "a threshold that stays": ("prune_magnitude", np.greater_equal, "pruning"),
    "three of every four": ("prune_2_4", 3, "pruning"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_wrong_compression_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, how, section = BROKEN[fault]
    right = getattr(costs_compression.reference, name)

    def cut_off(x: Any, **options: Any) -> Any:
        _, scale, zero = right(x, **options)
        return how(np.asarray(x, np.float64) / scale).astype(np.int32), scale, zero

    def at_the_threshold(weights: Any, **options: Any) -> Any:
        flat = np.abs(np.concatenate([w.ravel() for w in weights])).astype(np.float64)
        border = np.sort(flat)[int(options["sparsity"] * (flat.size - 1))]      # an order statistic, which stays itself
        return [how(np.abs(w), border) for w in weights]

    broken = {"quantize": cut_off, "TorchStream": lambda seed: right(seed + how), "prune_magnitude": at_the_threshold,
              "prune_2_4": lambda w, axis: np.arange(w.shape[-1]) % 4 < how + 0 * w}[name]  # fmt: skip
    monkeypatch.setattr(costs_compression.reference, name, broken)
    assert any(not f.good for f in figures() if f.section == section)


@pytest.mark.parametrize("figure", [
    Figure("s", "w", "1", "2"), Figure("s", "w", "1", "1", CONTRADICTED, "why"), Figure("s", "w", "1", "2", CONTRADICTED),
    Figure("s", "w", "1", "", QUOTED), Figure("s", "w", "a + b", "fails", FORMULA), Figure("s", "w", "1", "1", EXERCISE),
])  # fmt: skip
def test_a_line_that_is_not_what_it_says_is_bad(figure: Figure) -> None:
    assert not figure.good


def test_the_command_prints_all_and_ends_well(oracles: Any) -> None:
    ended = oracles("costs", "facts")
    assert ended.code == 0
    assert f"{len(ALL)} figures" in ended.out
    for what in ("Llama-2 70B at 4,096 tokens, GB", "contradicted: follows from no count", "quoted: a measurement"):
        assert what in " ".join(ended.out.split())


def test_a_bad_figure_ends_in_failure(oracles: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from oracles.tools import costs_scaling

    monkeypatch.setattr(costs_scaling, "figures", lambda: [Figure("s", "w", "1", "2")])
    ended = oracles("costs", "facts")
    assert ended.code == 1
    assert "not so, derived it was to be" in ended.out
    data = oracles("costs", "facts", "--json")
    assert (data.code, data.data["bad"]) == (1, ["w"])


def test_one_section_alone(oracles: Any) -> None:
    shown = oracles("costs", "facts", "--section", "KV cache", "--json").data["figures"]
    assert {figure["section"] for figure in shown} == {"KV cache"}
    ended = oracles("costs", "facts", "--section", "nothing")
    assert ended.code == 2
    assert "section: got 'nothing'; want one of number formats" in " ".join(ended.err.split())
