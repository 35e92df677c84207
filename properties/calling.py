"""Calling: one call of a subject with a case, in this process: arguments made to its declaration, results and side effects observed."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from .array_bridge import NotAnArray, to_framework, to_numpy
from .array_lists import gathered, spread, whole_name
from .case import Case
from .declaration import Declaration
from .outcome import MALFORMED, RAISED, REFUSED, RETURNED, Outcome
from .safetensors_file import Array
from .signatures import SIGNATURES
from .strides import in_elements, strided_copy

_SWAPPED = (0, 2, 1, 3)                                                         # (B, H, L, D) <-> (B, L, H, D)


def call(
    function: Callable[..., Any], declaration: Declaration, case: Case, buffer_shapes: Mapping[str, tuple[tuple[int, ...], str]]
) -> Outcome:
    """Call a subject once; never raises for what the subject does.

    buffer_shapes: for each result the subject takes as a buffer, its shape and dtype; it comes filled with NaN.
    """
    given = {name: _laid_out(strided_copy(array, in_elements(array)), name, declaration) for name, array in case.arrays.items()}
    before = {name: array.tobytes() for name, array in given.items()}
    buffers = {name: _laid_out(unwritten(shape, dtype), name, declaration) for name, (shape, dtype) in buffer_shapes.items()}
    try:
        converted = {name: to_framework(array, declaration.framework) for name, array in (given | buffers).items()}
        positional, named = arguments(declaration, converted, case.options)
        returned = function(*positional, **named)
    except NotImplementedError as error:
        return Outcome(REFUSED, message=str(error) or "NotImplementedError")
    except (Exception, SystemExit) as error:                                    # sys.exit in a kernel must not end the checker
        return Outcome(RAISED, message=f"{type(error).__name__}: {error}", traceback="".join(traceback.format_exception(error)[-4:]))
    try:
        outputs = named_results(declaration, returned, {name: converted[name] for name in (*buffers, *declaration.in_place)}, given)
        now = {name: to_numpy(converted[name]) for name in given if name not in declaration.in_place}  # frameworks that copied: their copy
        changed = tuple(name for name in now if now[name].tobytes() != before[name])
    except (NotAnArray, MalformedResult) as error:
        return Outcome(MALFORMED, message=str(error))
    except Exception as error:                                                  # a lazy array whose evaluation fails
        return Outcome(MALFORMED, message=f"what it returned could not be read: {type(error).__name__}: {error}")
    back = SIGNATURES[declaration.operation].handed_back
    pairs = [(name, other) for name in outputs for other in now
             if not (name == other and name in back) and np.shares_memory(outputs[name], now[other])]  # fmt: skip
    shared = tuple(f"{name} with {other}" for name, other in pairs)
    copies = {name: np.array(_laid_out(output, name, declaration)) for name, output in outputs.items()}
    return Outcome(RETURNED, copies, changed=changed, shared=shared)


def arguments(declaration: Declaration, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments in the subject's own names and conventions."""
    given = {**arrays, **{name: _in_its_convention(declaration, name, value) for name, value in options.items()}}
    values = gathered(given, SIGNATURES[declaration.operation].lists)
    positional = [values.pop(name) for name in SIGNATURES[declaration.operation].required] if declaration.by_position else []
    takes = declaration.coverage.arguments | set(SIGNATURES[declaration.operation].required) | set(declaration.buffers)
    return positional, {declaration.rename.get(name, name): value for name, value in values.items() if name in takes}


def _in_its_convention(declaration: Declaration, name: str, value: Any) -> Any:
    if name == "causal" and declaration.causal_is_boolean:
        return value is not None
    if name == "window" and value is not None and declaration.conventions.get("window_counts_current") == "yes":
        return (None if value[0] is None else value[0] + 1, value[1])
    return value


class MalformedResult(ValueError):
    """Returned something that cannot be matched with the results of the operation."""


def named_results(declaration: Declaration, returned: Any, buffers: Mapping[str, Any], given: Iterable[str]) -> dict[str, Array]:
    """The returned value as {result name: array}: one array, a tuple in the contract's order, or a dict by name.

    A result that is a list of arrays comes as a list or tuple; returned alone, as a list, it is the first result; where
    its argument is given as one array, it is one too. Of results that there are only with an argument, a tuple may hold those of the
    arguments given, or all with None where there is none.

    buffers: what the results were written to, where the subject takes them so or writes in place; then what it returns is not looked at.
    """
    signature, given = SIGNATURES[declaration.operation], set(given)
    names, lists = signature.results, tuple(name for name in signature.lists if signature.as_array.get(name) not in given)
    if buffers:
        return {name: to_numpy(array) for name, array in buffers.items()}
    if isinstance(returned, Mapping):
        unknown = [name for name in returned if name not in names and whole_name(name) not in lists]
        if unknown or not returned:
            raise MalformedResult(f"returned a dict with {', '.join(map(repr, unknown)) or 'nothing'}; want some of {', '.join(names)}")
        return _arrays({name: value for name, value in returned.items() if value is not None}, lists)
    if isinstance(returned, tuple | list) and not (isinstance(returned, list) and names[0] in lists):
        if not 1 <= len(returned) <= len(names):
            raise MalformedResult(f"returned {len(returned)} values; want {', '.join(names)}")
        due = tuple(name for name in names if signature.given_with.get(name) in (None, *given))
        named = zip(due if len(returned) == len(due) else names, returned)
        return _arrays({name: value for name, value in named if value is not None}, lists)
    return _arrays({names[0]: returned}, lists)


def unwritten(shape: tuple[int, ...], dtype: str) -> Array:
    """A result buffer as the subject gets it: NaN everywhere, in integers the least number."""
    kind = np.dtype(dtype)
    return np.full(shape, np.iinfo(kind).min if kind.kind in "iu" else False if kind.kind == "b" else np.nan, kind)


def _arrays(results: Mapping[str, Any], lists: tuple[str, ...]) -> dict[str, Array]:
    """Every result as an array, the members of a list by names of their own."""
    apart: dict[str, Any] = {}
    for name, value in results.items():
        if name in lists and not isinstance(value, list | tuple):
            raise MalformedResult(f"{name}: returned {type(value).__name__}; want a list of arrays")
        apart |= spread(name, value) if name in lists else {name: value}
    return {name: _array(name, value) for name, value in apart.items()}


def _array(name: str, value: Any) -> Array:
    try:
        return to_numpy(value)
    except NotAnArray as error:
        raise NotAnArray(f"{name}: {error}") from None


def _laid_out(array: Array, name: str, declaration: Declaration) -> Array:
    """Between (B, H, L, D) and the subject's layout; a contiguous array stays contiguous, a strided one stays a view."""
    if declaration.layout == "bhld" or name not in SIGNATURES[declaration.operation].laid_out or array.ndim != 4:
        return array
    swapped = array.transpose(_SWAPPED)
    return np.ascontiguousarray(swapped) if array.flags.c_contiguous else swapped

