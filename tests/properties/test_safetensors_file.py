"""Tensor files: canonical bytes, readable by the safetensors library, and every corruption found."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors

from oracles.properties.safetensors_file import DTYPES, dumps, loads, read, write

TENSORS = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.array([1, 2], np.int8), "scalar": np.array(0.1),
           "none": np.zeros((0, 4), np.float16)}  # fmt: skip
METADATA = {"who": "me", "ä": "ü", "empty": ""}


def file_of(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def tensor(start: int, end: int, *, dtype: str = "U8", shape: list[Any] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - start] if shape is None else shape, "data_offsets": [start, end]}


CORRUPT = {
    "nothing": b"",
    "half a length": b"\0\0\0",
    "a header longer than the file": struct.pack("<Q", 100) + b"{}",
    "a header that is no JSON": file_of(b"{not json"),
    "a header that is no UTF-8": file_of(b"\xff\xfe"),
    "a header nested too deeply": file_of(b"[" * 100_000),
    "a header that is a list": file_of([]),
    "a header that is a number": file_of(7),
    "metadata that are a list": file_of({"__metadata__": ["x"]}),
    "metadata with a number": file_of({"__metadata__": {"x": 1}}),
    "a tensor that is a number": file_of({"t": 3}),
    "a tensor without dtype": file_of({"t": {"shape": [1], "data_offsets": [0, 1]}}, b"x"),
    "a tensor without shape": file_of({"t": {"dtype": "U8", "data_offsets": [0, 1]}}, b"x"),
    "a tensor without offsets": file_of({"t": {"dtype": "U8", "shape": [1]}}, b"x"),
    "an unknown dtype": file_of({"t": tensor(0, 1, dtype="C64")}, b"x"),
    "a dtype that is a list": file_of({"t": tensor(0, 1) | {"dtype": "F99"}}, b"x"),
    "a negative size": file_of({"t": tensor(0, 1, shape=[-1, -1])}, b"x"),
    "a size that is text": file_of({"t": tensor(0, 1, shape=["1"])}, b"x"),
    "a size that is a fraction": file_of({"t": tensor(0, 1, shape=[1.0])}, b"x"),
    "a size that is a boolean": file_of({"t": tensor(0, 1, shape=[True])}, b"x"),
    "three offsets": file_of({"t": tensor(0, 1) | {"data_offsets": [0, 1, 1]}}, b"x"),
    "more bytes than the shape": file_of({"t": tensor(0, 2, shape=[1])}, b"xy"),
    "fewer bytes than the shape": file_of({"t": tensor(0, 1, shape=[2])}, b"x"),
    "offsets the wrong way round": file_of({"t": tensor(1, 0, shape=[0])}, b"x"),
    "offsets past the end": file_of({"t": tensor(0, 2)}, b"x"),
    "tensors that overlap": file_of({"a": tensor(0, 2), "b": tensor(1, 3)}, b"xyz"),
    "a hole between tensors": file_of({"a": tensor(0, 1), "b": tensor(2, 3)}, b"xyz"),
    "a hole in front": file_of({"a": tensor(1, 2)}, b"xy"),
    "bytes left over": file_of({"a": tensor(0, 1)}, b"xy"),
    "bytes but no tensors": file_of({}, b"x"),
}


@pytest.mark.parametrize("fault", CORRUPT)
def test_a_corrupt_file_is_a_value_error_that_speaks_of_data(fault: str) -> None:
    with pytest.raises(ValueError, match="data:"):
        loads(CORRUPT[fault])


def test_every_truncation_is_found() -> None:
    data = dumps(TENSORS, METADATA)
    for length in range(len(data)):
        with pytest.raises(ValueError, match="data:"):
            loads(data[:length])


def test_the_bytes_do_not_depend_on_the_order_of_insertion() -> None:
    forwards = dumps(TENSORS, METADATA)
    assert dumps(dict(reversed(TENSORS.items())), dict(reversed(METADATA.items()))) == forwards


def test_the_bytes_do_not_depend_on_strides() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert dumps({"x": np.asfortranarray(x)}) == dumps({"x": x})


@pytest.mark.parametrize("tag", DTYPES)
def test_every_dtype_comes_back_bit_for_bit(tag: str) -> None:
    pattern = np.arange(256, dtype=np.uint8) if tag != "BOOL" else np.arange(256, dtype=np.uint8) % 2
    x = pattern.view(DTYPES[tag]).reshape(2, -1)                                # NaN payloads and subnormals among them
    back = loads(dumps({"x": x}))[0]["x"]
    assert (back.dtype, back.shape, back.tobytes()) == (x.dtype, x.shape, x.tobytes())
    assert back.flags.writeable


@pytest.mark.parametrize("tensors", [{}, TENSORS], ids=["nothing", "several"])
def test_tensors_and_metadata_come_back(tensors: dict[str, Any]) -> None:
    back, metadata = loads(dumps(tensors, METADATA))
    assert metadata == METADATA
    assert {n: (a.dtype, a.shape, a.tobytes()) for n, a in back.items()} == {n: (a.dtype, a.shape, a.tobytes()) for n, a in tensors.items()}


def test_the_safetensors_library_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write(path, TENSORS, METADATA)
    with safetensors.safe_open(path, framework="numpy") as file:
        assert file.metadata() == METADATA
        assert {name: file.get_tensor(name).tobytes() for name in file.keys()} == {n: a.tobytes() for n, a in TENSORS.items()}  # noqa: SIM118
        assert file.get_tensor("b").shape == (2, 3)


def test_it_reads_what_the_safetensors_library_writes(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "x.safetensors"
    save_file(TENSORS, path, METADATA)
    tensors, metadata = read(path)
    assert metadata == METADATA
    assert {n: a.tobytes() for n, a in tensors.items()} == {n: a.tobytes() for n, a in TENSORS.items()}


def test_every_tensor_is_aligned_to_its_elements() -> None:
    data = dumps(TENSORS, METADATA)
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert all(header[name]["data_offsets"][0] % array.itemsize == 0 for name, array in TENSORS.items())


def test_a_dtype_that_safetensors_does_not_know_is_refused() -> None:
    with pytest.raises(TypeError, match="tensors: got 'x' of dtype complex64; want one of float64"):
        dumps({"x": np.zeros(2, np.complex64)})


def test_a_tensor_named_as_the_metadata_is_refused() -> None:
    with pytest.raises(ValueError, match="tensors: got one named '__metadata__'"):
        dumps({"__metadata__": np.zeros(1)})


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"nonsense that is long enough")
    with pytest.raises(ValueError, match=r"x\.safetensors: data:"):
        read(path)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.safetensors"
    write(path, {"x": np.zeros(1)})
    before = path.read_bytes()

    def fails(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(OSError, match="no space left"):
        write(path, {"x": np.ones(1)})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]
