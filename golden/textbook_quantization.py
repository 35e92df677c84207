"""The textbook formulas of quantization, one element at a time, in mpmath: the block of an element is listed whole for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .textbook_attention import mp

Element = Callable[[str, tuple[int, ...]], Any]


def quantize(arguments: Mapping[str, Any]) -> Element:
    """scale, zero and q of the block an element, or a scale, belongs to."""
    x = np.asarray(arguments["x"]).astype(np.float64)
    symmetric, levels = arguments.get("symmetric", True), 2 ** arguments["bits"]
    low, high = (1 - levels // 2, levels // 2 - 1) if symmetric else (0, levels - 1)

    def of_block(block: tuple[int, ...]) -> tuple[Any, int]:
        if "scale" in arguments:
            return mp().mpf(float(arguments["scale"][block])), int(arguments["zero"][block]) if "zero" in arguments else 0
        held = [mp().mpf(float(x[place])) for place in np.ndindex(*x.shape) if _block(place, arguments) == block]
        most, least = max([*held, mp().mpf(0)]), min([*held, mp().mpf(0)])
        s = max(most, -least) / high if symmetric else (most - least) / high
        s = s if s else mp().mpf(1)
        return s, 0 if symmetric else min(max(_nearest_even(-least / s), 0), high)

    def element(name: str, index: tuple[int, ...]) -> Any:
        s, z = of_block(index if name != "q" else _block(index, arguments))
        if name == "scale":
            return s
        return mp().mpf(z if name == "zero" else min(max(_nearest_even(mp().mpf(float(x[index])) / s) + z, low), high))

    return element


def dequantize(arguments: Mapping[str, Any]) -> Element:
    """q s - zero s."""
    def element(name: str, index: tuple[int, ...]) -> Any:
        block = _block(index, arguments)
        s = mp().mpf(float(arguments["scale"][block]))
        return int(arguments["q"][index]) * s - int(arguments["zero"][block]) * s

    return element


def dequantize_blockwise(arguments: Mapping[str, Any]) -> Element:
    """(codebook[code] scale) absmax + codebook[code] offset."""
    scale = mp().mpf(float(arguments["absmax_scale"])) if "absmax_scale" in arguments else mp().mpf(1)
    offset = mp().mpf(float(arguments.get("absmax_offset", 0.0)))

    def element(name: str, index: tuple[int, ...]) -> Any:
        value = mp().mpf(float(arguments["codebook"][arguments["codes"][index]]))
        a = mp().mpf(float(arguments["absmax"][(*index[:-1], index[-1] // arguments["block"])]))
        return value * scale * a + value * offset

    return element


def quantized_matmul(arguments: Mapping[str, Any]) -> Element:
    """sum over c of (x_scale x_nc) (scale q_cm), and the bias."""
    scales = {name: np.asarray(arguments[name]).reshape(-1) for name in ("scale", "x_scale")}

    def element(name: str, index: tuple[int, ...]) -> Any:
        n, m = index
        xs, s = (mp().mpf(float(one[i] if len(one) > 1 else one[0])) for one, i in ((scales["x_scale"], n), (scales["scale"], m)))
        total = mp().fsum((xs * int(a)) * (s * int(b)) for a, b in zip(arguments["x"][n], arguments["q"][:, m]))
        return total + (mp().mpf(float(arguments["bias"][m])) if "bias" in arguments else 0)

    return element


def _block(place: tuple[int, ...], arguments: Mapping[str, Any]) -> tuple[int, ...]:
    if arguments.get("group") is not None:
        return (*place[:-1], place[-1] // arguments["group"])
    return (0,) if arguments.get("axis") is None else (place[arguments["axis"]],)


def _nearest_even(x: Any) -> int:
    return int(mp().nint(x))
