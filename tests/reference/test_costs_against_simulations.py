"""Formulas of memory and of idle time against what simulated ranks, caches, pages and pipelines really hold and really wait."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from oracles.reference import (
    Decoder,
    Layout,
    ModelConfig,
    QuantizedKVCache,
    kv_bytes,
    pipeline_bubble,
    run_schedule,
    schedule,
    training_parts,
    transformer_forward,
)
from oracles.reference.decoder_cache import ContiguousCache, PagedCache, PagePool
from oracles.reference.pipeline_parallel import TanhStage
from oracles.reference.zero import Zero

# ZeRO --------------------------------------------------------------------------------------------------------------------

WIDE = Layout(weights=8, gradients=8, masters=0, first_moment=8, second_moment=8)                  # all in float64, and no masters
SHAPES = ({"w": (7, 3), "b": (4,)}, {"w": (1,)}, {"a": (8, 8)})                 # 25 and 1 parameters leave shards that are filled up


def attached(stage: int, world: int, shapes: dict[str, tuple[int, ...]]) -> Zero:
    zero = Zero(stage, world, lr=0.1, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.0)
    zero.attach({name: np.ones(shape) for name, shape in shapes.items()})
    zero.step([[np.ones(shape) for shape in shapes.values()] for _ in range(world)])
    return zero


def weighed(zero: Zero) -> list[dict[str, int]]:
    """Bytes of the arrays of each rank, found by looking, not by asking."""
    roles = {"weights": "weights", "gradients": "gradients", "m": "first moment", "v": "second moment"}
    return [{roles[name]: array.nbytes for name, array in vars(rank).items() if isinstance(array, np.ndarray)} for rank in zero._ranks]


@pytest.mark.parametrize("shapes", SHAPES, ids=lambda shapes: str(sum(int(np.prod(shape)) for shape in shapes.values())))
@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("stage", range(4))
def test_every_rank_holds_each_part_that_the_formula_counts(stage: int, world: int, shapes: dict[str, tuple[int, ...]]) -> None:
    parameters = sum(int(np.prod(shape)) for shape in shapes.values())
    parts = training_parts(parameters, stage=stage, world=world, layout=WIDE)
    assert parts.pop("masters") == 0
    assert weighed(attached(stage, world, shapes)) == [parts] * world


def test_an_estimate_that_shares_out_what_its_stage_does_not_is_seen() -> None:
    """The parts of each stage are those of no other: of 25 parameters on 3 ranks."""
    parts = [training_parts(25, stage=stage, world=3, layout=WIDE) for stage in range(4)]
    held = [weighed(attached(stage, 3, SHAPES[0]))[0] for stage in range(4)]
    assert [[{**own, "masters": 0} == count for count in parts] for own in held] == np.eye(4, dtype=bool).tolist()


# Caches ------------------------------------------------------------------------------------------------------------------

SIZES = Decoder(vocabulary=11, width=8, layers=3, heads=4, kv_heads=2, head_size=6, hidden=5)
CONFIG = ModelConfig(hidden=8, layers=3, query_heads=4, kv_heads=2, head_dim=6)
WEIGHTS = {name: np.random.default_rng(0).standard_normal(shape) / 4 for name, shape in SIZES.shapes().items()}


def test_the_cache_of_a_decoder_that_has_read_so_many_tokens_has_the_bytes_that_are_counted() -> None:
    cache = ContiguousCache(3)
    transformer_forward(np.arange(9)[None] % 11, WEIGHTS, SIZES, cache=cache)
    assert sum(array.nbytes for layer in cache.layers for array in layer.view()) == int(kv_bytes(9, config=CONFIG, element_bits=64))


def test_the_pages_of_two_decoders_have_the_bytes_of_whole_pages_and_share_those_of_one_prompt() -> None:
    """The pool is num_blocks pages whatever is in it; used are the pages of 9 tokens, and of the second only what it does not share."""
    pool, tokens = PagePool(3, 8, 4), np.arange(9) % 11
    for seq in ("a", "b"):
        cache = PagedCache(pool, seq)
        found = cache.open(tokens)
        transformer_forward(tokens[None, found:], WEIGHTS, SIZES, cache=cache)
    page = int(kv_bytes(4, config=CONFIG, element_bits=64))
    assert sum(array.nbytes for pages in pool.pages for array in pages or ()) == 8 * page
    assert pool.allocator.stats()["used"] == 3 + 1                              # two whole pages are the same
    written = sum(int(np.isfinite(array).sum()) for pages in pool.pages for array in pages or ()) * 8
    assert written == int(kv_bytes(9, config=CONFIG, element_bits=64)) + int(kv_bytes(1, config=CONFIG, element_bits=64))


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_a_quantized_cache_has_the_bytes_of_its_codes_and_what_its_scales_take(bits: int) -> None:
    cache, n = QuantizedKVCache(bits=bits, group=4), 5
    cache.append(np.ones((1, 2, n, 8)), np.ones((1, 2, n, 8)))
    codes = int(kv_bytes(n, config=ModelConfig(hidden=8, layers=1, query_heads=2, kv_heads=2, head_dim=8), element_bits=bits))
    assert cache.nbytes(scale_bytes=2) == codes + 2 * 2 * n * (8 // 4) * (2 + 1)       # k and v, heads, tokens, groups: scale and zero


# Pipelines ---------------------------------------------------------------------------------------------------------------


class Weighed(TanhStage):
    """A stage that counts the bytes it has saved and not yet used up, on the scales of its stage."""

    def __init__(self, weight: Any, scales: dict[str, int]) -> None:
        super().__init__(weight)
        object.__setattr__(self, "scales", scales)

    def forward(self, x: Any, microbatch: int) -> tuple[Any, Any]:
        y, saved = super().forward(x, microbatch)
        self._put(sum(array.nbytes for array in saved if np.ndim(array)))
        return y, saved

    def backward_weight(self, saved: Any, dy: Any) -> list[Any]:
        self._put(-sum(array.nbytes for array in saved if np.ndim(array)))
        return super().backward_weight(saved, dy)

    def _put(self, weight: int) -> None:
        scales: dict[str, int] = self.scales                                    # type: ignore[attr-defined]
        scales["now"] += weight
        scales["most"] = max(scales["most"], scales["now"])


KINDS = ("gpipe", "1f1b", "interleaved", "zero_bubble")


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 4), (2, 2), (4, 4), (4, 8), (3, 9)])
@pytest.mark.parametrize("kind", KINDS)
def test_stages_hold_as_many_bytes_at_once_as_their_peak_says(kind: str, stages: int, microbatches: int) -> None:
    """GPipe all micro-batches, 1F1B no more than there are stages: weighed while the passes run."""
    chunks, rows, width = 2 if kind == "interleaved" else 1, 5, 3
    order = schedule(kind, stages=stages, microbatches=microbatches, chunks=chunks)
    g, scales = np.random.default_rng(0), [{"now": 0, "most": 0} for _ in range(stages)]
    pieces = [Weighed(g.standard_normal((width, width)), scales[i % stages]) for i in range(chunks * stages)]
    inputs = [g.standard_normal((rows, width)) for _ in range(microbatches)]
    run_schedule(order, pieces, inputs, lambda y, i: (float(y.sum()), np.ones_like(y)))
    each = 2 * rows * width * 8                                                 # x and tanh(x W) of one micro-batch
    assert [scale["now"] for scale in scales] == [0] * stages                   # nothing is left over
    assert [scale["most"] for scale in scales] == [each * int(n) for n in order.peak_activations()]
    if kind in ("gpipe", "1f1b"):
        assert max(scale["most"] for scale in scales) == each * (microbatches if kind == "gpipe" else min(microbatches, stages))


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 3), (4, 8), (8, 8), (5, 1)])
@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
def test_stages_wait_as_long_as_the_formula_says(kind: str, stages: int, microbatches: int) -> None:
    starts, ends = schedule(kind, stages=stages, microbatches=microbatches).timeline()
    whole = stages * int(ends.max())
    assert Fraction(whole - int((ends - starts).sum()), whole) == pipeline_bubble(stages, microbatches)
