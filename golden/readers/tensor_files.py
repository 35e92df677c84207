"""Reads and writes safetensors files with NumPy alone. bfloat16, which NumPy does not have, is read as float32 and rounded when written."""

import json
import struct
from typing import Any

import numpy as np

TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
         "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?"}  # fmt: skip


def read(path: str) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """Three dictionaries: the tensors by name, their types by name (such as "BF16"), the metadata."""
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    metadata = header.pop("__metadata__", {})
    tensors, types = {}, {}
    for name, about in header.items():
        start, end = about["data_offsets"]
        array = np.frombuffer(body[start:end], TYPES[about["dtype"]]).reshape(about["shape"])
        tensors[name] = _from_bfloat16(array) if about["dtype"] == "BF16" else array
        types[name] = about["dtype"]
    return tensors, types, metadata


def write(path: str, tensors: dict[str, Any], types: dict[str, str]) -> None:
    """The tensors, each rounded to the type that `types` has for its name."""
    header, body = {}, b""
    for name, array in tensors.items():
        stored = _to_bfloat16(array) if types[name] == "BF16" else np.asarray(array).astype(TYPES[types[name]])
        data = stored.tobytes()
        header[name] = {"dtype": types[name], "shape": list(stored.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


def _from_bfloat16(bits: Any) -> Any:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _to_bfloat16(array: Any) -> Any:
    """The upper half of float32, rounded to nearest, ties to even."""
    single = np.asarray(array, np.float32)
    bits = np.atleast_1d(single).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) >> 16
    return np.where(np.isnan(single), 0x7FC0, rounded.reshape(single.shape)).astype("<u2")
