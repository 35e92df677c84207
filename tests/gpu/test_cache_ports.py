"""The ports of the cache family: within their bounds on what the cases of a check do not reach, in place, and bad input refused.

ORACLES_BACKEND=cuda runs them on a device. Orders of threads, races and barriers: test_dropped_barriers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles import reference
from oracles.gpu.kv_cache import write_kv
from oracles.gpu.mla import mla_attention_absorbed
from oracles.gpu.paged_attention import paged_attention
from oracles.gpu.rope import rope
from oracles.properties import Arithmetic, bounds

pytestmark = pytest.mark.gpu

BACKEND = os.environ.get("ORACLES_BACKEND", "emulated")
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
ROTARY = Arithmetic(phases="float64")
SPLIT, LATENT = Arithmetic(tile_min=32, merges_lse=True), Arithmetic(tile_min=32, merges_lse=True, absorbed=True)


def draw(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(DTYPES[dtype])


def assert_within(bound: dict[str, Any], exact: dict[str, Any], got: dict[str, Any]) -> None:
    """Every result within its bound, and of the same kind where it is not finite."""
    assert set(exact) == set(got)
    for name, want in exact.items():
        x = np.asarray(got[name], np.float64)
        assert x.shape == want.shape
        finite = np.isfinite(want)
        np.testing.assert_array_equal(np.where(finite, 0.0, x), np.where(finite, 0.0, want), err_msg=name)
        assert (np.abs(x[finite] - want[finite]) <= bound[name][finite]).all(), name


# Rotary embedding ------------------------------------------------------------------------------------------------------------

YARN = {"kind": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
        "mscale_all_dim": 0.0, "truncate": True}  # fmt: skip
SCALINGS: list[dict[str, Any] | None] = [
    None, {"kind": "linear", "factor": 2.5}, {"kind": "ntk", "factor": 3.0}, YARN, YARN | {"truncate": False, "mscale_all_dim": 0.7},
    {"kind": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
]  # fmt: skip


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: "none" if s is None else str(s["kind"]))
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rope_is_within_a_bound_that_does_not_grow_with_the_position(dtype: str, pairing: Any, scaling: Any) -> None:
    x, positions = draw(2, 3, 100, dtype=dtype), [[-70, 0, 2**20], [4095, 2**24 + 1, 131071]]
    options: dict[str, Any] = {"pairing": pairing, "rotary_dim": 76, "base": 500000.0, "scaling": scaling}
    got = rope(x, positions, **options, backend=BACKEND)
    assert got.dtype == DTYPES[dtype]
    bound = bounds.rope_bound(ROTARY.resolve(dtype), x, positions, **options)
    assert_within(bound, {"out": reference.rope(x, positions, **options)}, {"out": got})


# Writes ----------------------------------------------------------------------------------------------------------------------


def views_of_one_pool(dtype: str) -> tuple[Any, Any]:
    """Caches of keys and values that lie between each other, full of NaN."""
    pool = np.full((7, 2, 2, 5), np.nan, DTYPES[dtype])
    return pool[:, 0], pool[:, 1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_writes_reach_caches_that_are_views(dtype: str) -> None:
    k_cache, v_cache = views_of_one_pool(dtype)
    k, v, slots = draw(6, 2, 5, dtype=dtype), draw(6, 2, 5, dtype=dtype, seed=1), np.array([4, -1, 0, 4, 6, 0])
    wanted = reference.write_kv(k_cache, v_cache, k, v, slots)
    written = write_kv(k_cache, v_cache, k, v, slots, backend=BACKEND)
    assert written[0] is k_cache
    assert written[1] is v_cache
    for got, want in zip(written, wanted):
        np.testing.assert_array_equal(got.astype(np.float64), want)


def test_a_slot_given_thousands_of_times_holds_its_last_token() -> None:
    T = 3000
    k = np.arange(T, dtype=np.float32).reshape(T, 1, 1)
    slots = np.random.default_rng(0).integers(0, 3, T)
    k_cache, _ = write_kv(np.zeros((3, 1, 1), np.float32), np.zeros((3, 1, 1), np.float32), k, -k, slots, backend=BACKEND)
    np.testing.assert_array_equal(k_cache.ravel(), [np.flatnonzero(slots == slot)[-1] for slot in range(3)])


# Pages and latents -----------------------------------------------------------------------------------------------------------

TABLES, LENGTHS = np.array([[3, 1, 0, 8, 5], [2, 7, 4, -1, -1]]), np.array([37, 19])
PAGED: dict[str, dict[str, Any]] = {
    "everything is seen": {"causal": None},
    "a chunk of a prompt": {"causal": "bottom_right", "query_lengths": np.array([3, 2])},
    "aligned at the top left": {"causal": "top_left"},
    "a window": {"causal": None, "window": (9, 1)},
    "sinks, and no query at all": {"causal": "bottom_right", "sinks": draw(6, seed=4), "query_lengths": np.array([0, 3])},
    "capped scores": {"causal": None, "softcap": 2.0, "scale": -0.3},
}


def pages(D: int, Dv: int, dtype: str = "float32") -> dict[str, Any]:
    return {"q": draw(2, 6, 3, D, dtype=dtype), "k_pages": draw(9, 8, 2, D, dtype=dtype, seed=1),
            "v_pages": draw(9, 8, 2, Dv, dtype=dtype, seed=2), "block_tables": TABLES, "kv_lengths": LENGTHS}  # fmt: skip


def check_paged(given: dict[str, Any], options: dict[str, Any], splits: int) -> None:
    got = dict(zip(("out", "lse"), paged_attention(**given, **options, splits=splits, backend=BACKEND)))
    exact = dict(zip(("out", "lse"), reference.paged_attention(**given, **options)))
    assert_within(bounds.paged_attention_bound(SPLIT.resolve(given["q"].dtype.name), **given, **options), exact, got)


@pytest.mark.parametrize("convention", PAGED)
@pytest.mark.parametrize("splits", [1, 2, 7])
def test_paged_attention_is_within_its_bound(splits: int, convention: str) -> None:
    check_paged(pages(24, 40), PAGED[convention], splits)


@pytest.mark.parametrize(("D", "Dv"), [(65, 128), (256, 3)])
def test_pages_of_wide_heads(D: int, Dv: int) -> None:
    check_paged(pages(D, Dv), {"causal": "bottom_right"}, 2)


def latents(C: int, Dr: int) -> dict[str, Any]:
    shapes = {"q_nope": (2, 3, 2, 4), "q_rope": (2, 3, 2, Dr), "latent": (2, 70, C), "k_rope": (2, 70, Dr), "w_uk": (3, C, 4),
              "w_uv": (3, C, 5)}  # fmt: skip
    return {name: draw(*shape, seed=seed) / np.float32(8) for seed, (name, shape) in enumerate(shapes.items())}


def check_latent(given: dict[str, Any], options: dict[str, Any], splits: int) -> None:
    got = dict(zip(("out", "lse"), mla_attention_absorbed(**given, **options, splits=splits, backend=BACKEND)))
    exact = dict(zip(("out", "lse"), reference.mla_attention(**given, **options)))
    assert_within(bounds.mla_attention_bound(LATENT.resolve("float32"), **given, **options), exact, got)


@pytest.mark.parametrize("splits", [1, 3])
def test_latent_attention_of_the_size_of_deepseek(splits: int) -> None:
    check_latent(latents(512, 64), {"causal": "bottom_right", "scale": 0.1}, splits)


def test_a_mask_for_each_head_and_lengths() -> None:
    mask = np.random.default_rng(0).random((3, 2, 70)) < 0.5
    check_latent(latents(40, 6), {"causal": None, "scale": -0.3, "mask": mask, "kv_lengths": np.array([33, 0])}, 1)


# Refusals --------------------------------------------------------------------------------------------------------------------

X, K, P = draw(2, 6), draw(4, 2, 3), pages(4, 4)
ROPE, WRITE, LATENTS = {"x": X, "positions": [0, 1], "pairing": "half"}, {"k_cache": K, "v_cache": K, "k": K, "v": K}, latents(8, 2)
REFUSED: dict[str, tuple[Callable[..., Any], dict[str, Any], type[Exception], str]] = {
    "an unknown pairing": (rope, {**ROPE, "pairing": "neox"}, ValueError, "pairing: got 'neox'; want 'half' or 'interleaved'"),
    "an odd rotary_dim": (rope, {**ROPE, "rotary_dim": 3}, ValueError, "rotary_dim: got 3 for x of shape (2, 6)"),
    "positions of fractions": (rope, {**ROPE, "positions": [0.5, 1.0]}, TypeError, "positions: got dtype float64; want integers"),
    "positions of another number": (rope, {**ROPE, "positions": [0, 1, 2]}, ValueError, "positions: got shape (3,)"),
    "a field too few": (rope, {**ROPE, "scaling": {"kind": "linear"}}, ValueError, "scaling: got fields [] for linear; want ['factor']"),
    "an unknown kind": (rope, {**ROPE, "scaling": {"kind": "dynamic"}}, ValueError, "scaling: got kind 'dynamic'"),
    "ntk of two": (rope, {**ROPE, "rotary_dim": 2, "scaling": {"kind": "ntk", "factor": 2.0}}, ValueError, "rotary_dim: got 2 for ntk"),
    "a slot past the cache": (write_kv, {**WRITE, "slots": [0, 1, 2, 4]}, ValueError, "slots: got numbers from 0 to 4; want -1..3"),
    "slots of another number": (write_kv, {**WRITE, "slots": [0]}, ValueError, "slots: got shape (1,); want (4,)"),
    "tokens of another format": (write_kv, {**WRITE, "k": K.astype(np.float16), "slots": [0, 1, 2, 3]},
        NotImplementedError, "k: got dtype"),
    "heads that do not divide": (paged_attention, {**P, "causal": None, "q": draw(2, 3, 1, 4)},
        ValueError, "k_pages: got 2 key/value heads"),
    "a table too short": (paged_attention, {**P, "causal": None, "kv_lengths": [37, 25]}, ValueError, "want 4 blocks before the first -1"),
    "a page of nobody": (paged_attention, {**P, "causal": None, "block_tables": TABLES + 1},
        ValueError, "block_tables: got numbers from 0 to 9"),
    "a boolean causal": (paged_attention, {**P, "causal": True}, ValueError, "causal: got True"),
    "weights of other heads": (mla_attention_absorbed, {**LATENTS, "causal": None, "scale": 1.0, "w_uk": draw(2, 8, 4)},
        ValueError, "w_uk: got shape"),
    "no scale": (mla_attention_absorbed, {**LATENTS, "causal": None, "scale": None}, TypeError, "scale: got None"),
    "too many channels": (mla_attention_absorbed, {**latents(513, 2), "causal": None, "scale": 1.0},
        NotImplementedError, "got 513 and 2 columns"),
}  # fmt: skip


@pytest.mark.parametrize("fault", REFUSED)
def test_bad_input_is_refused_by_name(fault: str) -> None:
    port, given, error, message = REFUSED[fault]
    with pytest.raises(error, match=re.escape(message)):
        port(**given, backend=BACKEND)
