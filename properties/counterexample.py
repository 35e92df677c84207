"""Counterexample: a failure as a folder that anybody can run again: the case, a report, and a repro for NumPy and the kernel alone."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import pprint
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from .case import Case
from .law import Evidence, Judgement, Law
from .operation import Operation, result_format
from .safetensors_file import Array
from .signatures import SIGNATURES
from .strides import in_elements
from .subjects import Subject

CASE, REPRO, REPORT = "case.safetensors", "repro.py", "report.json"


def write_counterexample(folder: Path, operation: Operation, subject: Subject, law: Law, case: Case, judgement: Judgement) -> Path:
    """Write `folder/<hash>-<law>/`, all or nothing, and return it. The hash is of the case and the subject."""
    folder.mkdir(parents=True, exist_ok=True)
    known = f"{case.hash} {lasting_spec(subject) or subject.declaration.name}"
    target = folder / f"{hashlib.sha256(known.encode()).hexdigest()[:12]}-{law.name[:24].rstrip('_')}"
    temporary = Path(tempfile.mkdtemp(dir=folder, prefix=".writing-"))
    try:
        evidence = judgement.evidence if judgement.evidence != Evidence() else _open_evidence(operation, subject, case)
        extra: dict[str, Array] = {f"wanted.{name}": value for name, value in evidence.wanted.items()}
        extra |= {f"allowed.{name}": value for name, value in evidence.allowed.items()}
        extra |= {f"equal.{name}": np.array(value) for name, value in evidence.equal.items()}
        if evidence.other is not None:
            extra |= {f"other.{name}": array for name, array in evidence.other.arrays.items()}
        case.save(temporary / CASE, extra)
        kernel = _kernel(subject, temporary)
        (temporary / REPRO).write_text(_repro(operation, subject, law, case, judgement, kernel))
        (temporary / REPORT).write_text(json.dumps(_report(operation, subject, law, case, judgement), indent=1) + "\n")
        if target.exists():
            shutil.rmtree(target)
        os.replace(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return target


def _open_evidence(operation: Operation, subject: Subject, case: Case) -> Evidence:
    """What the oracle answers, with no promise: for laws that the repro judges by their own rule."""
    wanted = operation.answer(case, subject.declaration.conventions)
    return Evidence(wanted, {name: np.full(value.shape, np.inf) for name, value in wanted.items()})


def _kernel(subject: Subject, folder: Path) -> str:
    """How the repro finds the kernel: `lasting_spec`, or for a peer `carried_peer`."""
    spec = lasting_spec(subject)
    if not spec.startswith("peers:"):
        return spec
    from .loading import load

    function, _ = load(spec, subject.declaration.operation)
    return carried_peer(function, folder)


def carried_peer(function: Callable[..., Any], folder: Path) -> str:
    """`kernel.py:name`, a copy of the plain source of a peer's function or class; `module:name` where that needs its neighbours."""
    source = Path(inspect.getsourcefile(function) or "")
    if any(line.startswith("from .") for line in source.read_text().splitlines()):
        return f"{function.__module__}:{function.__name__}"
    shutil.copy(source, folder / "kernel.py")
    return f"kernel.py:{function.__name__}"


def lasting_spec(subject: Subject) -> str:
    """The text that names a subject from any folder: files by their full path; "" for a function that has no name of its own."""
    return lasting_name(subject.spec, getattr(subject, "function", None))


def lasting_name(spec: str | None, function: Any) -> str:
    """The same for a subject named by spec, or else for a function, class or factory."""
    if spec is None:
        return "" if function is None else _place_of(function)
    if spec.startswith("cmd:"):
        words = shlex.split(spec.removeprefix("cmd:"))
        return "cmd:" + shlex.join(str(Path(word).resolve()) if "/" in word and Path(word).exists() else word for word in words)
    if ".py:" in spec:
        place, _, name = spec.rpartition(":")
        return f"{Path(place).resolve()}:{name}"
    return spec


def _place_of(function: Any) -> str:
    try:
        file = inspect.getsourcefile(function)
    except TypeError:
        return ""
    name = getattr(function, "__qualname__", "<locals>")
    if file is None or "<" in name:
        return ""
    module = sys.modules.get(function.__module__)
    if getattr(module, "__package__", ""):                                      # it may import its neighbours, which a bare file cannot
        return f"{function.__module__}:{name}"
    return f"{Path(file).resolve()}:{name}"


def _repro(operation: Operation, subject: Subject, law: Law, case: Case, judgement: Judgement, kernel: str) -> str:
    declaration = subject.declaration
    arithmetic = declaration.arithmetic.resolve(operation.input_format(case))
    other = judgement.evidence.other
    judged = other if other is not None and judgement.evidence.of_other else case
    settings = {
        "kernel": kernel, "operation": operation.name, "law": law.name, "layout": declaration.layout, "framework": declaration.framework,
        "rename": dict(declaration.rename), "by_position": declaration.by_position, "causal_is_boolean": declaration.causal_is_boolean,
        "window_counts_current": declaration.conventions.get("window_counts_current") == "yes",
        "takes": sorted(declaration.coverage.arguments | set(operation.signature.required)), "buffers": list(declaration.buffers),
        "required": list(operation.signature.required), "results": list(operation.signature.results),
        "given_with": dict(operation.signature.given_with),
        "laid_out": list(operation.signature.laid_out), "lists": list(operation.signature.lists),
        "as_array": dict(operation.signature.as_array),
        "in_place": list(declaration.in_place), "handed_back": list(operation.signature.handed_back),
        "dtypes": {name: result_format(operation.signature, name, arithmetic) for name in operation.signature.results},
        "shapes": {name: list(value.shape) for name, value in operation.answer(judged, declaration.conventions).items()},
        "of_other": judgement.evidence.of_other,
        "other_options": None if other is None else _plain(dict(other.options)),
        "other_strides": None if other is None else {name: in_elements(array) for name, array in other.arrays.items()},
        "seconds": 60,
    }  # fmt: skip
    template = resources.files(__package__).joinpath("repro_template.txt").read_text()
    text = pprint.pformat(settings, width=120, sort_dicts=False)
    statement = " ".join(law.statement.split())
    about = f"{subject.spec or declaration.name} breaks {law.name} of {operation.name}: {judgement.reason}"
    return template.replace("@ABOUT@", quoted(about)).replace("@STATEMENT@", quoted(statement)).replace("@SETTINGS@", text)


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}


def quoted(text: str) -> str:
    """Text that stays inside a raw docstring."""
    return text.replace('"""', "'''").replace("\\", "/")


def _report(operation: Operation, subject: Subject, law: Law, case: Case, judgement: Judgement) -> dict[str, Any]:
    declaration = subject.declaration
    ratio = judgement.worst_ratio
    return {
        "operation": operation.name, "subject": subject.spec or declaration.name, "spec": lasting_spec(subject),
        "declared": dict(subject.declared), "law": law.name, "statement": law.statement,
        "reason": judgement.reason, "worst_at": judgement.worst_at, "worst_ratio": ratio if np.isfinite(ratio) else None,
        "worst_ratio_infinite": not np.isfinite(ratio), "case": case.hash, "origin": case.origin, "options": _plain(dict(case.options)),
        "shapes": {name: list(array.shape) for name, array in case.arrays.items()},
        "dtypes": {name: str(array.dtype) for name, array in case.arrays.items()},
        "arithmetic": asdict(declaration.arithmetic), "conventions": dict(declaration.conventions), "declaration": declaration.to_json(),
        "numpy": np.__version__, "results": list(SIGNATURES[operation.name].results),
    }  # fmt: skip
