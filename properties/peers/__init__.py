"""Adapters to other people's implementations, each with the conventions and arithmetic its documentation states.

`check("attention", "peers:torch_sdpa")` holds one to the laws. The library is an extra: pip install 'oracles[peers]'.
"""

from __future__ import annotations

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
    "torch_softmax": "softmax",
    "torch_softmax_16bit": "softmax",
    "jax_softmax": "softmax",
    "onnxruntime_softmax": "softmax",
}
