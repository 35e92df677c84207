"""Declaration: what a subject says of itself, by decorator or by its signature. How it is then called stands in `calling`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from . import conventions as convention_table
from .arithmetic import Arithmetic
from .coverage import Coverage
from .near_names import near_names
from .signatures import SIGNATURES, Signature

Function = TypeVar("Function", bound=Callable[..., Any])
ATTRIBUTE = "__oracles_declarations__"
PROMISES = ("deterministic", "batch_invariant", "validates_input")
REFUSABLE = ("grouped", "value_dim", "cross_lengths", "empty", "negative_scale", "lists")
LAYOUTS = ("bhld", "blhd")
FORMATS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")  # what a tensor file holds
FRAMEWORKS = ("numpy", "torch", "jax", "cupy")
BOOLEAN_CAUSAL = "is_causal"


class UsageError(ValueError):
    """The subject or the command was given wrongly; nothing was judged."""


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What a subject says of itself: see `subject` for the meaning of each field."""

    operation: str
    name: str
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    conventions: Mapping[str, str] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Coverage)
    layout: str = "bhld"
    framework: str = "numpy"
    rename: Mapping[str, str] = field(default_factory=dict)
    by_position: bool = False
    causal_is_boolean: bool = False
    buffers: tuple[str, ...] = ()
    in_place: tuple[str, ...] = ()
    promises: tuple[str, ...] = ()
    version: str = ""
    unset: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, for the worker's answer and the report."""
        data = asdict(self)
        data["coverage"]["arguments"] = sorted(self.coverage.arguments)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Declaration:
        """The inverse of `to_json`."""
        values = dict(data)
        coverage = _tuples(values["coverage"])
        coverage["only"] = tuple((option, tuple(taken)) for option, taken in coverage["only"])
        values["coverage"] = Coverage(**{**coverage, "arguments": frozenset(coverage["arguments"])})
        values["arithmetic"] = Arithmetic(**values["arithmetic"])
        return cls(**_tuples(values))


def subject(
    operation: str,
    *,
    layout: str = "bhld",
    dtypes: Iterable[str] | None = None,
    causal: Iterable[str | None] | None = None,
    head_dims: Iterable[int] | None = None,
    length_multiple: int = 1,
    refuses: Iterable[str] = (),
    arithmetic: Arithmetic | str = "default",
    conventions: Mapping[str, str] | None = None,
    framework: str = "numpy",
    rename: Mapping[str, str] | None = None,
    buffers: Iterable[str] = (),
    in_place: Iterable[str] = (),
    only: Mapping[str, Iterable[str]] | None = None,
    promises: Iterable[str] = (),
    name: str | None = None,
    version: str = "",
) -> Callable[[Function], Function]:
    """Declare a function as an implementation of an operation; the function itself is returned unchanged.

    >>> @subject("attention", layout="blhd", dtypes=["bfloat16"], causal=["bottom_right"], head_dims=[64, 128],
    ...          arithmetic=Arithmetic(probabilities="bfloat16", truncating=True))
    ... def my_attention(q, k, v, *, causal, scale=None): ...

    layout      order of axes of q, k, v, out: "bhld" (B, H, L, D) or "blhd" (B, L, H, D)
    dtypes      input formats it takes; undeclared: float32 and float64
    causal      alignments it takes, of None, "bottom_right", "top_left"; undeclared: None and "bottom_right".
                A boolean argument (`is_causal`, or `causal` with a boolean default) must declare one: it gets True for it
    head_dims   sizes D and Dv it takes; undeclared: any.   length_multiple: lengths are multiples of this
    refuses     of "grouped" (Hq != Hkv), "value_dim" (Dv != D), "cross_lengths" (Lq != Lk), "empty" (a length 0),
                "negative_scale", "lists" (of arrays, where one array may stand for them): what it does not take
    arithmetic  an `Arithmetic`, or the name of a preset: the roundings it may make
    conventions see `oracles.properties.conventions.CONVENTIONS`
    framework   arrays it takes: "numpy", "torch", "jax" or "cupy"
    rename      {argument of the contract: argument of the function}
    buffers     result names it takes as output buffers, which come filled with NaN, instead of returning them
    in_place    results that it writes into the arguments of the same name instead of returning them: caches, parameters
    only        {option: the values it takes} for options of a few values, such as only={"pairing": ["half"]}, and for the kinds
                of records, such as only={"scaling": ["none", "yarn"]}; undeclared: all of them
    promises    of "deterministic", "batch_invariant", "validates_input": laws that bind only those who promise

    Raises ValueError for an unknown operation, name or value.
    """
    named = Arithmetic.preset(arithmetic) if isinstance(arithmetic, str) else arithmetic

    def declare(function: Function) -> Function:
        declaration = of_function(
            function, operation, rename=rename or {}, buffers=tuple(buffers), causal=None if causal is None else tuple(causal), name=name,
            only=only or {},
        )  # fmt: skip
        limits: dict[str, Any] = {feature: False for feature in _among(refuses, REFUSABLE, "refuses")}
        if dtypes is not None:
            limits["dtypes"] = _some(_among(dtypes, FORMATS, "dtypes"), "dtypes")
        if head_dims is not None:
            limits["head_dims"] = _some(tuple(_positive(n, "head_dims") for n in head_dims), "head_dims")
        _positive(length_multiple, "length_multiple")
        finished = replace(
            declaration,
            layout=_one_of(layout, LAYOUTS, "layout"),
            framework=_one_of(framework, FRAMEWORKS, "framework"),
            coverage=replace(declaration.coverage, length_multiple=length_multiple, **limits),
            arithmetic=named,
            conventions=convention_table.declared(conventions or {}, operation),
            in_place=_among(in_place, _both_ways(signature_of(operation)), "in_place"),
            promises=_among(promises, PROMISES, "promises"),
            version=version,
        )
        setattr(function, ATTRIBUTE, (*getattr(function, ATTRIBUTE, ()), finished))
        return function

    return declare


def declaration_of(function: Callable[..., Any], operation: str | None) -> Declaration:
    """The declaration a function carries for an operation, or else what its signature says.

    Raises UsageError where it declares only other operations, or the operation can not be told.
    """
    carried: tuple[Declaration, ...] = getattr(function, ATTRIBUTE, ())
    fitting = [d for d in carried if operation in (None, d.operation)]
    if fitting:
        return fitting[-1]
    if operation is None:
        raise UsageError(f"OPERATION: not given, and {_title(function)} declares none; want one of `oracles list`")
    if carried:
        raise UsageError(f"{_title(function)}: declared for {', '.join(d.operation for d in carried)}; want {operation}")
    return of_function(function, operation)


def of_function(
    function: Callable[..., Any], operation: str, *, rename: Mapping[str, str] | None = None, buffers: tuple[str, ...] = (),
    causal: tuple[str | None, ...] | None = None, name: str | None = None, only: Mapping[str, Iterable[str]] | None = None,
) -> Declaration:  # fmt: skip
    """What the signature of a function says of it as an implementation of an operation."""
    contract = signature_of(operation)
    title = name or _title(function)
    parameters = _parameters(function, title)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    mapping = dict(rename or {})
    for argument in mapping:
        if argument not in contract.arguments:
            raise UsageError(f"rename: {argument!r} is no argument of {operation}; want one of {', '.join(contract.arguments)}")
        if mapping[argument] not in named and not takes_any:
            raise UsageError(f"rename[{argument!r}]: got {mapping[argument]!r}, which {title} does not take; it takes {', '.join(named)}")
    if "causal" in contract.arguments and "causal" not in named and BOOLEAN_CAUSAL in named:
        mapping.setdefault("causal", BOOLEAN_CAUSAL)
    takes = [a for a in contract.arguments if mapping.get(a, a) in named or takes_any]
    by_position = not set(contract.required) <= set(takes)
    if by_position:
        _check_positions(parameters, contract, title, operation)
    _check_unknown(parameters, contract, mapping, buffers, by_position, title, operation)
    boolean = "causal" in takes and _is_boolean(parameters, mapping.get("causal", "causal"))
    alignments = _alignments(causal, boolean, "causal" in takes, title)
    values = _values_taken(only or {}, contract, takes, title, operation)
    coverage = Coverage(arguments=frozenset(a for a in takes if a in contract.optional), causal=alignments, only=values)
    return Declaration(
        operation=operation, name=title, coverage=coverage, rename=mapping, by_position=by_position, causal_is_boolean=boolean,
        buffers=_buffers(buffers, contract), conventions=convention_table.declared({}, operation),
        unset=_never_set(parameters, contract, mapping, buffers, by_position),
    )  # fmt: skip


def signature_of(operation: str) -> Signature:
    """The contract of an operation. Raises UsageError where there is none of that name."""
    if operation not in SIGNATURES:
        raise UsageError(f"OPERATION: got {operation!r}; want one of `oracles list`, such as {near_names(operation, tuple(SIGNATURES))}")
    return SIGNATURES[operation]


def _alignments(causal: tuple[str | None, ...] | None, boolean: bool, taken: bool, title: str) -> tuple[str | None, ...]:
    if not taken:
        return (None,)
    if causal is None:
        if boolean:
            raise UsageError(
                f"causal: {title} takes a boolean and does not say which alignment True means; "
                'declare it: @subject(..., causal=["bottom_right"]) (FlashAttention) or ["top_left"] (PyTorch), or --causal NAME'
            )
        return (None, "bottom_right")
    if boolean and len([a for a in causal if a is not None]) > 1:
        raise UsageError(f"causal: got {list(causal)} for a boolean argument of {title}; want one alignment, or a function for each")
    for alignment in causal:
        _one_of(alignment, (None, "bottom_right", "top_left"), "causal")
    return (None, *(a for a in causal if a is not None)) if boolean else causal


def _values_taken(
    only: Mapping[str, Iterable[str]], contract: Signature, takes: list[str], title: str, operation: str
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What `only` says, checked; an option without a default that the function does not take must be told there."""
    known = {**contract.choices, **contract.kinds}
    for option in only:
        if option not in known:
            raise UsageError(f"only: {option!r} is no option of few values of {operation}; want some of {', '.join(known) or 'none'}")
    values = {option: _some(_among(taken, known[option], f"only[{option!r}]"), f"only[{option!r}]") for option, taken in only.items()}
    for option, choices in contract.choices.items():
        if option not in takes and len(values.get(option, choices)) != 1:
            raise UsageError(f"{option}: {title} does not take it and does not say which it means; declare it: only={{{option!r}: "
                             f"[{choices[0]!r}]}} or --only {option}={choices[0]}, one of {', '.join(choices)}")  # fmt: skip
    return tuple(sorted(values.items()))


def _buffers(names: tuple[str, ...], contract: Signature) -> tuple[str, ...]:
    """Results taken as buffers; one that is an argument too is written in place instead."""
    for name in names:
        if name in _both_ways(contract):
            raise UsageError(f"buffers: got {name!r}, which is an argument too; want in_place=[{name!r}] where it is written to")
    return _among(names, tuple(name for name in contract.results if name not in contract.lists or name in contract.as_array), "buffers")


def _both_ways(contract: Signature) -> tuple[str, ...]:
    """Names that are arguments and results at once."""
    return tuple(name for name in contract.results if name in contract.required and name not in contract.lists)


def _parameters(function: Callable[..., Any], title: str) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        raise UsageError(f"{title}: its signature cannot be read; wrap it in a function with named arguments") from None


def _check_positions(parameters: Mapping[str, inspect.Parameter], contract: Signature, title: str, operation: str) -> None:
    positional = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < len(contract.required) and not any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        wanted = ", ".join(contract.required)
        raise UsageError(f"{title}: takes {', '.join(parameters) or 'nothing'}; want {operation}'s arguments {wanted}")


def _never_set(
    parameters: Mapping[str, inspect.Parameter], contract: Signature, mapping: Mapping[str, str], buffers: tuple[str, ...],
    by_position: bool,
) -> tuple[str, ...]:  # fmt: skip
    """Parameters with a default that no argument of the contract fills: a misspelt option would be one of them."""
    filled = {mapping.get(a, a) for a in contract.arguments} | set(buffers)
    names = [p.name for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return tuple(name for name in (names[len(contract.required) :] if by_position else names) if name not in filled)


def _check_unknown(
    parameters: Mapping[str, inspect.Parameter], contract: Signature, mapping: Mapping[str, str], buffers: tuple[str, ...],
    by_position: bool, title: str, operation: str,
) -> None:  # fmt: skip
    """A parameter without default that no argument of the contract fills would make every call fail."""
    filled = {mapping.get(a, a) for a in contract.arguments} | set(buffers)
    needed = [p.name for p in parameters.values() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if by_position:
        needed = needed[len(contract.required) :]
    unknown = [n for n in needed if n not in filled]
    if unknown:
        raise UsageError(
            f"{title}: needs {', '.join(unknown)}, which {operation} does not have; want a default for it, "
            f"or rename={{ARGUMENT: {unknown[0]!r}}} with one of {', '.join(contract.arguments)}"
        )


def _is_boolean(parameters: Mapping[str, inspect.Parameter], name: str) -> bool:
    parameter = parameters.get(name)
    if parameter is None:
        return False
    return name == BOOLEAN_CAUSAL or isinstance(parameter.default, bool) or parameter.annotation in (bool, "bool")


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _one_of(value: Any, allowed: tuple[Any, ...], argument: str) -> Any:
    if value not in allowed:
        raise UsageError(f"{argument}: got {value!r}; want one of {', '.join(map(str, allowed))}")
    return value


def _positive(n: int, argument: str) -> int:
    if not isinstance(n, int) or n < 1:
        raise UsageError(f"{argument}: got {n!r}; want a whole number from 1 on")
    return n


def _some(values: tuple[Any, ...], argument: str) -> tuple[Any, ...]:
    if not values:
        raise UsageError(f"{argument}: got nothing; want at least one")
    return values


def _among(values: Iterable[str], allowed: tuple[str, ...], argument: str) -> tuple[str, ...]:
    if isinstance(values, str):
        raise UsageError(f"{argument}: got the text {values!r}; want a list, such as [{values!r}]")
    return tuple(_one_of(value, allowed, argument) for value in values)


def _title(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)


