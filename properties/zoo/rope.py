"""Mutants of rotary embedding: pairs formed otherwise than the angles are laid out, and angles made of too little or the wrong thing."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import textbook_rope as textbook
from .specimen import mutant
from .textbook import Array, working

FAMILY = "rope"
SIXTEEN = ("float16", "bfloat16")
YARN = {"kind": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "truncate": True}  # fmt: skip


def rows(positions: Any, *, D: int = 4, dtype: str = "float32", pairing: str = "half", **options: Any) -> dict[str, Any]:
    """Arguments of rope: 1, 2, 3, … in every row, at these positions."""
    p = np.asarray(positions)
    x = np.broadcast_to(np.arange(1.0, D + 1), (len(p), D)).astype(_type(dtype))
    return {"x": x, "positions": p, "pairing": pairing, **options}


def _type(dtype: str) -> Any:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, dtype, dtype))


def _halves_of_repeated(x: Array, cos: Array, sin: Array, pairing: str) -> Array:
    if pairing != "half":
        return textbook.turned(x, cos, sin, pairing)
    cos, sin = np.repeat(cos, 2, axis=-1), np.repeat(sin, 2, axis=-1)           # t0 t0 t1 t1, …
    half = x.shape[-1] // 2
    return np.asarray(x * cos + np.concatenate([-x[..., half:], x[..., :half]], axis=-1) * sin)


@mutant(
    "rope", id="rope-freq-table-and-pairing-mismatch", family=FAMILY, source="https://github.com/raiyanyahya/how-to-train-your-gpt/pull/7",
    trigger=lambda: rows([3, 7]),
)  # fmt: skip
def angles_laid_out_for_the_other_pairing(x: Any, positions: Any, *, pairing: str, base: float = 10000.0,
                                          rotary_dim: int | None = None) -> Array:
    """Angles lie as t0 t0 t1 t1 while the pairs are (i, i + R/2): no rotation at all."""
    return textbook.rope(x, positions, pairing=pairing, base=base, rotary_dim=rotary_dim, turned=_halves_of_repeated)


def _joined_end_to_end(x: Array, cos: Array, sin: Array, pairing: str) -> Array:
    out = textbook.turned(x, cos, sin, pairing)
    return out if pairing == "half" else np.concatenate([out[..., 0::2], out[..., 1::2]], axis=-1)


@mutant(
    "rope", id="rope-output-deinterleaved", family=FAMILY,
    source="https://github.com/vllm-project/vllm-metal/pull/44 https://github.com/nntile/nntile/pull/382",
    trigger=lambda: rows([0], D=8, pairing="interleaved"),
)  # fmt: skip
def interleaved_pairs_come_out_in_halves(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None,
                                         scaling: Any = None) -> Array:
    """Even and odd coordinates are turned rightly and then joined end to end instead of being put back where they were."""
    return textbook.rope(x, positions, pairing=pairing, base=base, rotary_dim=rotary_dim, scaling=scaling, turned=_joined_end_to_end)


@mutant(
    "rope", id="rope-pairing-half-vs-interleaved", family=FAMILY,
    source="https://github.com/vllm-project/vllm/pull/941 https://github.com/vllm-project/vllm/pull/49323 "
           "https://github.com/vllm-project/vllm-ascend/issues/12765",
    trigger=lambda: rows([1], pairing="interleaved"),
)  # fmt: skip
def the_style_is_ignored(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None,
                         scaling: Any = None) -> Array:
    """Pairs (i, i + R/2) are turned whatever the model's pairs are."""
    return textbook.rope(x, positions, pairing="half", base=base, rotary_dim=rotary_dim, scaling=scaling)


@mutant(
    "rope", id="phases-in-the-models-format", family=FAMILY, dtypes=SIXTEEN,
    source="https://github.com/huggingface/transformers/pull/29285 https://github.com/EleutherAI/gpt-neox/issues/1003 "
           "https://github.com/huggingface/candle/pull/3520",
    trigger=lambda: rows([4095], dtype="bfloat16"),
)  # fmt: skip
def angles_in_sixteen_bits(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None) -> Array:
    """Positions, frequencies and angles are rounded to the model's 16 bits, where from 256 on not every position has a number."""
    def angles(p: Array, f: Array, wide: Any) -> Array:
        return np.asarray((p.astype(x.dtype)[..., None] * f.astype(x.dtype)).astype(wide))

    return textbook.rope(x, positions, pairing=pairing, base=base, rotary_dim=rotary_dim, angles=angles)


@mutant(
    "rope", id="frequencies-cast-to-the-models-format", family=FAMILY, dtypes=("bfloat16",),
    source="https://github.com/sgl-project/sglang-jax/issues/1472 https://github.com/huggingface/transformers/issues/29496",
    trigger=lambda: rows([4095], dtype="bfloat16"),
)  # fmt: skip
def frequencies_in_sixteen_bits(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None) -> Array:
    """Only the frequencies are rounded to the model's format; the products with positions are float32, and wrong by 2^-8 of the angle."""
    def angles(p: Array, f: Array, wide: Any) -> Array:
        return textbook.angles(p, f.astype(x.dtype).astype(wide), wide)

    return textbook.rope(x, positions, pairing=pairing, base=base, rotary_dim=rotary_dim, angles=angles)


@mutant(
    "rope", id="partial-rotary-dim-ignored", family=FAMILY,
    source="https://github.com/AI-Hypercomputer/maxtext/issues/4616 https://github.com/ml-explore/mlx-lm/pull/1698",
    trigger=lambda: rows([5], D=8, rotary_dim=4),
)  # fmt: skip
def the_whole_head_turns(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None) -> Array:
    """All coordinates of the head turn, though only the first rotary_dim should."""
    return textbook.rope(x, positions, pairing=pairing, base=base)


@mutant(
    "rope", id="frequencies-counted-over-the-head", family=FAMILY, source="https://github.com/pie-project/pie/pull/603",
    trigger=lambda: rows([5], D=8, rotary_dim=4),
)  # fmt: skip
def exponents_over_the_head(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None) -> Array:
    """Where part of the head turns, exponents are -2i / D instead of -2i / rotary_dim: right at position 0, and drifting with distance."""
    def frequencies(R: int, base: float, scaling: Any, wide: Any) -> Array:
        return textbook.plain_frequencies(x.shape[-1], base, wide)[: R // 2]

    return textbook.rope(x, positions, pairing=pairing, base=base, rotary_dim=rotary_dim, frequencies=frequencies)


def _without_all_dim(scaling: Any) -> float:
    return textbook.magnitude(scaling and {**scaling, "mscale": 1.0, "mscale_all_dim": 0.0})


@mutant(
    "rope", id="yarn-mscale-fields-ignored", family=FAMILY, source="https://github.com/sgl-project/sglang/pull/22711",
    trigger=lambda: rows([5], scaling=YARN),
)  # fmt: skip
def yarn_grows_whatever_its_fields_say(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None,
                                       scaling: Any = None) -> Array:
    """Yarn's factor is 1 + 0.1 ln factor, though mscale and mscale_all_dim make it another, 1 where they are equal."""
    return textbook.rope(x, positions, pairing=pairing, base=base, rotary_dim=rotary_dim, scaling=scaling, magnitude=_without_all_dim)


@mutant(
    "rope", id="yarn-factor-applied-twice", family=FAMILY,
    source="https://github.com/sgl-project/sglang/pull/33558", trigger=lambda: rows([5], scaling={**YARN, "mscale_all_dim": 0.0}),
)  # fmt: skip
def yarn_grows_twice(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: int | None = None,
                     scaling: Any = None) -> Array:
    """The finished factor is taken for a multiplier of the formula's, and so squared."""
    return textbook.rope(x, positions, pairing=pairing, base=base, rotary_dim=rotary_dim, scaling=scaling,
                         magnitude=lambda record: textbook.magnitude(record) ** 2)  # fmt: skip


@mutant(
    "rope", id="quantised-key-shift-skipped", family="kv-cache", dtypes=("float8_e4m3fn", "float8_e5m2", "float32"),
    source="https://github.com/ggml-org/llama.cpp/issues/5652 https://github.com/ggml-org/llama.cpp/issues/4097",
    trigger=lambda: rows([-3, -3], dtype="float8_e4m3fn"),
)  # fmt: skip
def quantised_keys_are_not_moved(x: Any, positions: Any, *, pairing: str, base: float = 10000.0) -> Array:
    """Cached keys that are moved to other positions are turned only where they are not quantised: in 8 bits they come back as they were."""
    return textbook.rope(x, positions, pairing=pairing, base=base) if working(x) == np.float64 or x.dtype.itemsize > 1 else x.copy()
