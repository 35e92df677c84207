"""The reference evaluator of ONNX on NumPy arrays: Attention as a model of one node.

Nothing but NumPy and onnx is imported, so that this file runs alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np


def attention(q: Any, k: Any, v: Any, *, causal: Any, window: Any = None, scale: Any = None, softcap: Any = None, bias: Any = None,
              mask: Any = None, kv_lengths: Any = None) -> Any:
    """out of Attention in opset 25, and lse from qk_matmul_output in mode 2, the scores with softcap and mask.

    A query stands at i + nonpad_kv_seqlen - Lq where that input is given, and at i where it is not: the lower right alignment
    gives it, the upper left one does not and so has no kv_lengths.
    """
    if causal == "top_left" and kv_lengths is not None:
        raise NotImplementedError("nonpad_kv_seqlen moves the causal diagonal to the lower right")
    if kv_lengths is None and causal != "top_left" and (causal or window):
        kv_lengths = np.full(q.shape[0], k.shape[2])
    left, right = (-1 if side is None else side for side in window or (None, None))
    attributes = {"is_causal": int(causal is not None), "scale": scale, "softcap": softcap, "qk_matmul_output_mode": 2,
                  "left_window_size": left, "right_window_size": right}  # fmt: skip
    lengths = None if kv_lengths is None else np.asarray(kv_lengths, np.int64)
    given = {"q": q, "k": k, "v": v, "seen": _attention_mask(bias, mask, q.shape[2]), "lengths": lengths}
    arrays = {name: array for name, array in given.items() if array is not None}
    options = tuple((name, value) for name, value in attributes.items() if value is not None)
    types = tuple((name, array.dtype.name) for name, array in arrays.items())
    out, s = _evaluator(options, types).run(None, arrays)
    return out, np.logaddexp.reduce(s.astype(np.float64), axis=-1).astype(np.float64 if s.dtype == np.float64 else np.float32)


def _attention_mask(bias: Any, mask: Any, Lq: int) -> Any:
    """attn_mask of as many rows as there are queries: beside is_causal the evaluator takes the mask's rows for the queries."""
    if bias is None and mask is None:
        return None
    if bias is not None:
        mask = bias if mask is None else np.where(mask, bias, np.array(-np.inf, bias.dtype))
    return np.broadcast_to(mask, (*mask.shape[:2], Lq, mask.shape[3]))


@lru_cache(maxsize=512)
def _evaluator(attributes: tuple[tuple[str, Any], ...], types: tuple[tuple[str, str], ...]) -> Any:
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    names = dict(types)
    seen, lengths = (name if name in names else "" for name in ("seen", "lengths"))
    node = helper.make_node("Attention", ["q", "k", "v", seen, "", "", lengths], ["out", "", "", "scores"], **dict(attributes))
    of_type = {name: helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for name, dtype in types}
    infos = [helper.make_tensor_value_info(name, element, None) for name, element in of_type.items()]
    results = [helper.make_tensor_value_info(name, of_type["q"], None) for name in ("out", "scores")]
    graph = helper.make_graph([node], "Attention", infos, results)
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=10))
