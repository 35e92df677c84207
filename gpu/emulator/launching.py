"""Launching: a built kernel on NumPy arrays: arrays into emulated device memory, the run, results back, findings as an exception."""

from __future__ import annotations

import ctypes
import re
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..packing import Parameter
from .building import HERE, Library, cuda_headers
from .device_memory import DeviceMemory
from .faults import KINDS, Finding, KernelFault

MAX_THREADS, MAX_BLOCK_Z, MAX_GRID_YZ, MAX_GRID_X = 1024, 64, 65535, 2**31 - 1
DEFAULT_SHARED, MOST_SHARED = 48 * 1024, 227 * 1024                             # bytes; more than the default is an opt-in (sm_90)
_one_at_a_time = threading.Lock()                                               # the runtime's state is global to the process


class _Configuration(ctypes.Structure):
    _fields_ = (("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared_bytes", ctypes.c_ulonglong),
                ("seed", ctypes.c_ulonglong), ("reversed", ctypes.c_int), ("strict", ctypes.c_int),
                ("seconds", ctypes.c_double))  # fmt: skip


class _Finding(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("thread", ctypes.c_int * 2), ("block", ctypes.c_uint * 3), ("code", ctypes.c_ulonglong * 2),
                ("file", ctypes.c_char_p), ("line", ctypes.c_int), ("array", ctypes.c_char * 64), ("offset", ctypes.c_longlong),
                ("message", ctypes.c_char * 400))  # fmt: skip


class EmulatedKernel:
    """One built kernel, loaded into this process."""

    def __init__(self, library: Library, name: str, parameters: Sequence[Parameter], *, check: bool) -> None:
        self.name, self.parameters, self.check, self._library = name, parameters, check, library
        self._functions = ctypes.CDLL(str(library.path))
        self._functions.emulator_parameters.restype = ctypes.c_char_p
        self._functions.emulator_finding.restype = ctypes.POINTER(_Finding)
        self._functions.emulator_stacks.restype = ctypes.c_void_p
        self._functions.emulator_stacks.argtypes = (ctypes.c_void_p,)
        _share_stacks(self._functions)
        self._base = _loaded_at(library.path)
        compiled = self._functions.emulator_parameters().decode().split(",")[:-1]
        read = [parameter.code for parameter in parameters]
        if [_same(a) for a in compiled] != [_same(b) for b in read]:
            raise ValueError(f"{name}: its parameters were read as {', '.join(map(str, parameters))}, which is not what g++ compiled "
                             f"({','.join(compiled)} against {','.join(read)}); give parameters='…'")  # fmt: skip

    def launch(
        self, grid: Sequence[int], block: Sequence[int], packed: Sequence[Any], *, shared_mem: int, max_shared_mem: int,
        schedule: str | int, outputs: Sequence[str], seconds: float,
    ) -> None:  # fmt: skip
        """Run it once. Raises KernelFault for what the kernel or the launch does wrong."""
        grid3, block3 = _three(grid, "grid"), _three(block, "block")
        static = sum(size for _, _, size in self._library.static_shared)
        _check_limits(self.name, grid3, block3, shared_mem, static, max_shared_mem)
        pointers = [parameter.name for parameter in self.parameters if parameter.pointer]
        unknown = [name for name in outputs if name not in pointers]
        if unknown:
            raise ValueError(f"outputs: got {unknown[0]!r}; want names of pointers: {', '.join(pointers)}")
        seed, backwards = _order(schedule)
        given = [(p, a) for p, a in zip(self.parameters, packed) if p.pointer and a is not None]
        with _one_at_a_time, DeviceMemory([a for _, a in given], fill=[a for p, a in given if p.name in outputs]) as memory:
            self._functions.emulator_reset()
            self._tell_regions(given, memory, outputs)
            values, addresses = self._arguments(packed, memory)
            configuration = _Configuration(grid3, block3, shared_mem, seed, backwards, int(self.check), float(seconds))
            count = self._functions.emulator_launch(ctypes.byref(configuration), addresses)
            raw = [self._functions.emulator_finding(i).contents for i in range(count)]
            # A race often shows first as a read of what nobody wrote yet, and a copy not waited for as a race: the cause comes first.
            findings = [self._finding(one) for one in sorted(raw, key=lambda one: int(one.kind))]
            del values
            overrun = memory.overrun()
        if overrun is not None and not findings:
            which = next(p.name for p, a in given if a is overrun)
            findings = [Finding("out_of_bounds", f"out of bounds: wrote before or past the end of '{which}' (check=True tells where)",
                                array=which)]  # fmt: skip
        if findings:
            raise KernelFault(self.name, tuple(findings))

    def _tell_regions(self, given: Sequence[tuple[Parameter, Any]], memory: DeviceMemory, outputs: Sequence[str]) -> None:
        if self.check:
            self._functions.emulator_clear_regions()
        for name, offset, size in self._library.static_shared:
            address = ctypes.c_void_p(self._base + offset)
            self._functions.emulator_add_static_shared(address, ctypes.c_size_t(size))
            if self.check:
                self._region(name, self._base + offset, size, shared=True, cell=1, read_only=False, written=False)
        if not self.check:
            return
        for parameter, array in given:
            # An array given to several parameters is one region; it is read-only if all of them are const.
            same = [p for p, a in given if a.ctypes.data == array.ctypes.data and a.nbytes == array.nbytes]
            if same[0] is parameter and array.nbytes:
                cell = min(4, array.itemsize)
                self._region(parameter.name, memory.address(array), array.nbytes, shared=False, cell=cell,
                             read_only=all(p.const for p in same), written=parameter.name not in outputs)  # fmt: skip

    def _region(self, name: str, address: int, size: int, *, shared: bool, cell: int, read_only: bool, written: bool) -> None:
        self._functions.emulator_add_region(name.encode(), ctypes.c_void_p(address), ctypes.c_size_t(size), int(shared),
                                            ctypes.c_size_t(cell), int(read_only), int(written))  # fmt: skip

    def _arguments(self, packed: Sequence[Any], memory: DeviceMemory) -> tuple[list[Any], Any]:
        """The values, which must outlive the launch, and the array of their addresses."""
        values: list[Any] = []
        addresses = (ctypes.c_void_p * len(packed))()
        for index, (parameter, value) in enumerate(zip(self.parameters, packed)):
            if parameter.pointer:
                values.append(np.array(0 if value is None else memory.address(value), np.uint64))
            else:
                values.append(np.array(value))
            addresses[index] = values[-1].ctypes.data
        return values, addresses

    def _finding(self, raw: Any) -> Finding:
        places = tuple(place for code in raw.code if code for place in [self._line(code)])
        if not places and raw.file:
            places = (f"{Path(raw.file.decode()).name}:{raw.line}",)
        threads = tuple(thread for thread in raw.thread if thread >= 0)
        block = (raw.block[0], raw.block[1], raw.block[2])
        who = f"block {block} thread {threads[0]}: ".replace(", ", ",") if len(threads) == 1 else ""
        return Finding(KINDS[raw.kind], who + raw.message.decode(errors="replace"), places, threads, block, raw.array.decode(), raw.offset)

    def _line(self, code: int) -> str:
        """The source line of an instruction: the innermost one that is not in our headers or NVIDIA's."""
        done = subprocess.run(["addr2line", "-i", "-e", str(self._library.path), hex(code - 1)], capture_output=True, text=True)
        lines = [re.sub(r" \(.*", "", line) for line in done.stdout.splitlines()]
        own = [line for line in lines if not line.startswith((str(HERE), str(cuda_headers()), "??", "/usr/"))]
        return Path((own or lines or ["??:0"])[0]).name


_stacks: list[int] = []                                                         # of the first kernel loaded into this process


def _share_stacks(functions: ctypes.CDLL) -> None:
    with _one_at_a_time:
        stacks = functions.emulator_stacks(_stacks[0] if _stacks else None)
        if not stacks:
            raise MemoryError("the emulator could not reserve 128 MB of address space for the stacks of 1024 threads")
        _stacks[:] = [stacks]


def _check_limits(name: str, grid: Any, block: Any, shared_mem: int, static: int, max_shared_mem: int) -> None:
    """What a device refuses to launch."""
    threads = int(np.prod([*block], dtype=np.int64))
    wrong = ""
    if not 1 <= threads <= MAX_THREADS or block[2] > MAX_BLOCK_Z:
        wrong = f"block: got {(*block,)}, {threads} threads; want 1 to {MAX_THREADS}, at most {MAX_BLOCK_Z} along z"
    elif min(grid) < 1 or grid[0] > MAX_GRID_X or max(grid[1], grid[2]) > MAX_GRID_YZ:
        wrong = f"grid: got {(*grid,)}; want 1 to {MAX_GRID_X} blocks along x, 1 to {MAX_GRID_YZ} along y and z"
    elif shared_mem > max_shared_mem:
        wrong = (f"shared_mem: got {shared_mem} bytes of dynamic shared memory; want at most max_shared_mem = {max_shared_mem} "
                 f"(an opt-in of up to {MOST_SHARED})")  # fmt: skip
    elif shared_mem + static > MOST_SHARED or static > DEFAULT_SHARED:
        wrong = (f"shared_mem: got {shared_mem} dynamic and {static} static bytes; "
                 f"want at most {MOST_SHARED}, {DEFAULT_SHARED} of them static")  # fmt: skip
    if wrong:
        raise KernelFault(name, (Finding("launch", wrong),))


def _three(sizes: Sequence[int], title: str) -> Any:
    given = tuple(int(size) for size in sizes)
    if not 1 <= len(given) <= 3 or min(given) < 0 or max(given) > 2**32 - 1:
        raise ValueError(f"{title}: got {given}; want one to three sizes")
    return (ctypes.c_uint * 3)(*(*given, 1, 1)[:3])


def _order(schedule: str | int) -> tuple[int, int]:
    """(seed, reversed) of a schedule."""
    if isinstance(schedule, str):
        if schedule not in ("in_order", "reversed"):
            raise ValueError(f"schedule: got {schedule!r}; want 'in_order', 'reversed' or the seed of a random order")
        return 0, int(schedule == "reversed")
    return (int(schedule) * 2 + 1) % 2**63, 0


def _same(code: str) -> str:
    """char is signed or not by machine, and vectors have several names: compared by size alone. So are bool and unsigned char."""
    return re.sub(r"u8$|i8$", "64", re.sub(r"[iu]1$", "8", code))


def _loaded_at(path: Path) -> int:
    """Where the library lies in this process."""
    starts = [int(line.split("-")[0], 16) for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(path))]
    return min(starts)
