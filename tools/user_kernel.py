"""User kernel: a CUDA C++ file and a small launch function made into a subject that runs on the CPU, so that the checker can judge it.

A launch function takes the arguments of the operation under the contract's names and returns what to launch, as a dict:

    grid, block    sizes, one to three each
    args           the kernel's arguments in the order of its C++ parameters: arrays, numbers, None for a null pointer
    results        {result of the operation: array}: arrays in args that the kernel writes, or views of them
    shared_mem     bytes of dynamic shared memory, if any; max_shared_mem: opt in to more than 48 KB
    kernel         another instance than the one named, such as one for the dtype
    parameters     the C++ parameter list, where macros hide it
    options        -D… and -I… for the compiler
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from oracles.gpu import Kernel
from oracles.gpu.emulator.building import cache_folder
from oracles.properties.declaration import UsageError
from oracles.properties.loading import load_file

REQUIRED = ("grid", "block", "args", "results")
OPTIONAL = ("shared_mem", "max_shared_mem", "kernel", "parameters", "options")
TEMPLATE = '''"""A kernel on the CPU, written by `oracles check … --emulate`: {kernel} of {source}, launched by {launch}."""

from pathlib import Path

from oracles.tools.user_kernel import emulated_function

{name} = emulated_function(Path({source!r}), {kernel!r}, Path({launch!r}), check={check})
'''


def is_kernel(subject: str) -> bool:
    """Whether a subject is named as FILE.cu:KERNEL."""
    return ".cu:" in subject


def split_kernel(subject: str) -> tuple[Path, str]:
    """FILE.cu:KERNEL as path and kernel. Raises UsageError for anything else, or where there is no such file."""
    place, found, kernel = subject.partition(".cu:")
    if not found or not kernel:
        raise UsageError(f"SUBJECT: got {subject!r}; want FILE.cu:KERNEL")
    path = Path(f"{place}.cu")
    if not path.is_file():
        raise UsageError(f"SUBJECT: no file {path}; want an existing .cu file")
    return path.resolve(), kernel


def emulated_subject(subject: str, launch: Path | None, *, check: bool = False) -> str:
    """Write the Python file that stands for FILE.cu:KERNEL, into the user's cache; returns the subject to give to the checker.

    check: with the emulator's check mode on. Raises UsageError where a file is missing.
    """
    path, kernel = split_kernel(subject)
    if launch is None:
        raise UsageError(f"--launch: not given; want a Python file with a function launch(...) that says how to launch {kernel}")
    if not launch.is_file():
        raise UsageError(f"--launch: no file {launch}; want a Python file with a function launch(...)")
    name = "".join(c if c.isalnum() else "_" for c in kernel).strip("_")
    text = TEMPLATE.format(source=str(path), kernel=kernel, launch=str(launch.resolve()), name=name, check=check)
    folder = cache_folder().parent / "subjects" / hashlib.sha256(text.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}_emulated.py"
    unfinished = file.with_suffix(".writing")
    unfinished.write_text(text)
    unfinished.replace(file)
    return f"{file}:{name}"


def emulated_function(
    source: Path, kernel: str, launch: Path, *, check: bool = False, seconds: float = 60.0
) -> Callable[..., dict[str, Any]]:
    """A function with the signature, and the @subject declaration, of the launch function, which runs the kernel it describes."""
    module = load_file(launch)
    described = getattr(module, "launch", None)
    if not callable(described):
        raise UsageError(f"--launch: {launch} has no function launch; want launch(q, k, v, *, causal, …) that returns a dict")
    built = functools.lru_cache(maxsize=64)(functools.partial(Kernel, source))

    @functools.wraps(described)
    def run(*positional: Any, **named: Any) -> dict[str, Any]:
        plan = _checked(described(*positional, **named), launch)
        instance = built(plan.get("kernel", kernel), parameters=plan.get("parameters"), options=tuple(plan.get("options", ())),
                         max_shared_mem=plan.get("max_shared_mem", 48 * 1024))  # fmt: skip
        written = [parameter.name for parameter, given in zip(instance.parameters, plan["args"]) if _holds_a_result(given, plan["results"])]
        instance(plan["grid"], plan["block"], plan["args"], shared_mem=plan.get("shared_mem", 0), backend="emulated", check=check,
                 outputs=written, seconds=seconds)  # fmt: skip
        return dict(plan["results"])

    run.__name__ = run.__qualname__ = kernel
    return run


def _checked(plan: Any, launch: Path) -> Mapping[str, Any]:
    if not isinstance(plan, Mapping):
        raise UsageError(f"{launch.name}: launch returned a {type(plan).__name__}; want a dict with {', '.join(REQUIRED)}")
    missing = [key for key in REQUIRED if key not in plan]
    unknown = [key for key in plan if key not in REQUIRED + OPTIONAL]
    if missing or unknown:
        raise UsageError(f"{launch.name}: launch returned {', '.join(map(str, plan)) or 'nothing'}; want {', '.join(REQUIRED)}, "
                         f"and perhaps {', '.join(OPTIONAL)}")  # fmt: skip
    strangers = [name for name, result in plan["results"].items() if not any(_shares(result, given) for given in plan["args"])]
    if strangers:
        raise UsageError(f"{launch.name}: the result {strangers[0]!r} is none of the arrays in args; want one of them, or a view of it")
    return plan


def _holds_a_result(given: Any, results: Mapping[str, Any]) -> bool:
    return any(_shares(result, given) for result in results.values())


def _shares(result: Any, given: Any) -> bool:
    return isinstance(given, np.ndarray) and isinstance(result, np.ndarray) and (np.shares_memory(result, given) or given.size == 0)
