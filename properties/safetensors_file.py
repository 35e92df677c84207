"""Tensor files: a canonical safetensors writer and a reader for NumPy and ml_dtypes arrays.

The same tensors and metadata always give the same bytes, whatever order they come in: the safetensors library keeps
metadata in a hash map, so its bytes vary, and its NumPy reader knows no 8-bit floats. Any safetensors reader reads these.
Format: https://huggingface.co/docs/safetensors, 8 bytes of header length, a JSON header, the data.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn), "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"), "U32": np.dtype("<u4"), "U16": np.dtype("<u2"), "U8": np.dtype("u1"), "BOOL": np.dtype("?"),
}  # fmt: skip
_TAGS = {dtype: tag for tag, dtype in DTYPES.items()}


def dumps(tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> bytes:
    """Canonical bytes: names sorted, widest elements first so that every tensor is aligned, compact sorted JSON.

    Raises TypeError for a dtype that safetensors does not know, ValueError for a tensor named as the metadata are.
    """
    if "__metadata__" in tensors:
        raise ValueError("tensors: got one named '__metadata__'; want another name, this one is the format's own")
    header: dict[str, Any] = {"__metadata__": {k: metadata[k] for k in sorted(metadata)}} if metadata else {}
    blobs, offset = [], 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name)):
        array = tensors[name]
        if array.dtype not in _TAGS:
            raise TypeError(f"tensors: got {name!r} of dtype {array.dtype}; want one of {', '.join(str(d) for d in _TAGS)}")
        data = array.tobytes()                                                  # C order, whatever the strides
        header[name] = {"dtype": _TAGS[array.dtype], "shape": list(array.shape), "data_offsets": [offset, offset + len(data)]}
        blobs.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(blobs)


def loads(data: bytes) -> tuple[dict[str, Array], dict[str, str]]:
    """The tensors (writable copies) and the metadata of a safetensors file.

    Raises ValueError where the bytes are not one: truncated, overlapping or uncovered data, unknown dtype, wrong sizes.
    """
    if len(data) < 8:
        raise ValueError(f"data: got {len(data)} bytes; want a safetensors file, at least 8")
    (length,) = struct.unpack("<Q", data[:8])
    if length > len(data) - 8:
        raise ValueError(f"data: got a header length of {length} in {len(data)} bytes; want a whole safetensors file")
    metadata, entries = _header(data[8 : 8 + length])
    tensors, spans, body = {}, [], data[8 + length :]
    for name, (tag, shape, start, end) in entries.items():
        if not 0 <= start <= end <= len(body) or end - start != math.prod(shape) * DTYPES[tag].itemsize:
            raise ValueError(f"data: tensor {name!r} of shape {shape} claims bytes {start}..{end} of {len(body)}")
        spans.append((start, end))
        tensors[name] = np.frombuffer(body[start:end], DTYPES[tag]).reshape(shape).copy()
    spans.sort()
    borders = [0, *itertools.chain.from_iterable(spans), len(body)]
    if any(a != b for a, b in zip(borders[::2], borders[1::2])):
        raise ValueError("data: tensors overlap or leave bytes uncovered; want a whole safetensors file")
    return tensors, metadata


def _header(text: bytes) -> tuple[dict[str, str], dict[str, tuple[str, list[int], int, int]]]:
    """The metadata, and dtype tag, shape, start and end of every tensor. Raises ValueError for anything else than that."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"data: the safetensors header is not JSON ({error})") from None
    if not isinstance(header, dict):
        raise ValueError(f"data: the safetensors header is {type(header).__name__}; want an object")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("data: the metadata hold something else than strings; want an object of strings")
    entries = {}
    for name, entry in header.items():
        fields = entry if isinstance(entry, dict) else {}
        tag, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
        if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
            raise ValueError(f"data: tensor {name!r} has shape {shape} and data_offsets {offsets}; want sizes, and two offsets")
        if tag not in DTYPES:
            raise ValueError(f"data: tensor {name!r} has dtype {tag}; want one of {', '.join(DTYPES)}")
        entries[name] = (tag, shape, offsets[0], offsets[1])
    return metadata, entries


def _are_sizes(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)


def write(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> None:
    """Write `dumps` to path, all or nothing: into a temporary file beside it, then renamed."""
    data = dumps(tensors, metadata)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """`loads` of a file; a ValueError names the file."""
    try:
        return loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
