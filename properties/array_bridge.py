"""Array bridge: NumPy arrays to and from the framework a subject works in, bit for bit, bfloat16 included.

A framework is imported only where a subject declared it; the arrays that come back are recognised through `sys.modules`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from .safetensors_file import Array

# Formats that NumPy's DLPack does not carry travel as integers of the same width, relabelled on either side.
_RELABELLED = {"bfloat16": np.int16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8}


class NotAnArray(TypeError):
    """A subject returned something else than an array."""


def to_framework(array: Array, framework: str) -> Any:
    """The array in a framework, a copy that the subject may spoil. Raises ImportError naming the extra where it is missing."""
    if framework == "numpy":
        return array
    module = _load(framework)
    if framework == "jax":
        return module.numpy.asarray(array)
    return (_to_torch if framework == "torch" else _to_cupy)(module, array)


def to_numpy(value: Any) -> Array:
    """The NumPy array in a returned value, of NumPy, PyTorch, JAX, CuPy or anything that speaks DLPack.

    A Python int, a count or a total, is an int64. Raises NotAnArray for what is none: a list, a lazy object, None, a Python float,
    of which nobody knows the format it was computed in.
    """
    if type(value) is int and -(2**63) <= value < 2**63:
        return np.asarray(value, np.int64)
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    for name, convert in _FROM.items():
        module = sys.modules.get(name)
        array_type = getattr(module, {"torch": "Tensor", "jax": "Array", "cupy": "ndarray"}[name], None) if module else None
        if isinstance(array_type, type) and isinstance(value, array_type):
            return convert(value)
    if hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    wanted = "an array or a NumPy number, which has a dtype" if isinstance(value, float) else "an array"
    raise NotAnArray(f"got {_describe(value)}; want {wanted}")


def _load(framework: str) -> Any:
    try:
        module = importlib.import_module(framework)
    except ImportError:
        raise ImportError(f"framework {framework!r} is not installed; want it: pip install 'oracles[{framework}]'") from None
    if framework == "jax":
        module.config.update("jax_enable_x64", True)                            # otherwise float64 becomes float32 silently
        importlib.import_module("jax.numpy")
    return module


def _to_torch(torch: Any, array: Array) -> Any:
    if any(stride < 0 for stride in array.strides):
        array = array.copy()                                                    # PyTorch has no negative strides
    if array.dtype.name in _RELABELLED:
        tensor = torch.from_numpy(array.view(_RELABELLED[array.dtype.name]))
        return tensor.view(getattr(torch, array.dtype.name))
    return torch.from_numpy(array)


def _to_cupy(cupy: Any, array: Array) -> Any:
    if array.dtype.name in _RELABELLED:
        return cupy.asarray(array.view(_RELABELLED[array.dtype.name])).view(array.dtype)
    return cupy.asarray(array)


def _from_torch(tensor: Any) -> Array:
    torch = sys.modules["torch"]
    tensor = tensor.detach().cpu()
    name = str(tensor.dtype).removeprefix("torch.")
    if name in _RELABELLED:
        integers = tensor.view(torch.int16 if name == "bfloat16" else torch.uint8)
        return np.asarray(integers.numpy().view(getattr(ml_dtypes, name)))
    return np.asarray(tensor.resolve_neg().resolve_conj().numpy())


_FROM: dict[str, Callable[[Any], Array]] = {
    "torch": _from_torch,
    "jax": np.asarray,
    "cupy": lambda value: np.asarray(value.get()),
}


def _describe(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}" if value is not None else "None"
