"""Rows and blocks of bitsandbytes on a CPU, on PyTorch's arrays.

Nothing but the libraries is imported, inside the functions, so that this file runs alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def bitsandbytes_rows(x: Any, *, axis: Any = None) -> dict[str, Any]:
    """bitsandbytes.functional.int8_vectorwise_quant: rows of float16, their absolute maxima, of which scales are a 127th."""
    import torch
    functional: Any = import_module("bitsandbytes.functional")

    if axis != 0:
        raise NotImplementedError("int8_vectorwise_quant has one scale a row")
    if not bool((x != 0).any(dim=1).all()):
        raise NotImplementedError("a row of zeros, whose maximum is returned as 0")
    q, absmax, _ = functional.int8_vectorwise_quant(x.contiguous())
    return {"q": q, "scale": absmax.float() / 127, "zero": torch.zeros(len(absmax), dtype=torch.int64)}


def bitsandbytes_blockwise(codes: Any, absmax: Any, *, block: int, codebook: Any) -> Any:
    """bitsandbytes.functional.dequantize_blockwise, on 8-bit indices into a table of 256; blocks of whole rows."""
    import torch
    functional: Any = import_module("bitsandbytes.functional")

    if codes.shape[-1] % block:
        raise NotImplementedError("a short last block of each row")
    table = torch.zeros(256)
    table[: len(codebook)] = codebook
    packed, maxima = codes.to(torch.uint8).contiguous(), absmax.reshape(-1).contiguous()
    return functional.dequantize_blockwise(packed, absmax=maxima, code=table, blocksize=block)
