"""Race check: a kernel on small cases of its operation in the emulator's check mode; every fault it found, once."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from oracles.gpu import KernelFault
from oracles.gpu.emulator.faults import Finding
from oracles.gpu.kernel import KERNELS
from oracles.properties.calling import call
from oracles.properties.case import Case
from oracles.properties.declaration import UsageError, declaration_of, subject
from oracles.properties.loading import load
from oracles.properties.operations import operation_named
from oracles.properties.outcome import RAISED, RETURNED

from .user_kernel import emulated_subject, is_kernel

# Our own kernels: the operations whose cases drive them, and the port that launches them.
OWN_KERNELS: dict[str, tuple[tuple[str, str], ...]] = {
    "softmax.cu": (("softmax", "softmax:softmax"), ("log_sum_exp", "softmax:log_sum_exp")),
    "merge_attention.cu": (("merge_attention", "merge_attention:merge_attention"),),
    "flash_forward.cu": (("attention", "flash_attention:flash_attention"), ("attention_packed", "flash_attention:flash_attention_packed")),
    "flash_backward.cu": (
        ("attention_backward", "flash_attention_backward:flash_attention_backward"),
        ("attention_packed_backward", "flash_attention_backward:flash_attention_packed_backward"),
    ),
    "matmul_bf16.cu": (("matmul_bf16", "matmul_bf16:matmul_bf16"),),
    "rope.cu": (("rope", "rope:rope"),),
    "write_kv.cu": (("write_kv", "kv_cache:write_kv"),),
    "paged_decode.cu": (("paged_attention", "paged_attention:paged_attention"),),
    "mla_decode.cu": (("mla_attention", "mla:mla_attention_absorbed"),),
    "sampling.cu": (("filter_probabilities", "sampling:filter_probabilities"), ("sample", "sampling:sample")),
    "speculative_verify.cu": (("speculative_verify", "speculative:speculative_verify"),),
    "quantize.cu": (("quantize", "quantization:quantize"),),
    "matmul_int8.cu": (("quantized_matmul", "quantization:quantized_matmul"),),
    "prune_2_4.cu": (("prune_2_4", "pruning:prune_2_4"),),
    "cross_entropy.cu": (("cross_entropy", "cross_entropy:cross_entropy"),
                         ("cross_entropy_backward", "cross_entropy:cross_entropy_backward")),
    "experts.cu": (("route", "experts:route"), ("moe_layer", "experts:moe_layer")),
    "adamw.cu": (("adamw_step", "adamw:adamw_step"), ("master_weight_step", "adamw:master_weight_step")),
}
IN_PLACE = {"write_kv": ("k_cache", "v_cache")}
GPU_FORMATS = ("float32", "float16", "bfloat16")
MOST_ELEMENTS = 60_000                                                          # of the arrays of a case: check mode is slow


@dataclass(frozen=True)
class RaceReport:
    """What check mode found. cases: how many ran to the end or to a fault; refused: how many the kernel does not take."""

    kernel: str
    cases: int
    refused: int
    findings: tuple[Finding, ...]
    errors: tuple[str, ...]                                                     # other exceptions of the subject

    @property
    def clean(self) -> bool:
        return self.cases > 0 and not self.findings and not self.errors

    def to_json(self) -> dict[str, Any]:
        return {"kernel": self.kernel, "clean": self.clean, "cases": self.cases, "refused": self.refused,
                "findings": [dataclasses.asdict(finding) for finding in self.findings], "errors": list(self.errors)}  # fmt: skip

    def __str__(self) -> str:
        head = f"{self.kernel}: {self.cases} cases in check mode, {self.refused} refused"
        faults = [f"  {finding.kind}: {finding}" for finding in self.findings] + [f"  error: {error}" for error in self.errors]
        return "\n".join([head, *(faults or ["  no faults found" if self.cases else "  nothing ran"])])


def race_check(kernel: str, launch: Path | None, *, operation: str = "attention", cases: int = 12, seed: int | None = None) -> RaceReport:
    """Check FILE.cu:KERNEL by its launch function, or one of our kernels by the name or the path of its file.

    cases: of each operation, the smallest designed ones. seed: of a random schedule; in order without.
    Raises UsageError where there is no such kernel or operation.
    """
    if is_kernel(kernel):
        operation_named(operation)
        function, declaration = load(emulated_subject(kernel, launch, check=True), operation)
        return _run(kernel, [(operation, function, declaration)], cases)
    path = Path(kernel if kernel.endswith(".cu") else f"{kernel}.cu")
    if path.name not in OWN_KERNELS:
        raise UsageError(f"KERNEL: got {kernel!r}; want FILE.cu:KERNEL with --launch, or one of ours: {', '.join(OWN_KERNELS)}")
    folder = path.parent.resolve() if path.is_file() else KERNELS
    jobs = [(name, *_own(name, port, folder, seed)) for name, port in OWN_KERNELS[path.name]]
    return _run(path.name, jobs, cases)


def _own(operation: str, port: str, folder: Path, seed: int | None) -> tuple[Callable[..., Any], Any]:
    """The port as a subject, bound to the emulator's check mode."""
    from oracles.gpu.launching import Backend

    module, name = port.split(":")
    function = getattr(importlib.import_module(f"oracles.gpu.{module}"), name)
    backend = Backend("emulated", schedule="in_order" if seed is None else seed, check=True, kernels=folder)

    def checked(*positional: Any, **named: Any) -> Any:
        return function(*positional, **named, backend=backend)

    checked.__name__ = name
    if operation == "matmul_bf16":
        return checked, None
    return checked, declaration_of(subject(operation, dtypes=GPU_FORMATS, in_place=IN_PLACE.get(operation, ()))(checked), operation)


def _run(title: str, jobs: Sequence[tuple[str, Callable[..., Any], Any]], most: int) -> RaceReport:
    findings: dict[tuple[str, tuple[str, ...]], Finding] = {}
    errors: dict[str, None] = {}
    ran = refused = 0
    for operation, function, declaration in jobs:
        outcomes = _matmul_outcomes(function) if declaration is None else _outcomes(operation, function, declaration, most)
        for fault, error, returned in outcomes:
            ran += bool(returned or fault)
            refused += not (returned or fault or error)
            for finding in fault.findings if fault else ():
                findings.setdefault((finding.kind, finding.places), finding)
            if error and not fault:
                errors[error] = None
    return RaceReport(title, ran, refused, tuple(findings.values()), tuple(errors))


Result = tuple[KernelFault | None, str, bool]                                   # the fault, else what was raised, else whether it returned


def _outcomes(operation: str, function: Callable[..., Any], declaration: Any, most: int) -> list[Result]:
    faults: list[KernelFault] = []

    def remembering(*positional: Any, **named: Any) -> Any:
        try:
            return function(*positional, **named)
        except KernelFault as fault:
            faults.append(fault)
            raise

    source = operation_named(operation).cases()
    results: list[Result] = []
    for case in _small_cases(source, declaration, most):
        faults.clear()
        outcome = call(remembering, declaration, case, {})
        results.append((faults[0] if faults else None, outcome.message if outcome.kind == RAISED else "", outcome.kind == RETURNED))
    return results


def _small_cases(source: Any, declaration: Any, most: int) -> list[Case]:
    """Designed cases with enough to do and not too much, spread over the table, so that all options are met."""
    cases = [source.build(recipe) for recipe in source.designed(declaration.coverage)]
    sized = [case for case in cases if 0 < sum(array.size for array in case.arrays.values()) <= MOST_ELEMENTS]
    step = max(1, len(sized) // max(1, most))
    return sized[::step][:most]


def _matmul_outcomes(function: Callable[..., Any]) -> list[Result]:
    """A product with ragged tiles: it belongs to no operation of the contract."""
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal((rows, 72)).astype(ml_dtypes.bfloat16) for rows in (70, 66))
    try:
        function(a, b)
    except KernelFault as fault:
        return [(fault, str(fault), False)]
    return [(None, "", True)]
