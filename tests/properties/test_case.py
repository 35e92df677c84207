"""Cases: saved and read again they are the same call; the hash knows what the subject receives and nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles.properties.case import Case
from oracles.properties.safetensors_file import write

Q = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
OPTIONS: dict[str, Any] = {"causal": None, "window": (None, 3), "scale": 0.1, "dropout_p": 5e-324, "softcap": 30.0, "axis": -1,
                           "flag": True, "name": "bottom_right", "large": 1.7976931348623157e308}  # fmt: skip
CASE = Case("attention", {"q": Q, "mask": np.array([[True, False]])}, OPTIONS, origin="by hand", notes={"poison": "nan", "top": 1e30})

CHANGED = {
    "operation": Case("softmax", CASE.arrays, OPTIONS),
    "one bit of an array": CASE.with_arrays(q=np.where(Q == 5, np.nextafter(np.float32(5), np.float32(6)), Q)),
    "the sign of a zero": CASE.with_arrays(q=np.where(Q == 0, np.float32(-0.0), Q)),
    "dtype": CASE.with_arrays(q=Q.view(np.int32)),
    "shape": CASE.with_arrays(q=Q.reshape(1, 2, 4, 3)),
    "an array more": CASE.with_arrays(extra=np.zeros(1)),
    "an array's name": Case("attention", {"k": Q, "mask": CASE.arrays["mask"]}, OPTIONS),
    "an option's last bit": CASE.with_options(scale=float(np.nextafter(0.1, 1))),
    "an option more": CASE.with_options(extra=1),
    "None for 0": CASE.with_options(causal=0),
    "a side of a window": CASE.with_options(window=(3, None)),
    "an integer for a float": CASE.with_options(softcap=30),
}
UNCHANGED = {
    "strides": CASE.with_arrays(q=np.asfortranarray(Q)),
    "order of arrays": Case("attention", dict(reversed(CASE.arrays.items())), OPTIONS),
    "order of options": Case("attention", CASE.arrays, dict(reversed(OPTIONS.items()))),
    "origin": Case("attention", CASE.arrays, OPTIONS, origin="elsewhere"),
    "notes": Case("attention", CASE.arrays, OPTIONS, notes={"poison": None}),
}


@pytest.mark.parametrize("what", CHANGED)
def test_the_hash_changes_with(what: str) -> None:
    assert CHANGED[what].hash != CASE.hash


@pytest.mark.parametrize("what", UNCHANGED)
def test_the_hash_does_not_change_with(what: str) -> None:
    assert UNCHANGED[what].hash == CASE.hash


def test_the_hash_is_the_same_in_every_process() -> None:
    received = b'["attention", {"scale": {"hex": "0x1.0000000000000p-1"}}]' + b"q float64 (3,)" + np.arange(3.0).tobytes()
    assert Case("attention", {"q": np.arange(3.0)}, {"scale": 0.5}).hash == hashlib.sha256(received).hexdigest()[:16]


def saved(case: Case, folder: Path, extra: dict[str, Any] | None = None) -> tuple[Case, dict[str, Any]]:
    case.save(folder / "case.safetensors", extra)
    return Case.load(folder / "case.safetensors")


def test_a_saved_case_comes_back_with_all_it_has(tmp_path: Path) -> None:
    back, extra = saved(CASE, tmp_path)
    assert (back.operation, back.options, back.origin, back.notes) == (CASE.operation, OPTIONS, "by hand", CASE.notes)
    assert {name: type(value) for name, value in back.options.items()} == {name: type(value) for name, value in OPTIONS.items()}
    assert list(back.arrays) == list(CASE.arrays)
    assert back.hash == CASE.hash
    assert extra == {}


def test_extra_arrays_travel_beside_the_case(tmp_path: Path) -> None:
    back, extra = saved(CASE, tmp_path, {"wanted.out": np.array([np.nan, np.inf])})
    assert list(extra) == ["wanted.out"]
    assert np.isnan(extra["wanted.out"][0])
    assert back.hash == CASE.hash


VIEWS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda x: x,
    "axes exchanged": lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2),
    "every second row": lambda x: np.repeat(x, 2, axis=2)[:, :, ::2],
    "backwards": lambda x: x[:, :, ::-1],
    "an offset": lambda x: np.concatenate([x, x], axis=-1)[..., 2:6],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
def test_strides_come_back(view: str, dtype: str, tmp_path: Path) -> None:
    x = VIEWS[view](Q.astype(np.dtype(getattr(ml_dtypes, dtype, dtype))))
    array = saved(CASE.with_arrays(q=x), tmp_path)[0].arrays["q"]
    assert array.strides == x.strides
    assert array.tobytes() == x.tobytes()


def test_a_file_that_holds_no_case_is_a_value_error(tmp_path: Path) -> None:
    write(tmp_path / "x.safetensors", {"q": Q})
    with pytest.raises(ValueError, match=r"x\.safetensors holds no saved case"):
        Case.load(tmp_path / "x.safetensors")


def test_arguments_are_arrays_and_options_together() -> None:
    assert set(CASE.arguments()) == {"q", "mask", *OPTIONS}


def test_a_record_among_the_options_comes_back_bit_for_bit(tmp_path: Path) -> None:
    case = CASE.with_options(scaling={"kind": "yarn", "factor": 0.1, "original_max_position_embeddings": 4096, "truncate": False})
    back = saved(case, tmp_path)[0]
    assert back.options == case.options
    assert back.hash == case.hash != CASE.hash
