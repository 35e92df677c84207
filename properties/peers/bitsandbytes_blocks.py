"""Rows of int8 and values of a table of bitsandbytes, on a CPU.

Address: https://huggingface.co/docs/bitsandbytes/reference/functional
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..arithmetic import Arithmetic
from ..declaration import subject
from .calls import bitsandbytes_blocks as calls
from .installed import copy_of, library_version, versions_text


def library_versions(name: str) -> dict[str, str]:
    """The versions of bitsandbytes and of PyTorch."""
    return {library: library_version(library, extra="bitsandbytes") for library in ("bitsandbytes", "torch")}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """quantize and dequantize_blockwise, declared. Raises UsageError where bitsandbytes is missing.

    It multiplies float16 by 127 / absmax in float32, and returns absmax, a float32 number, of which the scale is a 127th.
    """
    common: dict[str, Any] = {"name": name, "version": versions_text(library_versions(name)), "framework": "torch", "refuses": ("empty",)}
    rows = subject("quantize", only={"bits": ["8"], "symmetric": ["yes"]}, dtypes=("float16",), arithmetic=Arithmetic(out="float32"),
                   **common)(copy_of(calls.bitsandbytes_rows))  # fmt: skip
    return rows, subject("dequantize_blockwise", dtypes=("float32",), **common)(copy_of(calls.bitsandbytes_blockwise))
