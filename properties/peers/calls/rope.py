"""Rotary embedding of Hugging Face's transformers, of ONNX Runtime and of onnx's reference evaluator, each on its own arrays.

Nothing but NumPy and the libraries is imported, these inside the functions, so that this file runs alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

LENGTH = 4096                                                                   # max_position_embeddings of the configurations


def llama(x: Any, positions: Any, *, base: float = 10000.0, scaling: Any = None) -> Any:
    """LlamaRotaryEmbedding and apply_rotary_pos_emb of modeling_llama."""
    from transformers.models.llama import modeling_llama as model

    return _applied(model.apply_rotary_pos_emb, "llama", x, positions, x.shape[-1], base, scaling)


def gpt_neox(x: Any, positions: Any, *, base: float = 10000.0, rotary_dim: Any = None, scaling: Any = None) -> Any:
    """GPTNeoXRotaryEmbedding, with its partial_rotary_factor, and apply_rotary_pos_emb of modeling_gpt_neox."""
    from transformers.models.gpt_neox import modeling_gpt_neox as model

    return _applied(model.apply_rotary_pos_emb, "gpt_neox", x, positions, rotary_dim or x.shape[-1], base, scaling)


def glm(x: Any, positions: Any, *, base: float = 10000.0, rotary_dim: Any = None, scaling: Any = None) -> Any:
    """GlmRotaryEmbedding, with its partial_rotary_factor, and apply_rotary_pos_emb of modeling_glm: interleaved pairs."""
    from transformers.models.glm import modeling_glm as model

    return _applied(model.apply_rotary_pos_emb, "glm", x, positions, rotary_dim or x.shape[-1], base, scaling)


def deepseek_v3(x: Any, positions: Any, *, base: float = 10000.0, scaling: Any = None) -> Any:
    """apply_rotary_pos_emb_interleave of modeling_deepseek_v3, which leaves interleaved pairs in halves: they are put back here."""
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as model

    halves = _applied(model.apply_rotary_pos_emb_interleave, "deepseek_v3", x, positions, x.shape[-1], base, scaling)
    return halves.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


def _applied(apply: Any, family: str, x: Any, positions: Any, R: int, base: float, scaling: Any) -> Any:
    """Every row of positions is a batch item of one head: their tables have no axis of heads."""
    import torch

    if not x.numel():
        return x.clone()
    T, D = x.shape[-2] if x.ndim > 1 else 1, x.shape[-1]
    p = positions.expand(x.shape[:-1]).reshape(-1, T)
    rows = x.reshape(-1, 1, T, D)
    with torch.no_grad():
        cos, sin = _embedding(family, D, R, base, None if scaling is None else tuple(sorted(scaling.items())))(rows, p)
        return apply(rows, rows, cos, sin)[0].reshape(x.shape)


@lru_cache(maxsize=512)
def _embedding(family: str, D: int, R: int, base: float, scaling: Any) -> Any:
    """The rotary module of a model whose configuration has this head size and scaling."""
    import importlib

    from transformers import logging, modeling_rope_utils

    logging.set_verbosity_error()                                               # it warns of lengths of configurations, which do not enter
    class_name = {"llama": "Llama", "gpt_neox": "GPTNeoX", "glm": "Glm", "deepseek_v3": "DeepseekV3"}[family]
    model = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    record: dict[str, Any] = dict(scaling or {})
    kind = record.pop("kind", "none")
    told = "default" if kind in ("none", "ntk") else kind
    parameters: dict[str, Any] = {"rope_type": told, "rope_theta": base, "partial_rotary_factor": R / D}
    if int(D * (R / D)) != R:
        raise NotImplementedError("partial_rotary_factor is a quotient, and rounds this rotary_dim down")
    if kind == "yarn" and not record["mscale_all_dim"]:
        if record["mscale"] != 1.0:
            raise NotImplementedError("mscale without mscale_all_dim is ignored")
        del record["mscale"], record["mscale_all_dim"]
    parameters |= record if kind != "ntk" else {}
    config = getattr(model, f"{class_name}Config")(hidden_size=D, num_attention_heads=1, max_position_embeddings=LENGTH,
                                                   rope_parameters=parameters)  # fmt: skip
    config.head_dim = D
    if family == "deepseek_v3":
        config.qk_rope_head_dim = D
    embedding = getattr(model, f"{class_name}RotaryEmbedding")(config)
    if kind == "ntk":                                                           # "dynamic": the base of a sequence that much longer
        config.rope_parameters["factor"] = 1.0
        embedding.inv_freq, _ = modeling_rope_utils.ROPE_INIT_FUNCTIONS["dynamic"](config, None, seq_len=round(LENGTH * record["factor"]))
    return embedding


# ONNX -----------------------------------------------------------------------------------------------------------------------


def onnxruntime_contrib(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: Any = None) -> Any:
    """com.microsoft RotaryEmbedding."""
    return _by_table("com.microsoft", "session", x, positions, pairing, base, rotary_dim)


def onnxruntime_standard(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: Any = None) -> Any:
    """The operator RotaryEmbedding, opset 23, in ONNX Runtime."""
    return _by_table("", "session", x, positions, pairing, base, rotary_dim)


def onnx_reference(x: Any, positions: Any, *, pairing: str, base: float = 10000.0, rotary_dim: Any = None) -> Any:
    """The operator RotaryEmbedding, opset 23, in onnx's reference evaluator."""
    return _by_table("", "reference", x, positions, pairing, base, rotary_dim)


def _by_table(domain: str, engine: str, x: Any, positions: Any, pairing: str, base: float, rotary_dim: Any) -> Any:
    """Tables are the caller's: made here in float64 for the positions that there are, each a row that position_ids names.

    ONNX Runtime refuses tables of fewer rows than T, which repeated positions would give: they are filled up with what nobody reads.
    """
    if not x.size:
        raise NotImplementedError("tensors without elements")
    R, T, D = rotary_dim or x.shape[-1], x.shape[-2] if x.ndim > 1 else 1, x.shape[-1]
    places, index = np.unique(np.broadcast_to(positions, x.shape[:-1]), return_inverse=True)
    t = np.resize(places, max(len(places), T)).astype(np.float64)[:, None] * base ** (-np.arange(0, R, 2) / R)
    inputs = {"x": np.ascontiguousarray(x.reshape(-1, 1, T, D)), "cos": np.cos(t).astype(x.dtype), "sin": np.sin(t).astype(x.dtype),
              "p": index.reshape(-1, T).astype(np.int64)}  # fmt: skip
    partial = R if R != D else 0
    return _engine(domain, engine, x.dtype.name, int(pairing == "interleaved"), partial).run(None, inputs)[0].reshape(x.shape)


@lru_cache(maxsize=256)
def _engine(domain: str, engine: str, dtype: str, interleaved: int, rotary_dim: int) -> Any:
    from onnx import TensorProto, helper

    element = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16}[dtype]
    order = ["x", "p", "cos", "sin"] if domain else ["x", "cos", "sin", "p"]
    node = helper.make_node("RotaryEmbedding", order, ["y"], domain=domain, interleaved=interleaved, rotary_embedding_dim=rotary_dim,
                            num_heads=1)  # fmt: skip
    kinds = {"x": (element, 4), "cos": (element, 2), "sin": (element, 2), "p": (TensorProto.INT64, 2)}
    infos = [helper.make_tensor_value_info(name, kinds[name][0], [None] * kinds[name][1]) for name in order]
    graph = helper.make_graph([node], "rope", infos, [helper.make_empty_tensor_value_info("y")])
    opsets = [helper.make_opsetid("", 23), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    if engine == "reference":
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator(model)
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
