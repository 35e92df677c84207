"""How packed_qkv.cu is launched: the arrays under the contract's names, put the way the kernel wants them."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.properties import subject


@subject("attention", dtypes=["float32"], refuses=["grouped", "value_dim", "cross_lengths", "empty"])
def launch(q: Any, k: Any, v: Any, *, causal: Any, scale: float | None = None) -> dict[str, Any]:
    B, H, L, D = q.shape
    qkv = np.ascontiguousarray(np.stack([q, k, v]).transpose(1, 3, 0, 2, 4))    # (B, L, 3, H, D)
    out = np.empty((B, L, H, D), np.float32)
    return {
        "grid": (L, H, B), "block": (32,), "shared_mem": 4 * L,
        "args": [qkv, out, L, H, D, D**-0.5 if scale is None else scale, causal is not None],
        "results": {"out": out.transpose(0, 2, 1, 3)},
        "parameters": "const float* qkv, float* out, int L, int H, int D, float scale, bool causal",
    }  # fmt: skip
