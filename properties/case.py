"""Case: the named arrays and options of one call, and where they came from. What is done with it is the checker's business."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import safetensors_file
from .array_lists import gathered
from .safetensors_file import Array
from .signatures import SIGNATURES
from .strides import in_elements, strided_copy

# What an option may be: a number, a name, a pair such as a window, None, or a record of named numbers such as a scaling of RoPE.
Plain = None | bool | int | float | str
Option = Plain | tuple[int | None, ...] | Mapping[str, Plain]


@dataclass(frozen=True)
class Case:
    """One call of one operation.

    operation: its name. arrays: argument name -> array, in the dtype the subject is to receive. options: argument
    name -> scalar, string, tuple or None. origin: how the case was made, for the report. notes: facts about the arrays
    that a law may rely on, such as `{"poison": 1e30}`.
    """

    operation: str
    arrays: Mapping[str, Array]
    options: Mapping[str, Option]
    origin: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Arrays and options together, as keyword arguments of the oracle; the arrays of a list as one argument."""
        together = {**self.arrays, **self.options}
        return gathered(together, SIGNATURES[self.operation].lists) if self.operation in SIGNATURES else together

    def with_arrays(self, **arrays: Array) -> Case:
        """The same case with some arrays exchanged or added.

        An array in plain C order takes on the memory order of the one it replaces, where the shape is the same: in another
        order a library may choose another kernel, and sums another order, so that bits could not be compared.
        """
        return replace(self, arrays={**self.arrays, **{name: _in_the_order_of(self.arrays.get(name), new) for name, new in arrays.items()}})

    def with_options(self, **options: Option) -> Case:
        """The same case with some options exchanged or added."""
        return replace(self, options={**self.options, **options})

    @property
    def hash(self) -> str:
        """16 hexadecimal digits of the SHA-256 of what the subject receives; strides, origin and notes do not enter."""
        digest = hashlib.sha256(json.dumps([self.operation, _to_json(self.options)], sort_keys=True).encode())
        for name in sorted(self.arrays):
            array = self.arrays[name]
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()[:16]

    def save(self, path: Path, extra: Mapping[str, Array] | None = None) -> None:
        """Write the case as one safetensors file, atomically. `extra` arrays (expected values, say) travel along."""
        safetensors_file.write(path, *self.to_tensors(extra))

    def to_tensors(self, extra: Mapping[str, Array] | None = None) -> tuple[dict[str, Array], dict[str, str]]:
        """The case as the tensors and metadata of a safetensors file."""
        metadata = {
            "operation": self.operation,
            "options": json.dumps(_to_json(self.options)),
            "origin": self.origin,
            "notes": json.dumps(_to_json(self.notes)),
            "arguments": json.dumps(list(self.arrays)),
            "strides": json.dumps({name: in_elements(array) for name, array in self.arrays.items()}),
        }
        return {**self.arrays, **(extra or {})}, metadata

    @classmethod
    def load(cls, path: Path) -> tuple[Case, dict[str, Array]]:
        """Read a case written by `save`: the case and the extra arrays. Raises ValueError for any other file."""
        try:
            return cls.from_tensors(*safetensors_file.read(path))
        except KeyError as error:
            raise ValueError(f"path: {path} holds no saved case ({error} is missing); want a case.safetensors of a failure") from None

    @classmethod
    def from_tensors(cls, tensors: dict[str, Array], metadata: Mapping[str, str]) -> tuple[Case, dict[str, Array]]:
        """The inverse of `to_tensors`; arrays get the strides back that they had. Raises KeyError for other tensors."""
        strides = json.loads(metadata["strides"])
        arrays = {name: strided_copy(tensors.pop(name), strides[name]) for name in json.loads(metadata["arguments"])}
        options, notes = (_from_json(json.loads(metadata[key])) for key in ("options", "notes"))
        return cls(metadata["operation"], arrays, options, metadata["origin"], notes), tensors


def _in_the_order_of(old: Array | None, new: Array) -> Array:
    ordered = old is not None and old.shape == new.shape and old.flags.c_contiguous is False and new.flags.c_contiguous
    return strided_copy(new, in_elements(old)) if old is not None and ordered else new


def _to_json(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as JSON: tuples become lists, floats their exact hexadecimal text, records say that they are one."""
    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {"record": _to_json(value)}
        return {"hex": value.hex()} if isinstance(value, float) else list(value) if isinstance(value, tuple) else value

    return {name: plain(value) for name, value in options.items()}


def _from_json(options: Mapping[str, Any]) -> dict[str, Any]:
    def revive(value: Any) -> Any:
        if isinstance(value, dict):
            return _from_json(value["record"]) if "record" in value else float.fromhex(value["hex"])
        return tuple(value) if isinstance(value, list) else value

    return {name: revive(value) for name, value in options.items()}
