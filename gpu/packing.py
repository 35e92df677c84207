"""Packing: kernel arguments made to fit the C++ parameters, the one way for both back ends. What does not fit is refused by name.

A bare Python float given to a `float` parameter would reach a device as a double: nothing is passed on that was not converted here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# C++ type: (NumPy dtypes of an array that it may point to, the dtype of a scalar). Raw bits of bfloat16 come as uint16.
TYPES: dict[str, tuple[tuple[str, ...], str | None]] = {
    "float": (("float32",), "float32"),
    "double": (("float64",), "float64"),
    "__half": (("float16",), "float16"),
    "__nv_bfloat16": (("bfloat16", "uint16"), None),
    "bool": (("bool",), "bool"),
    "char": (("int8",), "int8"),
    "signed char": (("int8",), "int8"),
    "unsigned char": (("uint8",), "uint8"),
    "short": (("int16",), "int16"),
    "unsigned short": (("uint16",), "uint16"),
    "int": (("int32",), "int32"),
    "unsigned": (("uint32",), "uint32"),
    "long long": (("int64",), "int64"),
    "unsigned long long": (("uint64",), "uint64"),
}
# Vector types: the type of their parts and their number. They are taken by pointer only.
VECTORS = {
    f"{stem}{n}": (part, n)
    for stem, part in (("float", "float"), ("int", "int"), ("uint", "unsigned"), ("double", "double"), ("longlong", "long long"))
    for n in (2, 4)
} | {"__half2": ("__half", 2), "__nv_bfloat162": ("__nv_bfloat16", 2)}
OTHER_NAMES = {
    "half": "__half", "half2": "__half2", "nv_bfloat16": "__nv_bfloat16", "nv_bfloat162": "__nv_bfloat162", "unsigned int": "unsigned",
    "long": "long long", "unsigned long": "unsigned long long", "size_t": "unsigned long long", "long int": "long long",
    "long long int": "long long", "int8_t": "signed char", "uint8_t": "unsigned char", "int16_t": "short", "uint16_t": "unsigned short",
    "int32_t": "int", "uint32_t": "unsigned", "int64_t": "long long", "uint64_t": "unsigned long long",
}  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel: its C++ type without const, and whether it is a pointer, to memory that it may not write."""

    name: str
    type: str
    pointer: bool = False
    const: bool = False

    def __str__(self) -> str:
        return f"{'const ' * self.const}{self.type}{'*' * self.pointer}"

    @property
    def code(self) -> str:
        """The type as the compiled kernel tells it, for comparison: c or p of a pointer, then kind and bytes, such as cf4, i8."""
        kind = "v" if self.type == "void" else _code(self.type)
        return ("c" if self.const else "p") * self.pointer + kind


def _code(cpp: str) -> str:
    if cpp in VECTORS:
        part, n = VECTORS[cpp]
        return f"x{n * int(_code(part)[1:])}"
    if cpp in ("__half", "__nv_bfloat16"):
        return "f2" if cpp == "__half" else "b2"
    dtype = np.dtype(TYPES[cpp][1])
    return f"{'u' if dtype.kind == 'b' else dtype.kind}{dtype.itemsize}"


def pack(kernel: str, parameters: Sequence[Parameter], args: Sequence[Any]) -> list[Any]:
    """The arguments as arrays of the right dtype, NumPy scalars of the right dtype, and None for null pointers.

    >>> pack("scale", [Parameter("x", "float", pointer=True), Parameter("by", "float")], [np.ones(3, np.float32), 2])
    [array([1., 1., 1.], dtype=float32), np.float32(2.0)]

    Raises TypeError for a wrong number or type, ValueError for an array that is not contiguous or a number out of range.
    """
    if len(args) != len(parameters):
        wanted = ", ".join(f"{p} {p.name}" for p in parameters)
        raise TypeError(f"{kernel}: got {len(args)} arguments; want {len(parameters)}: {wanted}")
    return [_array(i, p, a) if p.pointer else _number(i, p, a) for i, (p, a) in enumerate(zip(parameters, args))]


def _array(index: int, parameter: Parameter, given: Any) -> Any:
    if given is None:
        return None
    title = f"argument {index} '{parameter.name}' is a {parameter}"
    if not hasattr(given, "dtype") or not hasattr(given, "flags") or isinstance(given, np.generic):
        raise TypeError(f"{title}: got {_what(given)}; want an array, or None for a null pointer")
    part, count = VECTORS.get(parameter.type, (parameter.type, 1))
    if part != "void" and given.dtype.name not in TYPES[part][0]:
        raise TypeError(f"{title}: got {_what(given)}; want {' or '.join(TYPES[part][0])}")
    if not given.flags.c_contiguous:
        raise ValueError(f"{title}: got an array with strides {given.strides}; want a C-contiguous one")
    if given.size % count:
        raise ValueError(f"{title}: got {given.size} numbers; want a multiple of {count}")
    return given


def _number(index: int, parameter: Parameter, given: Any) -> Any:
    title = f"argument {index} '{parameter.name}' is {'an' if parameter.type[0] in 'iu' else 'a'} {parameter}"
    if parameter.type not in TYPES or TYPES[parameter.type][1] is None:
        raise TypeError(f"{title}, which cannot be passed by value; want a pointer, or float")
    dtype = np.dtype(TYPES[parameter.type][1])
    if isinstance(given, np.ndarray) or not isinstance(given, bool | int | float | np.bool_ | np.integer | np.floating):
        raise TypeError(f"{title}: got {_what(given)}")
    fractional = isinstance(given, float | np.floating)
    if dtype.kind == "b":
        if not isinstance(given, bool | np.bool_):
            raise TypeError(f"{title}: got {_what(given)}; want True or False")
    elif dtype.kind in "iu":
        if fractional:
            raise TypeError(f"{title}: got {_what(given)}; want a whole number")
        limits = np.iinfo(dtype)
        if not limits.min <= int(given) <= limits.max:
            raise ValueError(f"{title}: got {int(given)}; want {limits.min} to {limits.max}")
    else:
        with np.errstate(over="ignore"):
            overflows = math.isfinite(given) and not np.isfinite(dtype.type(given))
        if overflows:
            raise ValueError(f"{title}: got {given}; want at most {np.finfo(dtype).max} in size")
    return dtype.type(given)


def _what(given: Any) -> str:
    if hasattr(given, "dtype") and hasattr(given, "flags") and not isinstance(given, np.generic):
        return f"{'an' if given.dtype.name[0] in 'iu' else 'a'} {given.dtype.name} array"
    if isinstance(given, bool | int | float | np.number | np.bool_):
        return f"the {type(given).__name__} {given}"
    return f"a {type(given).__name__}"
