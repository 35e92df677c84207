"""Compile gate: kernels through NVRTC to machine code (cubin) with no GPU and no CuPy; registers, spills and shared memory of each.

PTX is not enough: inline PTX is first read when ptxas makes a cubin of it. NVRTC comes from the wheels nvidia-cuda-nvrtc,
nvidia-cuda-runtime (headers) and nvidia-cuda-crt (mma.h), called by ctypes.
"""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .cpp_signature import kernels_of, split_instance, template_of
from .cuda_wheels import wheel_folders
from .kernel import KERNELS, find_source

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
INSTALL = "pip install 'oracles[nvrtc]'"


class CannotCompile(RuntimeError):
    """NVRTC is not installed."""


class DoesNotCompile(ValueError):
    """NVRTC or ptxas refused the source; the message holds what they said."""


@dataclass(frozen=True)
class Budget:
    """What the header comment of a kernel allows: "budget: 128 registers, 0 spills" (bytes of spill stores and loads)."""

    registers: int
    spills: int


@dataclass(frozen=True)
class Compiled:
    """One kernel on one architecture. spills: bytes of spill stores and loads; shared: bytes of static shared memory."""

    file: str
    kernel: str
    architecture: str
    registers: int
    spills: int
    shared: int
    budget: Budget | None
    cubin_bytes: int

    @property
    def over_budget(self) -> str:
        """What is wrong with it, or ""."""
        allowed = self.budget or Budget(registers=255, spills=0)
        found = [(self.registers, allowed.registers, "registers"), (self.spills, allowed.spills, "bytes of spills")]
        return ", ".join(f"{got} {what}, want at most {most}" for got, most, what in found if got > most)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "over_budget": self.over_budget}


def compile_kernels(
    sources: Sequence[str | Path], *, names: Sequence[str] = (), architectures: Sequence[str] = ARCHITECTURES, options: Sequence[str] = ()
) -> list[Compiled]:
    """Compile every instance of every source for every architecture, two at a time.

    sources: files, or names of ours. names: instances; by default those of the header line "instances: f<float|__half, 64|128>"
    (| separates alternatives) and every kernel that is no template. Raises CannotCompile without NVRTC, DoesNotCompile for a source
    it refuses, ValueError for a template without instances.
    """
    jobs = [(find_source(source), architecture) for source in sources for architecture in architectures]
    with ThreadPoolExecutor(2) as pool:
        return [one for found in pool.map(lambda job: compile_file(*job, names=names, options=options), jobs) for one in found]


def compile_file(path: Path, architecture: str, *, names: Sequence[str] = (), options: Sequence[str] = ()) -> list[Compiled]:
    """All instances of one source for one architecture."""
    text = path.read_text()
    wanted = list(names) or instances_of(text, path.name)
    cubin, lowered, log = compile_text(text, path.name, architecture, wanted, [*options, f"-I{path.parent}", f"-I{KERNELS}"])
    figures = _figures(log)
    budget = budget_of(text)
    return [Compiled(path.name, name, architecture, *figures.get(lowered[name], (0, 0, 0)), budget, len(cubin)) for name in wanted]


def compile_text(
    text: str, title: str, architecture: str, names: Sequence[str], options: Sequence[str] = ()
) -> tuple[bytes, dict[str, str], str]:
    """(cubin, {instance: its symbol}, log of NVRTC and ptxas) of a source text. Raises DoesNotCompile with the errors."""
    library, headers = _nvrtc()
    program = ctypes.c_void_p()
    _ask(library.nvrtcCreateProgram, ctypes.byref(program), text.encode(), title.encode(), 0, None, None)
    try:
        for name in names:
            _ask(library.nvrtcAddNameExpression, program, name.encode())
        given = [f"-arch={architecture}", "-std=c++17", f"-I{headers}", "--ptxas-options=-v", *options]
        failed = library.nvrtcCompileProgram(program, len(given), (ctypes.c_char_p * len(given))(*(o.encode() for o in given)))
        log = _text(program, library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog).decode(errors="replace").rstrip("\0")
        if failed:
            raise DoesNotCompile(f"{title} for {architecture}:\n{_errors(log)}")
        lowered = {}
        for name in names:
            symbol = ctypes.c_char_p()
            _ask(library.nvrtcGetLoweredName, program, name.encode(), ctypes.byref(symbol))
            lowered[name] = (symbol.value or b"").decode()
        return _text(program, library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN), lowered, log
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def instances_of(text: str, title: str) -> list[str]:
    """The instances a source names in its header comment, and its kernels that are no templates."""
    named = [
        instance
        for line in re.findall(r"^//\s*instances:\s*(.*(?:\n//  +.*)*)", text, re.MULTILINE)
        for one in re.findall(r"\w+<[^>]*>", line.replace("\n//", " "))
        for instance in _alternatives(one)
    ]
    covered = {split_instance(name)[0] for name in named}
    missing = [kernel for kernel in kernels_of(text) if kernel not in covered and template_of(text, kernel)]
    if missing:
        example = f"'// instances: {missing[0]}<float, 64|128>'"
        raise ValueError(f"{title}: no instances of the template {missing[0]}; want a comment line {example}")
    return named + [kernel for kernel in kernels_of(text) if kernel not in covered]


def _alternatives(instance: str) -> list[str]:
    """
    >>> _alternatives("f<float|__half, 64>")
    ['f<float, 64>', 'f<__half, 64>']
    """
    name, arguments = split_instance(instance)
    choices = [[choice.strip() for choice in argument.split("|")] for argument in arguments]
    return [f"{name}<{', '.join(chosen)}>" for chosen in itertools.product(*choices)]


def budget_of(text: str) -> Budget | None:
    """The budget in a header comment, or None."""
    found = re.search(r"^//.*\bbudget:\s*(\d+) registers?, (\d+) spills?", text, re.MULTILINE)
    return Budget(int(found[1]), int(found[2])) if found else None


def _figures(log: str) -> dict[str, tuple[int, int, int]]:
    """{symbol: (registers, bytes of spills, bytes of static shared memory)} from the lines of ptxas -v."""
    figures: dict[str, tuple[int, int, int]] = {}
    symbol, spills = "", 0
    for line in log.splitlines():
        if found := re.search(r"Compiling entry function '(\S+)'", line):
            symbol, spills = found[1], 0
        elif found := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spills = int(found[1]) + int(found[2])
        elif found := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            figures[symbol] = (int(found[1]), spills, int(shared[1]) if shared else 0)
    return figures


def _errors(log: str) -> str:
    """The lines with errors, each with the line of source that follows it."""
    lines = [line for line in log.splitlines() if line.strip()]
    kept = [f"{line}\n{'    ' + following.strip() if 'error' not in following else ''}".rstrip()
            for line, following in itertools.zip_longest(lines, lines[1:], fillvalue="")
            if re.search(r"\berror\b|\bfatal\b", line)]  # fmt: skip
    return "\n".join(kept[:8]) or log.strip()


@cache
def _nvrtc() -> tuple[Any, Path]:
    """The NVRTC library and the folder of the CUDA headers."""
    for folder in wheel_folders():
        library = folder / "lib" / "libnvrtc.so.13"
        if library.exists() and (folder / "include" / "cuda_fp16.h").exists() and (folder / "include" / "crt" / "mma.h").exists():
            for builtins in sorted(library.parent.glob("libnvrtc-builtins.so.*")):
                ctypes.CDLL(str(builtins))                                      # NVRTC opens it by its bare name
            return ctypes.CDLL(str(library)), folder / "include"
    raise CannotCompile(f"the compile gate needs NVRTC 13 and the CUDA headers, which are not installed; want {INSTALL}")


def _ask(function: Any, *arguments: Any) -> None:
    code = function(*arguments)
    if code:
        library, _ = _nvrtc()
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise DoesNotCompile(f"NVRTC: {function.__name__}: {library.nvrtcGetErrorString(code).decode()}")


def _text(program: Any, size_of: Any, get: Any) -> bytes:
    size = ctypes.c_size_t()
    _ask(size_of, program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    _ask(get, program, buffer)
    return buffer.raw
