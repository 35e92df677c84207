"""PyTorch's stream in NumPy: its bytes are pinned by hash here, and compared with PyTorch itself where it is installed."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from oracles.reference.torch_stream import TorchStream

# SHA-256 of what torch.manual_seed(0), randn(256, 256), randn(256, 64) gave under PyTorch 2.13.0 on a CPU with AVX2.
DRAWN = {
    (256, 256): "33e5e1492edd7110d7f1a65492cbc485924cb2dc9343099bd01121af5e47a0e7",
    (256, 64): "b8e48953087f7427ab20f8b2d5880039a662bd6b3351f4523c928d91d6836379",
}


def test_the_arrays_of_the_published_table_have_the_bytes_pytorch_drew() -> None:
    stream = TorchStream(0)
    assert {shape: hashlib.sha256(stream.randn(*shape).tobytes()).hexdigest() for shape in DRAWN} == DRAWN


def test_another_seed_and_another_order_give_other_bytes() -> None:
    assert TorchStream(1).randn(16).tobytes() != TorchStream(0).randn(16).tobytes()
    stream = TorchStream(0)
    stream.randn(256, 64)
    assert hashlib.sha256(stream.randn(256, 256).tobytes()).hexdigest() != DRAWN[256, 256]


def test_uniforms_are_multiples_of_two_to_the_minus_24_in_zero_one() -> None:
    u = TorchStream(3).rand(1000)
    assert ((u >= 0) & (u < 1) & (u * 2**24 == np.rint(u * 2**24))).all()


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed: got -1; want a whole number >= 0"):
        TorchStream(-1)


@pytest.mark.peers
@pytest.mark.parametrize("seed", [0, 7, 2**31, 2**32 + 5])
def test_every_length_is_pytorchs_bit_for_bit_in_one_sequence(seed: int) -> None:
    import torch

    torch.manual_seed(seed)
    stream = TorchStream(seed)
    for n in (5, 20, 3, 15, 16, 17, 31, 32, 33, 1000, 4099, 65536, 1):
        assert torch.randn(n).numpy().tobytes() == stream.randn(n).tobytes()
        assert torch.rand(n).numpy().tobytes() == stream.rand(n).tobytes()
