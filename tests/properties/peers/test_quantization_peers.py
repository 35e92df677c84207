"""Quantization and pruning of released libraries, held to the laws; where they differ, and how."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.properties import check
from oracles.properties.declaration import subject
from oracles.properties.peers.calls import quantization as calls
from oracles.properties.report import FAILED, HELD
from oracles.reference import NF4, fp8_quantize, nf4_quantize, prune_magnitude, quantize

CODES = ("answers", "q_agrees_with_the_oracle", "codes_follow_the_returned_scale", "zero_is_exactly_a_code", "halves_round_as_declared",
         "numbers_out_of_range_saturate", "twice_x_has_twice_the_scale", "inputs_stay_untouched")  # fmt: skip
OWN_SCALES = ("answers", "q_agrees_with_the_oracle", "scale_agrees_with_the_oracle", "zero_agrees_with_the_oracle",
              "codes_follow_the_returned_scale", "zero_points_follow_the_returned_scale", "codes_come_back_within_half_a_step",
              "a_block_of_zeros_has_scale_one")  # fmt: skip
NUMBERS = ("answers", "out_agrees_with_the_oracle", "scales_of_two_are_exact", "the_code_of_zero_comes_back_as_zero",
           "codes_and_zero_points_move_together")  # fmt: skip
PRODUCTS = ("answers", "out_agrees_with_the_oracle", "integer_sums_are_exact_past_two_to_24", "a_one_hot_row_reads_its_weights",
            "a_bias_is_added_once_unscaled")  # fmt: skip
HOLDING: dict[tuple[str, str], tuple[str, ...]] = {
    ("quantize", "onnxruntime"): CODES,
    ("dequantize", "onnxruntime"): NUMBERS,
    ("quantized_matmul", "onnxruntime"): PRODUCTS,
    ("quantize", "onnxruntime_dynamic"): OWN_SCALES,
    ("quantize", "torch_quantize"): CODES,
    ("dequantize", "torch_quantize"): NUMBERS,
    ("quantized_matmul", "torch_quantize"): PRODUCTS,
    ("quantize", "torch_fake_quantize"): CODES,
    ("quantize", "torch_dynamic"): OWN_SCALES,
    ("prune_magnitude", "torch_prune"): ("answers", "masks_agrees_with_the_oracle", "as_many_go_as_the_share_says",
                                         "what_stays_is_no_smaller_than_what_goes", "inputs_stay_untouched"),
}  # fmt: skip
BITSANDBYTES = {
    "quantize": ("answers", "q_agrees_with_the_oracle", "scale_agrees_with_the_oracle", "codes_follow_the_returned_scale"),
    "dequantize_blockwise": ("answers", "out_agrees_with_the_oracle", "a_maximum_of_one_reads_the_table"),
}


def assert_held(operation: str, peer: str, laws: tuple[str, ...]) -> None:
    report = check(operation, f"peers:{peer}", budget="quick", laws=laws)
    assert not report.stopped
    assert {verdict.law for verdict in report.verdicts} == set(laws)
    for verdict in report.verdicts:
        assert verdict.status == HELD, f"{verdict.law}: {verdict.reason} {verdict.case}"
        assert verdict.compared > 0
        assert verdict.worst_ratio <= 1


@pytest.mark.peers
@pytest.mark.parametrize(("operation", "peer"), HOLDING)
def test_a_released_library_keeps_the_laws(operation: str, peer: str) -> None:
    assert_held(operation, peer, HOLDING[operation, peer])


@pytest.mark.more_peers
@pytest.mark.parametrize("operation", BITSANDBYTES)
def test_bitsandbytes_keeps_the_laws(operation: str) -> None:
    assert_held(operation, "bitsandbytes", BITSANDBYTES[operation])


@pytest.mark.more_peers
def test_nf4_codes_of_bitsandbytes_are_the_nearest_values() -> None:
    """Two codes a byte, the first in the high half; its table is ours in float32."""
    import torch
    from bitsandbytes import functional

    x = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    packed, state = functional.quantize_4bit(torch.from_numpy(x), blocksize=64, quant_type="nf4")
    codes, absmax = nf4_quantize(x)
    theirs = np.stack([packed.numpy().ravel() >> 4, packed.numpy().ravel() & 15], axis=1).reshape(x.shape)
    assert (state.code.numpy() == NF4.astype(np.float32)).all()
    assert (theirs == codes).all()
    assert (state.absmax.numpy() == absmax.ravel()).all()


@pytest.mark.peers
def test_pytorch_rounds_halves_before_and_after_the_zero_point() -> None:
    """quantize_per_tensor rounds the sum with the zero point to even, fake quantization the quotient alone, in blocks of vectors too."""
    import torch

    for n in (1, 31, 32, 1000):
        half = torch.full((n,), 0.5)
        assert torch.quantize_per_tensor(half, 1.0, 11, torch.quint8).int_repr().unique().tolist() == [12]
        assert (torch.fake_quantize_per_tensor_affine(half, 1.0, 11, 0, 255) + 11).unique().tolist() == [11]

    x = torch.tensor([0.5, 1.5, 2.5])
    assert torch.quantize_per_tensor(x, 1.0, 11, torch.quint8).int_repr().tolist() == [12, 12, 14]
    assert (torch.fake_quantize_per_tensor_affine(x, 1.0, 11, 0, 255) + 11).tolist() == [11, 13, 13]
    assert quantize(x.numpy(), bits=8, symmetric=False, scale=[1.0], zero=[11])[0].tolist() == [11, 13, 13]


@pytest.mark.peers
@pytest.mark.parametrize(("declared", "status"), [({"zero_scale": "any"}, HELD), ({}, FAILED)])
def test_the_scale_of_zeros_must_be_declared_where_it_is_not_1(declared: dict[str, str], status: str) -> None:
    """quantize_per_tensor_dynamic says 0.1."""
    peer = subject("quantize", framework="torch", dtypes=["float32"], only={"bits": ["8"], "symmetric": ["no"]}, refuses=["empty"],
                   conventions={"code_ties": "even_with_zero", **declared})(calls.torch_dynamic)  # fmt: skip
    (verdict,) = check("quantize", peer, budget=0, laws=("a_block_of_zeros_has_scale_one",), in_process=True).verdicts
    assert verdict.status == status


@pytest.mark.peers
def test_pytorch_makes_a_number_of_nan_where_the_oracle_refuses_it() -> None:
    import torch

    assert torch.quantize_per_tensor(torch.full((40,), float("nan")), 1.0, 0, torch.qint8).int_repr().unique().numel() == 1
    with pytest.raises(ValueError, match="x: got nan"):
        quantize([np.nan], bits=8)


def test_block_fp8_is_what_ml_dtypes_rounds_to_from_float32() -> None:
    """Quotients that float32 holds, so that its double rounding from float64 plays no part."""
    import ml_dtypes

    x = np.random.default_rng(1).integers(-448 * 64, 448 * 64 + 1, (3, 128)) / 64.0
    x[:, 0] = 448.0
    q, scale = fp8_quantize(x)
    assert (scale == 1.0).all()
    assert (q == x.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)).all()


# Weights of a trained network; which of them go is judged, not what the accuracy becomes. ----------------------------------------


@pytest.mark.peers
def test_no_layer_of_a_trained_classifier_is_emptied_by_itself_and_masks_stay_through_retraining() -> None:
    """The 2-64-64-2 ReLU classifier of the published run: 4,352 weights, trained, pruned by its quantile rule, and trained on with Adam,
    whose momentum moves pruned weights unless the mask is put on again after each step."""
    import torch

    torch.manual_seed(0)
    x = torch.randn(256, 2)
    labels = (x[:, 0] * x[:, 1] > 0).long()
    model = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    layers = [layer.weight for layer in model if isinstance(layer, torch.nn.Linear)]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    def train(steps: int, masks: Any) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), labels).backward()
            optimizer.step()
            with torch.no_grad():
                for w, mask in zip(layers, masks):
                    w.mul_(torch.from_numpy(mask))

    train(50, [np.ones(tuple(w.shape), bool) for w in layers])
    trained = [w.detach().numpy().copy() for w in layers]
    assert sum(w.size for w in trained) == 4352
    for sparsity in (0.5, 0.8, 0.9, 0.95):
        masks = prune_magnitude(trained, sparsity=sparsity, scope="layer", rule="quantile")
        assert all(mask.any() for mask in masks)
    masks = prune_magnitude(trained, sparsity=0.5, scope="layer", rule="quantile")
    train(50, masks)
    assert all(not w.detach().numpy()[~mask].any() for w, mask in zip(layers, masks))
