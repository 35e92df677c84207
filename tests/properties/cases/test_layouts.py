"""Layouts: the values and the shape stay, whatever the memory looks like; and kernels get the shapes that cases have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from oracles.properties import check
from oracles.properties.cases.layouts import LAYOUTS, laid_out

KERNEL = """
import numpy as np
from oracles import reference

def balance_loss_backward(probs, ids, dloss):
    assert dloss.shape == (), dloss.shape
    return reference.balance_loss_backward(probs, ids, dloss).astype(probs.dtype)

def quantized_matmul(x, q, scale, *, x_scale, bias=None):
    assert {scale.ndim, x_scale.ndim} <= {0, 1}
    if scale.ndim == x_scale.ndim == 0:
        raise NotImplementedError("two scalars")
    return reference.quantized_matmul(x, q, scale, x_scale=x_scale, bias=bias).astype(x_scale.dtype)
"""


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_and_shape_stay(layout: str) -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    np.testing.assert_array_equal(laid_out(x, layout), x, strict=True)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 3)])
def test_a_contiguous_array_keeps_its_axes(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape[::-1], np.float32).T
    view = laid_out(x, "contiguous")
    assert (view.shape, view.flags.c_contiguous) == (shape, True)


def test_kernels_get_scalar_arguments_without_axes(tmp_path: Path) -> None:
    """From the case through the worker's pipe to the kernel: (), never (1,)."""
    path = tmp_path / "kernels.py"
    path.write_text(KERNEL)
    assert check("balance_loss_backward", f"{path}:balance_loss_backward", budget="quick").held
    refused = check("quantized_matmul", f"{path}:quantized_matmul", budget="quick")
    assert "two scalars" in str(refused.to_json())
