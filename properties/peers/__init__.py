"""Adapters to other people's implementations, each with the conventions and arithmetic its documentation states.

`check("attention", "peers:torch_sdpa")` holds one to the laws. The library is an extra: pip install 'oracles[peers]'.
Not here: ggml, whose Python wheel is compiled for 24 minutes.
"""

from __future__ import annotations

# peers that are kept apart because they are wrong: the entry of docs/findings.md each of them shows.
WRONG: dict[str, str] = {
    "torch_sdpa_negative_scale": "torch-negative-scale-under-causal",
    "torch_sdpa_flash": "torch-flash-lse-of-an-empty-row",
    "torch_sdpa_flash_16bit": "torch-flash-lse-of-an-empty-row",
    "onnxruntime_gqa_bias": "onnxruntime-gqa-blind-row",
    "onnxruntime_attention_float64": "onnxruntime-float64-attention",
    "onnxruntime_mha_top_left": "onnxruntime-mha-last-query",
    "onnx_reference_float64": "onnx-reference-float64-scale",
    "jax_bias": "jax-blind-row",
    "jax_pallas_decode": "jax-decode-of-one-key",
    "tinygrad_single_key": "tinygrad-single-hidden-key",
}

# name of a peer: the module in this folder that declares it. A module has `subjects(name)` and `library_versions(name)`.
PEER_MODULES: dict[str, str] = {
    "torch_sdpa": "torch_sdpa",
    "torch_sdpa_negative_scale": "torch_sdpa",
    "torch_sdpa_16bit": "torch_sdpa",
    "torch_sdpa_math": "torch_sdpa",
    "torch_sdpa_flash": "torch_sdpa",
    "torch_sdpa_flash_16bit": "torch_sdpa",
    "torch_flex": "torch_flex",
    "torch_flex_compiled": "torch_flex",
    "onnxruntime_gqa": "onnxruntime_attention",
    "onnxruntime_gqa_bias": "onnxruntime_attention",
    "onnxruntime_attention": "onnxruntime_attention",
    "onnxruntime_attention_float64": "onnxruntime_attention",
    "onnxruntime_attention_cache": "onnxruntime_attention",
    "onnxruntime_attention_scores": "onnxruntime_attention",
    "onnxruntime_mha": "onnxruntime_attention",
    "onnxruntime_mha_top_left": "onnxruntime_attention",
    "onnxruntime_mha_bias": "onnxruntime_attention",
    "onnxruntime_mha_padding": "onnxruntime_attention",
    "onnx_reference": "onnx_reference",
    "onnx_reference_float64": "onnx_reference",
    "jax": "jax_attention",
    "jax_any_shape": "jax_attention",
    "jax_bias": "jax_attention",
    "jax_float64": "jax_attention",
    "jax_pallas_mha": "jax_pallas",
    "jax_pallas_decode": "jax_pallas",
    "jax_pallas_tpu_flash": "jax_pallas",
    "jax_splash": "jax_pallas",
    "mlx": "mlx_sdpa",
    "mlx_bias": "mlx_sdpa",
    "mlx_sinks": "mlx_sdpa",
    "tinygrad": "tinygrad",
    "tinygrad_single_key": "tinygrad",
    "triton_flash": "triton_flash",
    "xgrammar": "guided",
    "outlines_core": "guided",
    "llguidance": "guided",
    "llguidance_unforced": "guided",
    "torch_softmax": "softmax",
    "torch_softmax_16bit": "softmax",
    "jax_softmax": "softmax",
    "onnxruntime_softmax": "softmax",
    "transformers_llama": "rope",
    "transformers_gpt_neox": "rope",
    "transformers_glm": "rope",
    "transformers_deepseek_v3": "rope",
    "onnxruntime_rope": "rope",
    "onnxruntime_rope_standard": "rope",
    "onnx_reference_rope": "rope",
    "torch_index_put": "kv_cache",
    "jax_scatter": "kv_cache",
    "jax_scatter_bfloat16": "kv_cache",
}
