"""Latent attention of Hugging Face's library: the attention of its DeepSeek models, from the queries to before the output projection.

Nothing but NumPy, PyTorch and transformers is imported, the last two inside the functions, so that this file runs alone. Queries come
as they are (the projection before them is left out), rotary angles are 0, and a cache that holds the given latents and rotary keys
takes the place of the model's own.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np


def v3_eager(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: Any, kv_lengths: Any = None,
             mask: Any = None) -> Any:
    """out (B, H, Lq, Dv) of DeepseekV3Attention, one PyTorch operation after another."""
    return _attention("v3", "eager", q_nope, q_rope, latent, k_rope, w_uk, w_uv, causal, scale, kv_lengths, mask)


def v3_sdpa(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: Any, kv_lengths: Any = None,
            mask: Any = None) -> Any:
    """The same through scaled_dot_product_attention."""
    return _attention("v3", "sdpa", q_nope, q_rope, latent, k_rope, w_uk, w_uv, causal, scale, kv_lengths, mask)


def v2_eager(q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, *, causal: Any, scale: Any, kv_lengths: Any = None,
             mask: Any = None) -> Any:
    """out of DeepseekV2Attention, one PyTorch operation after another."""
    return _attention("v2", "eager", q_nope, q_rope, latent, k_rope, w_uk, w_uv, causal, scale, kv_lengths, mask)


class GivenCache:
    """A cache whose entries are already there."""

    def __init__(self, latent: Any, k_rope: Any) -> None:
        self.held = latent[:, None], k_rope[:, None]

    def update(self, *new: Any, **options: Any) -> Any:
        return self.held


def _attention(model: str, implementation: str, q_nope: Any, q_rope: Any, latent: Any, k_rope: Any, w_uk: Any, w_uv: Any, causal: Any,
               scale: Any, kv_lengths: Any, mask: Any) -> Any:
    import torch

    (B, H, Lq, Dn), (C, Dv), Dr, Lk = q_nope.shape, w_uv.shape[1:], q_rope.shape[3], latent.shape[1]
    if model == "v2" and (Dr == 0 or Dr % 2 or Dn % 2 or C % 2):
        raise NotImplementedError(f"q_rope: got {Dr} coordinates beside {Dn} and {C}; want even numbers: pairs are made complex in place")
    module = _module(model, implementation, H, Dn, Dr, C, Dv, q_nope.dtype)
    module.scaling = float(scale)
    with torch.no_grad():
        module.kv_b_proj.weight.copy_(torch.cat([w_uk, w_uv], dim=-1).transpose(1, 2).reshape(H * (Dn + Dv), C))
        hidden = torch.cat([q_nope, q_rope], dim=-1).transpose(1, 2).reshape(B, Lq, H * (Dn + Dr))
        hidden_mask = _mask(B, Lq, Lk, causal, kv_lengths, mask, q_nope.dtype)
        still = (torch.ones(B, Lq, Dr, dtype=q_nope.dtype), torch.zeros(B, Lq, Dr, dtype=q_nope.dtype))
        angles = still if model == "v3" else torch.ones(B, Lq, Dr // 2, dtype=torch.complex64)
        out = module(hidden_states=hidden, position_embeddings=angles, attention_mask=hidden_mask, cache=GivenCache(latent, k_rope))[0]
    return out.reshape(B, Lq, H, Dv).transpose(1, 2)


@lru_cache(maxsize=256)
def _module(model: str, implementation: str, H: int, Dn: int, Dr: int, C: int, Dv: int, dtype: Any) -> Any:
    import torch

    if model == "v3":
        from transformers.models.deepseek_v3 import DeepseekV3Config as Config
        from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention as Attention
    else:
        from transformers.models.deepseek_v2 import DeepseekV2Config as Config
        from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Attention as Attention
    config = Config(hidden_size=H * (Dn + Dr), num_attention_heads=H, num_key_value_heads=H, q_lora_rank=None, kv_lora_rank=C,
                    qk_rope_head_dim=Dr, v_head_dim=Dv, qk_nope_head_dim=Dn, attn_implementation=implementation)  # fmt: skip
    config.rope_interleave = False
    module = Attention(config, layer_idx=0).to(dtype).eval()
    module.q_proj, module.o_proj = torch.nn.Identity(), torch.nn.Identity()
    return module


def _mask(B: int, Lq: int, Lk: int, causal: Any, kv_lengths: Any, mask: Any, dtype: Any) -> Any:
    """What the model's own mask is: 0, and the least number of the format where a key is hidden; (B, H or 1, Lq, Lk)."""
    import torch

    lengths = np.full(B, Lk) if kv_lengths is None else np.asarray(kv_lengths)
    j, p = np.arange(Lk), lengths[:, None, None, None] - Lq + np.arange(Lq)[:, None]
    seen = j < lengths[:, None, None, None]
    seen = np.broadcast_to(seen & ((j <= p) if causal is not None else True), (B, 1, Lq, Lk))
    seen = seen if mask is None else seen & np.asarray(mask)
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(torch.from_numpy(np.array(~seen)), torch.finfo(dtype).min)
