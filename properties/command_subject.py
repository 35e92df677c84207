"""Command subject: a program of any language behind `cmd:`, asked through files.

    PROGRAM in.safetensors out.safetensors

Tensors are named as the arguments; scalars are 0-d tensors (float64, int64); a window is an int64 tensor of two, -1 for no limit;
strings and None stand in the metadata, None as "none", and so do the fields of a record, as `scaling.factor`. The members of a
list of arrays are `grads.0`, `grads.1`, … Results are named as in the contract. A non-zero exit is an error, except 77, which says
that this case is not supported, and is reported as not covered.
"""

from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from . import safetensors_file
from .array_lists import spread
from .declaration import Declaration, UsageError, declaration_of, signature_of, subject
from .safetensors_file import Array

NOT_SUPPORTED = 77                                                              # as in automake's tests
TAKES = ("causal", "scale", "axis")                                             # what a program takes that declares nothing


def command_subject(program: str, operation: str | None, declared: Mapping[str, Any]) -> tuple[Callable[..., Any], Declaration]:
    """The function that runs a program, and its declaration. `declared["takes"]` names the optional arguments it takes.

    Raises UsageError where the operation is not given or the program not found.
    """
    words = shlex.split(program)
    if not words or shutil.which(words[0]) is None:
        raise UsageError(f"SUBJECT: no program {words[0] if words else ''!r}; want cmd:PROGRAM, a file that can be run")
    if operation is None:
        raise UsageError(f"OPERATION: not given; want it, since the program {words[0]} cannot declare itself")
    options = dict(declared)
    named = options.pop("takes", TAKES)
    unknown = [name for name in named if name not in signature_of(operation).optional] if named is not TAKES else []
    if unknown:
        known = ", ".join(signature_of(operation).optional)
        raise UsageError(f"takes: {operation} has no optional argument {', '.join(unknown)}; want some of {known or 'none'}")
    contract = signature_of(operation)
    only = options.get("only") or {}
    if named is TAKES:                                                          # a choice without a default: what is not declared is told
        named = (*TAKES, *(name for name in contract.choices if name not in only))
    takes = [name for name in contract.optional if name in named]
    silent = [name for name in contract.choices if name not in takes and len(only.get(name, ())) != 1]
    if silent:
        raise UsageError(f"takes: {words[0]} is not told {', '.join(silent)} of {operation}; want it there, or only={{...}} with one value")

    def run(**arguments: Any) -> dict[str, Array]:
        return _run(words, operation, arguments)

    declaration = declaration_of(subject(operation, name=Path(words[0]).name, **options)(run), operation)
    causal = declaration.coverage.causal if "causal" in takes else (None,)
    return run, replace(declaration, coverage=replace(declaration.coverage, arguments=frozenset(takes), causal=causal))


def _run(words: list[str], operation: str, arguments: Mapping[str, Any]) -> dict[str, Array]:
    tensors, metadata = to_file(arguments)
    with tempfile.TemporaryDirectory(prefix="oracles-") as folder:
        given, answered = Path(folder) / "in.safetensors", Path(folder) / "out.safetensors"
        safetensors_file.write(given, tensors, {**metadata, "operation": operation})
        process = subprocess.run([*words, str(given), str(answered)], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        said = process.stderr.decode(errors="replace").strip()[-300:]
        if process.returncode == NOT_SUPPORTED:
            raise NotImplementedError(said or f"exit status {NOT_SUPPORTED}")
        if process.returncode:
            raise RuntimeError(f"the program {_ending(process.returncode)}" + (f": {said}" if said else ""))
        if not answered.is_file():
            raise RuntimeError("the program wrote no out.safetensors")
        outputs, _ = safetensors_file.read(answered)
        return outputs


def to_file(arguments: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, str]]:
    """Arguments as the tensors and metadata of the input file."""
    tensors: dict[str, Array] = {}
    metadata: dict[str, str] = {}
    for name, value in arguments.items():
        if isinstance(value, np.ndarray):
            tensors[name] = np.asarray(value, order="C")                        # ascontiguousarray would add an axis to a scalar
        elif isinstance(value, list):
            tensors |= {member: np.asarray(array, order="C") for member, array in spread(name, value).items()}
        elif isinstance(value, Mapping):
            metadata |= {f"{name}.{field}": str(number) for field, number in value.items()}
        elif isinstance(value, tuple):
            tensors[name] = np.array([-1 if side is None else side for side in value], np.int64)
        elif isinstance(value, float | int) and not isinstance(value, bool):
            tensors[name] = np.asarray(value, np.float64 if isinstance(value, float) else np.int64)
        else:
            metadata[name] = "none" if value is None else str(value)
    return tensors, metadata


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exits with status {code}"
