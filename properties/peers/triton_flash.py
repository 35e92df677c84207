"""A flash attention kernel of our own under Triton's interpreter: what is held to the laws is the interpreter, and Triton's own library.

Address: https://triton-lang.org/main/programming-guide/chapter-3/debugging.html
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

from ..arithmetic import Arithmetic
from ..declaration import subject
from .installed import library_version, versions_text

# The kernel rounds P to the input's format and keeps everything else in float32. Not declared: bfloat16, on whose bit patterns the
# interpreter computes ("may not work correctly with bfloat16" in the section on its limitations), and float64, which the kernel does not
# keep. Keys beyond kv_lengths are never loaded.
DECLARED: dict[str, Any] = {
    "dtypes": ("float32", "float16"), "causal": (None, "top_left", "bottom_right"),
    "arithmetic": Arithmetic(probabilities="input", tile_min=32),
}  # fmt: skip


def library_versions(name: str) -> dict[str, str]:
    """The version of Triton, imported as its interpreter."""
    os.environ["TRITON_INTERPRET"] = "1"
    return {"triton": library_version("triton", extra="triton")}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """The forward pass, declared. Raises UsageError where Triton is missing."""
    version = versions_text(library_versions(name))
    calls = import_module(f"{__package__}.calls.triton_flash")
    return (subject("attention", name=name, version=version, **DECLARED)(calls.attention),)
