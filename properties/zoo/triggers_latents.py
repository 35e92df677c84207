"""Triggers of latents: small arguments of latent attention on which mutants differ from the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np


def latent(*, B: int = 1, H: int = 2, Lq: int = 1, Lk: int = 5, Dn: int = 4, Dr: int = 2, C: int = 6, Dv: int = 3, stretch: float = 1.0,
           **options: Any) -> dict[str, Any]:
    """Arguments of mla_attention: N(0, 1) from a fixed seed, scale = stretch / sqrt(Dn + Dr), causal None unless given."""
    g = np.random.default_rng(1)
    shapes = {"q_nope": (B, H, Lq, Dn), "q_rope": (B, H, Lq, Dr), "latent": (B, Lk, C), "k_rope": (B, Lk, Dr), "w_uk": (H, C, Dn),
              "w_uv": (H, C, Dv)}  # fmt: skip
    arrays = {name: g.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {**arrays, "causal": None, "scale": stretch / float(np.sqrt(Dn + Dr)), **options}
