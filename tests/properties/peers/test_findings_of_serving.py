"""Entries of docs/findings.md about caches, positions and drafts, still true of the installed releases."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles import reference
from oracles.properties.peers.calls import deepseek

pytestmark = pytest.mark.peers


def test_onnxruntime_rope_short_table() -> None:
    import onnxruntime
    from onnx import TensorProto, helper

    node = helper.make_node("RotaryEmbedding", ["x", "p", "c", "s"], ["y"], domain="com.microsoft", interleaved=0)
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64 if name == "p" else TensorProto.FLOAT, None) for name in "xpcs"]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    versions = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=10).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])

    def answer(rows: int) -> Any:
        tables = {"c": np.ones((rows, 1), np.float32), "s": np.zeros((rows, 1), np.float32)}
        return session.run(None, {"x": np.ones((1, 1, 2, 2), np.float32), "p": np.zeros((1, 2), np.int64), **tables})[0]

    assert (answer(2) == 1.0).all()
    with pytest.raises(Exception, match="Updating cos_cache and sin_cache in RotaryEmbedding is not currently supported"):
        answer(1)


@pytest.mark.parametrize(("dtype", "bits", "after"), [("bfloat16", 0x7FC1, 0x7FC0), ("float16", 0x7E01, 0x7E01)])
def test_jax_scatter_nan_bits(dtype: str, bits: int, after: int) -> None:
    import jax.numpy as jnp

    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    cache = jnp.asarray(np.array([[bits], [bits]], np.uint16).view(kind))
    assert np.asarray(cache).view(np.uint16).ravel().tolist() == [bits, bits]
    written = cache.at[jnp.array([0])].set(jnp.ones((1, 1), kind), mode="drop")
    assert np.asarray(written).view(np.uint16)[1, 0] == after


def test_deepseek_eager_softmax_in_float32() -> None:
    import torch

    g = np.random.default_rng(0)
    shapes = ((1, 1, 1, 2), (1, 1, 1, 2), (1, 3, 2), (1, 3, 2), (1, 2, 2), (1, 2, 2))
    arrays = [g.standard_normal(shape) for shape in shapes]
    exact, _ = reference.mla_attention(*arrays, causal=None, scale=0.5)
    tensors = [torch.from_numpy(array) for array in arrays]
    eager, sdpa = (np.abs(call(*tensors, causal=None, scale=0.5).numpy() - exact).max() for call in (deepseek.v3_eager, deepseek.v3_sdpa))
    assert eager > 2.0**-30
    assert sdpa < 2.0**-50


def test_transformers_speculative_zero_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from transformers.generation.utils import _speculative_sampling

    q, p = torch.log(torch.tensor([[[0.5, 0.5]]])), torch.log(torch.tensor([[[0.0, 1.0], [0.0, 1.0]]]))
    accepted = {}
    for u in (0.0, 2.0**-24):
        monkeypatch.setattr(torch, "rand_like", lambda x, u=u: torch.full_like(x, u))
        accepted[u] = int(_speculative_sampling(torch.tensor([[0]]), q, 1, p)[1])
    assert accepted == {0.0: 1, 2.0**-24: 0}
