"""Each entry of docs/findings.md, still true of the installed release: the smallest input, and the law that sees it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.properties import check
from oracles.properties.case import Case
from oracles.properties.declaration import subject
from oracles.properties.laws.every_operation import agreement
from oracles.properties.operations import operation_named
from oracles.properties.peers.calls import jax_attention, jax_pallas, onnx_reference, onnxruntime_attention
from oracles.properties.peers.installed import copy_of
from oracles.properties.report import FAILED, Verdict
from oracles.properties.subjects import open_subject
from oracles.properties.trial import Trial

pytestmark = pytest.mark.peers

FINDINGS = {
    "torch-negative-scale-under-causal", "torch-flash-lse-of-an-empty-row", "torch-flash-dies-on-a-length-of-0",
    "onnxruntime-float64-attention", "onnxruntime-mask-not-broadcast", "onnxruntime-nan-in-padding", "onnxruntime-gqa-blind-row",
    "onnxruntime-logsumexp-behind-minus-infinity",
    "onnxruntime-finite-mask", "onnxruntime-mha-last-query", "onnxruntime-mha-blind-row", "onnx-reference-broadcast-mask",
    "onnx-reference-float64-scale", "torch-flex-without-keys", "torch-softmax-off-the-last-axis", "jax-pallas-more-queries-than-keys",
    "jax-pallas-64-bit-types", "jax-decode-of-16-bits", "jax-decode-of-one-key", "jax-tpu-flash-blind-row", "jax-splash-blind-row",
    "jax-pallas-finite-mask",
    "mlx-float16-scores", "mlx-blind-row",
    "tinygrad-single-hidden-key", "tinygrad-logsumexp-of-nothing", "tinygrad-bfloat16-maximum", "triton-interpreter-bfloat16-cast",
    "jax-nan-in-padding", "jax-blind-row", "jax-float16-on-a-cpu",
    # test_findings_of_serving.py
    "onnxruntime-rope-short-table", "jax-scatter-nan-bits", "deepseek-eager-softmax-in-float32", "transformers-speculative-zero-uniform",
    # test_training_peers.py
    "torch-scale-of-0", "optax-clip-to-0",
    # test_mtp_peer.py
    "transformers-mtp-labels",
    # test_deepspeed_peer.py
    "deepspeed-empty-parameter",
    # test_guided_peers.py
    "outlines-core-after-match", "outlines-core-empty-token", "xgrammar-token-id", "llguidance-dead-end",
}  # fmt: skip


def verdict_of(peer: Any, law: str) -> Verdict:
    (verdict,) = check("attention", peer, budget="quick", laws=(law,)).verdicts
    return verdict


def test_the_page_lists_these_findings() -> None:
    page = Path(__file__).parents[3] / "docs" / "findings.md"
    assert {line.removeprefix("## ") for line in page.read_text().splitlines() if line.startswith("## ")} == FINDINGS


def test_torch_negative_scale_under_causal() -> None:
    import torch

    q, k, v = torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 2, 1), torch.tensor([4.0, 1.0]).reshape(1, 1, 2, 1)
    function = torch.nn.functional.scaled_dot_product_attention
    for scale in (-0.7, 0.0):
        assert function(q, k, v, is_causal=True, scale=scale).isnan().all()
        assert function(q, k, v, attn_mask=torch.tensor([[True, False]]), scale=scale).item() == 4.0
    verdict = verdict_of("peers:torch_sdpa_negative_scale", "out_agrees_with_the_oracle")
    assert verdict.status == FAILED
    assert "nan" in verdict.reason
    arrays = {name: tensor.numpy() for name, tensor in (("q", q), ("k", k), ("v", v))}
    case = Case("attention", arrays, {"causal": "top_left", "scale": -0.7})
    subject = open_subject("peers:torch_sdpa_flash", "attention", in_process=True)
    assert agreement("out").judge(Trial(operation_named("attention"), subject, case)).failed


def test_torch_flash_lse_of_an_empty_row() -> None:
    verdict = verdict_of("peers:torch_sdpa_flash", "lse_agrees_with_the_oracle")
    assert verdict.status == FAILED
    assert "is 0, wanted -inf" in verdict.reason


@pytest.mark.parametrize("lengths", ["x[:, :, :0], x, x", "x, x[:, :, :0], x[:, :, :0]"])
def test_torch_flash_dies_on_a_length_of_0(lengths: str) -> None:
    code = f"import torch; x = torch.ones(1, 1, 1, 1); torch.ops.aten._scaled_dot_product_flash_attention_for_cpu({lengths})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == -signal.SIGFPE


def test_onnxruntime_float64_attention() -> None:
    q, k, v = np.ones((1, 1, 1, 2)), np.array([1.0, 2.0, 0.0, 0.0]).reshape(1, 1, 2, 2), np.array([1.0, 0.0]).reshape(1, 1, 2, 1)
    got = onnxruntime_attention.standard(q, k, v, causal=None).item()
    assert 2.0**-30 < abs(got - 1 / (1 + np.exp(-3 / np.sqrt(2)))) < 2.0**-24     # between a roundoff of float32 and one of float64
    assert verdict_of("peers:onnxruntime_attention_float64", "out_agrees_with_the_oracle").status == FAILED


def test_onnxruntime_mask_not_broadcast() -> None:
    x, mask = np.ones((1, 1, 2, 1), np.float32), np.ones((1, 1, 1, 2), bool)
    with pytest.raises(Exception, match="inconsistent q_sequence_length"):
        onnxruntime_attention._run("Attention", "", 24, (x, x, x, mask), {}, outputs=1)


def test_onnxruntime_nan_in_padding() -> None:
    k, v = np.zeros((1, 1, 2, 8), np.float32), np.repeat(np.array([1.0, np.nan], np.float32), 8).reshape(1, 1, 2, 8)
    padded = {"kv_lengths": np.array([1])}
    assert np.isnan(onnxruntime_attention.standard(k[:, :, :1], k, v, causal=None, **padded)).all()
    assert (onnxruntime_attention.grouped_query(k[:, :, :1], k, v, causal="bottom_right", **padded) == 1.0).all()
    declare = subject("attention", dtypes=("float32",), causal=(None,), refuses=("empty", "negative_scale"))
    verdict = verdict_of(declare(copy_of(onnxruntime_attention.standard)), "equal_scores_average_exactly")
    assert verdict.status == FAILED
    assert "nan" in verdict.reason


def test_onnxruntime_gqa_blind_row() -> None:
    def blind(dtype: str, keys: int, causal: str | None) -> float:
        q, k, bias = np.ones((1, 1, 1, 8), dtype), np.ones((1, 1, keys, 8), dtype), np.full((1, 1, 1, keys), -np.inf, dtype)
        return float(onnxruntime_attention.grouped_query_bias(q, k, k, causal=causal, bias=bias)[0, 0, 0, 0])

    assert blind("float32", 2, "bottom_right") == 0.0
    for dtype, keys, causal in (("float32", 1, "bottom_right"), ("float32", 2, None), ("float16", 2, "bottom_right")):
        assert np.isnan(blind(dtype, keys, causal))
    verdict = verdict_of("peers:onnxruntime_gqa_bias", "rows_that_see_nothing_are_empty")
    assert verdict.status == FAILED
    assert "nan, wanted 0" in verdict.reason


def column(*values: float, dtype: str = "float32") -> Any:
    return np.array(values, dtype).reshape(1, 1, -1, 1)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_onnxruntime_finite_mask(dtype: str) -> None:
    large = {"float16": 200.0, "float32": 1.5e19}[dtype]
    q, k, v = column(large, dtype=dtype), column(-large, large, dtype=dtype), column(1.0, 2.0, dtype=dtype)
    first, options = np.array([True, False]).reshape(1, 1, 1, 2), {"scale": 1.0}
    hidden = [onnxruntime_attention._run("Attention", "", opset, (q, k, v, first), options, outputs=1)[0].item() for opset in (23, 24, 25)]
    assert hidden == [2.0, 2.0, 1.0]
    assert onnxruntime_attention.standard(q, k, v, causal="top_left", scale=1.0).item() == 2.0
    by_bias: dict[str, Any] = {"causal": None, "bias": np.where(first, 0, -np.inf).astype(dtype)}
    by_length: dict[str, Any] = {"causal": None, "kv_lengths": np.array([1])}
    for right in (by_bias, by_length, {"causal": "top_left", "window": (0, 0)}):
        assert onnxruntime_attention.standard(q, k, v, scale=1.0, **right).item() == 1.0
    if dtype == "float32":                                                      # MultiHeadAttention widens float16
        assert onnxruntime_attention.multi_head(np.repeat(q, 2, axis=2), k, v, causal="top_left", scale=1.0)[0, 0, 0, 0] == 2.0
    undeclared = subject("attention", dtypes=(dtype,), causal=(None, "top_left"), refuses=("empty", "negative_scale"),
                         conventions={"nonfinite_behind_mask": "spread"})  # fmt: skip
    verdict = verdict_of(undeclared(copy_of(onnxruntime_attention.standard)), "hidden_keys_have_no_weight_beside_low_scores")
    assert verdict.status == FAILED
    assert "is -1, wanted 1" in verdict.reason


@pytest.mark.parametrize(("low", "dtype"), [(-104.0, "float32"), (-800.0, "float64")])
def test_onnxruntime_logsumexp_behind_minus_infinity(low: float, dtype: str) -> None:
    from oracles.properties.peers.calls.softmax import onnxruntime_log_sum_exp

    row = np.array([[-np.inf, low]], dtype)
    assert onnxruntime_log_sum_exp(row) == -np.inf
    assert onnxruntime_log_sum_exp(row[:, ::-1].copy()) == low
    assert onnxruntime_log_sum_exp(row[0]) == low


def test_onnxruntime_mha_last_query() -> None:
    function, zeros = onnxruntime_attention.multi_head, column(0.0, 0.0, 0.0)
    assert function(zeros[:, :, :1], zeros[:, :, :2], column(1, 3), causal="top_left").ravel().tolist() == [2.0]
    assert function(zeros[:, :, :2], zeros, column(1, 3, 5), causal="top_left").ravel().tolist() == [1.0, 3.0]
    verdict = verdict_of("peers:onnxruntime_mha_top_left", "equal_scores_average_exactly")
    assert verdict.status == FAILED
    assert "top_left" in verdict.case


def test_onnxruntime_mha_blind_row() -> None:
    x, v, bias = column(1.0, 1.0), column(1.0, 2.0), np.array([-np.inf, 0.0], np.float32).reshape(1, 1, 1, 2)
    assert onnxruntime_attention.multi_head_bias(x, x, v, causal="top_left", bias=bias).ravel().tolist() == [2.0, 2.0]
    assert np.isnan(onnxruntime_attention.multi_head_bias(x, x, v, causal=None, bias=bias - np.inf)).all()
    assert (onnxruntime_attention.multi_head_padding(x, x, v, causal=None, kv_lengths=np.array([0])) == 1.5).all()


def test_onnx_reference_broadcast_mask() -> None:
    zeros, v, mask = column(0.0, 0.0), column(1.0, 3.0), np.ones((1, 1, 1, 2), bool)
    types = tuple((name, array.dtype.name) for name, array in (("q", zeros), ("k", zeros), ("v", v), ("seen", mask)))
    evaluator = onnx_reference._evaluator((("is_causal", 1),), types)

    def answer(seen: Any) -> Any:
        return evaluator.run(None, {"q": zeros, "k": zeros, "v": v, "seen": seen})[0].ravel().tolist()

    assert answer(mask) == [1.0, 1.0]
    assert answer(np.repeat(mask, 2, axis=2)) == [1.0, 2.0]


def test_onnx_reference_float64_scale() -> None:
    q, k = column(1.0, dtype="float64"), column(1.0, 0.0, dtype="float64")
    given, left_out = (onnx_reference.attention(q, k, k, causal=None, scale=scale)[0].item() for scale in (2.0, None))
    assert 2.0**-30 < abs(given - 1 / (1 + np.exp(-2))) < 2.0**-24                # between a roundoff of float32 and one of float64
    assert abs(left_out - 1 / (1 + np.exp(-1))) < 2.0**-52
    assert verdict_of("peers:onnx_reference_float64", "out_agrees_with_the_oracle").status == FAILED


def test_jax_nan_in_padding() -> None:
    import jax.numpy as jnp

    x, v = jnp.zeros((1, 2, 1, 1)), jnp.array([1.0, jnp.nan]).reshape(1, 2, 1, 1)
    out, _ = jax_attention.attention(x[:, :1], x, v, causal=None, kv_lengths=jnp.array([1]))
    assert jnp.isnan(out).all()


def test_jax_blind_row() -> None:
    import jax.numpy as jnp

    x, v = jnp.zeros((1, 2, 1, 1)), jnp.array([1.0, 3.0]).reshape(1, 2, 1, 1)
    hidden, first = jnp.zeros((1, 1, 1, 2), bool), jnp.array([True, False]).reshape(1, 1, 1, 2)
    blind = {"mask": hidden}, {"bias": jnp.where(hidden, 0.0, -jnp.inf)}, {"bias": jnp.where(first, -jnp.inf, 0.0), "mask": first}
    by_mask, by_bias, by_both = (jax_attention.attention_bias(x[:, :1], x, v, causal=None, **options)[0].item() for options in blind)
    assert by_mask == 2.0
    assert np.isnan(by_bias)
    assert by_both == 3.0


def test_jax_float16_on_a_cpu() -> None:
    import jax
    import jax.numpy as jnp

    x = jnp.zeros((1, 1, 1, 1), jnp.float16)
    assert jax.nn.dot_product_attention(x, x, x).item() == 0.0
    with pytest.raises(ValueError, match="F16_F16_F32"):
        jax.jit(jax.nn.dot_product_attention)(x, x, x)


def test_torch_flex_without_keys() -> None:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    x = torch.ones(1, 2, 2, 8)
    with pytest.raises(IndexError, match="non-zero size"):
        flex_attention(x, x[:, :, :0], x[:, :, :0])
    code = (
        "import torch; from torch.nn.attention.flex_attention import flex_attention; x = torch.ones(1, 2, 2, 8)\n"
        "torch.compile(flex_attention, dynamic=False)(x[:, :, :0], x, x)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == -signal.SIGFPE


def test_torch_softmax_off_the_last_axis() -> None:
    import torch

    x = torch.tensor([[0.0], [-2.0]], dtype=torch.bfloat16)
    assert torch.softmax(x, 0)[1, 0].item() == 0.11962890625
    assert torch.softmax(x.T.contiguous(), 1)[0, 1].item() == 0.119140625


def test_jax_pallas_more_queries_than_keys() -> None:
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.gpu.attention import mha

    two, one = jnp.ones((1, 2, 1, 16), jnp.float32), jnp.ones((1, 1, 1, 16), jnp.float32)
    with jax_pallas._narrow_types():
        assert jnp.isnan(mha(two, one, one, None, causal=True, interpret=True)).all()
        assert (mha(two, two, two, None, causal=True, interpret=True) == 1.0).all()


def test_jax_pallas_64_bit_types() -> None:
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.gpu.attention import mha

    x = jnp.ones((1, 2, 1, 16), jnp.float32)
    with jax.enable_x64(True), pytest.raises(TypeError, match="same dtypes, got int32, int64"):
        mha(x, x, x, None, causal=True, interpret=True)


def test_jax_decode_of_16_bits() -> None:
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.gpu.decode_attention import gqa

    q, k = jnp.zeros((1, 1, 16), jnp.float16), jnp.zeros((1, 2048, 1, 16), jnp.float16)
    with jax_pallas._narrow_types():
        assert jnp.isinf(gqa(q, k, jnp.full_like(k, 40), interpret=True)).all()
        assert (gqa(q, k, jnp.full_like(k, 1), interpret=True) == 1.0).all()


def test_jax_decode_of_one_key() -> None:
    import jax.numpy as jnp

    q, k = jnp.zeros((1, 1, 1, 16), jnp.float32), jnp.zeros((1, 32, 1, 16), jnp.float32)
    out, _ = jax_pallas.decode(q, k, jnp.full_like(k, 4.0), causal=None, kv_lengths=np.array([1]))
    assert (out == np.float32(4.0) / (np.float32(1.0) + np.finfo(np.float32).eps)).all()
    assert (out < 4.0).all()


def test_jax_tpu_flash_blind_row() -> None:
    import jax.numpy as jnp

    x = jnp.ones((1, 128, 1, 64), jnp.float32)
    v = x * jnp.arange(128, dtype=jnp.float32)[None, :, None, None]
    bias = np.zeros((1, 1, 128, 128), np.float32)
    bias[0, 0, 0], bias[0, 0, 1, :2] = -np.inf, -np.inf
    out = np.asarray(jax_pallas.tpu_flash_scaled_bias(x, x, v, causal="top_left", bias=jnp.asarray(bias)))[0, :3, 0, 0]
    assert np.isnan(out[0])
    assert 64.0 < out[1] < 65.0                                                 # row 1 sees no key, and what it gives are keys 2 to 127
    assert out[2] == 1.0


@pytest.mark.parametrize(("call", "keys", "options"), [
    ("mha", 32, {"causal": "top_left"}), ("tpu_flash", 128, {"causal": "top_left"}),
    ("decode", 32, {"causal": None, "kv_lengths": np.array([8])}),               # of the first of its two parts, half is hidden
])  # fmt: skip
def test_jax_pallas_finite_mask(call: str, keys: int, options: dict[str, Any]) -> None:
    import jax.numpy as jnp

    first = jnp.arange(64) == 0
    q = jnp.full((1, 1 if call == "decode" else keys, 1, 64), 1.4e19, jnp.float32) * first
    sign = jnp.where(jnp.arange(keys) < (8 if call == "decode" else 1), -1.0, 1.0)[None, :, None, None]
    v = jnp.broadcast_to(-sign, (1, keys, 1, 64)).astype(jnp.float32)            # 1 where the first query sees, -1 where it does not
    answer = getattr(jax_pallas, call)(q, (1.4e19 * sign * first).astype(jnp.float32), v, scale=1.0, **options)
    out = answer[0] if isinstance(answer, tuple) else answer
    assert np.asarray(out)[0, 0, 0, 0] < -0.99


def test_jax_splash_blind_row() -> None:
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    def answer(Lq: int, offset: int) -> Any:
        q, k = jnp.ones((1, Lq, 64)), jnp.ones((1, 128, 64))
        mask = masks.MultiHeadMask([masks.CausalMask((Lq, 128), offset)])
        sizes = kernels.BlockSizes(block_q=128, block_kv=128, block_kv_compute=128)
        kernel = kernels.make_splash_mha(mask, block_sizes=sizes, interpret=True, head_shards=1, q_seq_shards=1)
        return np.asarray(kernel(q, k, k * jnp.arange(128.0)[None, :, None]))[0, :, 0]

    with jax_pallas._narrow_types():
        assert answer(128, -1)[:2].tolist() == [63.5, 0.0]
        assert np.isnan(answer(256, -128)[:128]).all()
