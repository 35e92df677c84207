"""Traces: exact cases of what is discrete, as JSON that any language reads. One file holds the calls on one function or object.

    {"operation", "case", "arguments", "calls": [{"call", "arguments", "answer"} or {"call", "arguments", "raises"}]}

`arguments` make the object, and are empty for a function, whose only call bears its name. Numbers that are no integers stand as exact
hexadecimal text, {"hex": "0x1.8p+1"}; arrays as {"dtype", "shape", "values"} in C order; bytes as {"bytes": "00ff"}; records as
{"record": {…}}. Every answer is exact: nothing in a trace lies near a tie.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from oracles.reference import FloatFormat


@dataclass(frozen=True)
class Step:
    """One call, what it is given by name, and its answer; `raises` is the name of an exception instead of one."""

    call: str
    arguments: Mapping[str, Any]
    answer: Any = None
    raises: str = ""


@dataclass(frozen=True)
class Trace:
    """The calls on one function or object, in order."""

    operation: str
    case: str
    arguments: Mapping[str, Any]
    steps: tuple[Step, ...]

    def answered(self, play: Callable[[Trace], list[Step]]) -> Trace:
        """The same calls with the answers that `play` gives."""
        return replace(self, steps=tuple(play(self)))

    @property
    def questions(self) -> Trace:
        """The same calls without an answer."""
        return replace(self, steps=tuple(Step(step.call, step.arguments) for step in self.steps))


def dumps(trace: Trace) -> bytes:
    """Canonical bytes of a trace."""
    calls = [{"call": step.call, "arguments": _encoded(step.arguments)["record"],
              **({"raises": step.raises} if step.raises else {"answer": _encoded(step.answer)})} for step in trace.steps]  # fmt: skip
    content = {"operation": trace.operation, "case": trace.case, "arguments": _encoded(trace.arguments)["record"], "calls": calls}
    text = json.dumps(content).replace('[{"call"', '[\n {"call"').replace(', {"call"', ',\n {"call"')
    return (text + "\n").encode()


def loads(data: bytes) -> Trace:
    """The inverse of `dumps`. Raises ValueError where the bytes are no trace."""
    try:
        content = json.loads(data)
        steps = [Step(one["call"], _decoded({"record": one["arguments"]}), _decoded(one.get("answer")), one.get("raises", ""))
                 for one in content["calls"]]  # fmt: skip
        return Trace(content["operation"], content["case"], _decoded({"record": content["arguments"]}), tuple(steps))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"data: {type(error).__name__}: {error}; want a trace") from None


def _encoded(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        numbers = value.reshape(-1).tolist() if value.dtype.kind in "biu" else [float(x).hex() for x in value.reshape(-1)]
        return {"dtype": value.dtype.name, "shape": list(value.shape), "values": numbers}
    if isinstance(value, Mapping):
        return {"record": {name: _encoded(one) for name, one in value.items()}}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, float):
        return {"hex": value.hex()}
    return [_encoded(one) for one in value] if isinstance(value, list | tuple) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "hex" in value:
        return float.fromhex(value["hex"])
    if "bytes" in value:
        return bytes.fromhex(value["bytes"])
    if "record" in value:
        return {name: _decoded(one) for name, one in value["record"].items()}
    return _array(value["dtype"], value["values"]).reshape(value["shape"])


def _array(dtype: str, values: list[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    if dtype == "bool" or dtype.startswith(("int", "uint")):
        return np.asarray(values, dtype=dtype)
    return np.asarray(FloatFormat(dtype).cast(np.asarray([float.fromhex(x) for x in values], dtype=np.float64)))
